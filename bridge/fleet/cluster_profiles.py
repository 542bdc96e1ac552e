"""ClusterProfiles of SIG Multicluster as joins (`JoinedKind`): the virtual node has the profile's
name, and its properties as labels.

A profile belongs to its cluster manager: the bridge writes a finalizer, and neither its spec nor
its status. The state of a join is shown by Events, at most one in `EVENT_SECONDS` for each
profile.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from bridge.base.printable_text import escape_line
from bridge.crds.remote_crd import DEFAULT_LEAVE_SECONDS
from bridge.fleet import access_providers
from bridge.fleet.access_providers import TOKEN_SECRET, Plugin
from bridge.fleet.fleet_report import RemoteReport
from bridge.fleet.joined_kind import (
    Contents,
    ProfileAccess,
    Rejection,
    after_deletion,
    is_leaving,
)
from bridge.fleet.remote_objects import secret_value
from sync.kube.api_resources import CLUSTER_PROFILES
from sync.kube.client import KubeClient
from sync.runtime.event_recorder import event_of, write_event
from translators.object_accessors import Object, name_of, namespace_of, uid_of
from translators.ownership_labels import PROPERTY_DOMAIN
from translators.timestamps import format_time

#: Least seconds between Events of a profile, whose writer may change it at any rate.
EVENT_SECONDS = 5.0
#: Least seconds between two changes of a Node's property labels: some cluster managers publish
#: figures as properties, and each change of a Node reaches all of its watchers.
LABEL_SECONDS = 60.0
#: How many properties become labels; further ones, by name, do not.
MAX_LABELS = 64
#: The name of a label after its domain, and a value that is not empty (IsQualifiedName,
#: IsValidLabelValue in k8s.io/apimachinery).
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
#: Reasons of Events, as of a Remote's condition Ready.
_JOINED, _LEAVING, _RETRYING = "Joined", "Leaving", "Retrying"


class _Shown(NamedTuple):
    """An Event that was written."""

    kind: str
    reason: str
    message: str


class ClusterProfileKind:
    """ClusterProfiles. ``plugins``: the access providers of the operator; ``options``: those of
    every join, by the property of a Remote's ``spec.options``."""

    resource = CLUSTER_PROFILES
    missing = (
        "the cluster manager, or sigs.k8s.io/cluster-inventory-api, defines it, and `bridge rbac "
        "fleet --cluster-profiles` grants access"
    )

    def __init__(self, plugins: Sequence[Plugin], options: Mapping[str, object]) -> None:
        self._plugins = plugins
        self._options = options
        # By UID: what was shown and when, and the labels and when they changed.
        self._shown: dict[str, tuple[_Shown, datetime]] = {}
        self._labels: dict[str, tuple[Mapping[str, str], datetime]] = {}

    def node_name(self, joined: Object) -> str:
        """`JoinedKind.node_name`."""
        return name_of(joined)

    def secret_name(self, joined: Object) -> str:
        """`JoinedKind.secret_name`."""
        access = access_providers.choose(joined, self._plugins)
        return "" if isinstance(access, Rejection) else access.secret

    def contents(
        self, joined: Object, secret: Object | None, *, has_file: bool
    ) -> Contents | Rejection:
        """`JoinedKind.contents`."""
        access = access_providers.choose(joined, self._plugins)
        if isinstance(access, Rejection):
            return Contents(self._options) if is_leaving(joined) and has_file else access
        if access.plugin is not None:
            plugin = access.plugin.exec
            found = ProfileAccess(access.provider, access.cluster, plugin=plugin)
            return Contents(self._options, access=found)
        if secret is None:
            if has_file:
                return Contents(self._options)
            return Rejection(
                "SecretNotFound",
                f"home: there is no Secret {access.secret} in namespace {namespace_of(joined)}; "
                f"its access provider {access.provider} names it",
            )
        if reason := access_providers.reason_not_to_use(secret, joined):
            return Rejection("SecretRejected", f"Secret {access.secret} is not used: {reason}")
        value = secret_value(secret, (access.key,))
        if isinstance(value, Rejection):
            return value
        is_token = access.provider == TOKEN_SECRET
        found = ProfileAccess(
            access.provider,
            access.cluster,
            token=value if is_token else None,
            kubeconfig=None if is_token else value,
            context=access.context,
        )
        return Contents(self._options, access=found)

    def abandoned_at(self, joined: Object) -> datetime | None:
        """`JoinedKind.abandoned_at`: a fixed time after the deletion, since a profile has no field
        for it."""
        return after_deletion(joined, DEFAULT_LEAVE_SECONDS)

    def labels(self, joined: Object, now: datetime) -> Mapping[str, str]:
        """`JoinedKind.labels`: the properties, which change at most every `LABEL_SECONDS`."""
        wanted = property_labels(joined)
        before, at = self._labels.get(uid_of(joined), (None, now))
        if before == wanted:
            return before
        if before is not None and (now - at).total_seconds() < LABEL_SECONDS:
            return before
        self._labels[uid_of(joined)] = (wanted, now)
        return wanted

    def was_ready(self, joined: Object) -> bool:  # noqa: ARG002  # no field shows it
        """`JoinedKind.was_ready`: only the Node shows it."""
        return True

    def forget(self, uids: set[str]) -> None:
        """`JoinedKind.forget`."""
        for known in (self._shown, self._labels):
            for uid in known.keys() - uids:
                del known[uid]

    async def show(
        self,
        home: KubeClient,
        joined: Object,
        *,
        rejection: Rejection | None,
        report: RemoteReport | None,
        now: datetime,
        may_write: Callable[[], Awaitable[bool]],
    ) -> None:
        """Writes an Event, if the state differs from that of the last one."""
        wanted = _state(joined, rejection, report)
        before, at = self._shown.get(uid_of(joined), (None, now))
        if wanted is None or wanted == before:
            return
        if before is not None and (now - at).total_seconds() < EVENT_SECONDS:
            return
        if not await may_write():
            return
        # Also if the write fails: it is not worth a request in each pass.
        self._shown[uid_of(joined)] = (wanted, now)
        time = format_time(now)
        event = event_of(
            {"apiVersion": CLUSTER_PROFILES.api_version, "kind": CLUSTER_PROFILES.kind, **joined},
            *wanted,
            node=self.node_name(joined),
            now=time,
        )
        await write_event(home, event, now=time)


def _state(
    joined: Object, rejection: Rejection | None, report: RemoteReport | None
) -> _Shown | None:
    """The Event that the state is worth; None for a passing one."""
    if rejection is not None and not is_leaving(joined):
        goes_on = "; the last valid join goes on" if report is not None else ""
        return _Shown("Warning", rejection.reason, f"{escape_line(rejection.message)}{goes_on}")
    if report is None:
        return None
    if report.state == "running":
        return _Shown("Normal", _JOINED, f"the bridge serves node {name_of(joined)}")
    if report.state == "retrying":
        return _Shown("Warning", _RETRYING, escape_line(report.error))
    if report.state == "leaving":
        return _Shown(
            "Normal", _LEAVING, "pods, copies and the node are removed, as by bridge leave"
        )
    return None


def property_labels(profile: Object) -> dict[str, str]:
    """The properties as labels ``property.cluster-bridge.io/NAME``; a ``/`` of a name is ``_``.

    A property whose name or value no label can have is left out, and so is one whose label another
    property has by its exact name.
    """
    found: dict[str, str] = {}
    properties = {
        str(it.get("name")): str(it.get("value") or "")
        for it in (profile.get("status") or {}).get("properties") or ()
        if isinstance(it, dict)
    }
    for name in sorted(properties, key=lambda it: ("/" in it, it)):
        label, value = name.replace("/", "_"), properties[name]
        if _LABEL.fullmatch(label) and _LABEL.fullmatch(value) and len(found) < MAX_LABELS:
            found.setdefault(f"{PROPERTY_DOMAIN}/{label}", value)
    return found
