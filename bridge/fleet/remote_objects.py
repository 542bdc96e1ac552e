"""Remotes, the objects of home: what their spec asks for, and the status that the bridge writes.

A Remote's conditions follow kstatus (sigs.k8s.io/cli-utils), which Flux and `kubectl wait` read,
and are what Argo CD's health scripts expect of a resource:

- ``Accepted``: spec and Secret are valid.
- ``Ready``: a bridge serves the node; otherwise the reason is one of `STATE_REASONS` or of
  ``Accepted``.
- ``Stalled``: only present while the Remote waits for a person.

While a bridge serves the node, the status also has its pods and resources.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from bridge.crds.remote_crd import DEFAULT_KEYS, DEFAULT_LEAVE_SECONDS
from bridge.fleet.fleet_report import NodeUse, RemoteReport, RemoteState
from bridge.fleet.joined_kind import Contents, Rejection, after_deletion, is_leaving
from sync.kube.api_resources import REMOTES
from sync.kube.client import KubeClient
from translators.merge_patch import merge_patch
from translators.object_accessors import (
    Object,
    condition_of,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.timestamps import format_time

#: Reasons of the condition Ready by the state of the join.
STATE_REASONS: Mapping[RemoteState, str] = {
    "waiting": "Waiting",
    "joining": "Joining",
    "running": "Joined",
    "retrying": "Retrying",
    "stopping": "Stopping",
    "leaving": "Leaving",
    "left": "Left",
}
_MESSAGES: Mapping[RemoteState, str] = {
    "waiting": "the previous join of this node or port has not stopped yet",
    "joining": "the bridge checks both clusters",
    "running": "the bridge serves the node",
    "retrying": "the last attempt failed",
    "stopping": "the join stops",
    "leaving": "pods, copies and the node are removed, as by bridge leave",
    "left": "the node has left",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Longest ``spec.leaveTimeout`` in seconds: the schema admits numbers that no date can hold.
MAX_LEAVE_SECONDS = 365 * 86400.0
#: Minimum seconds between a write of the status and one of the node's pods and resources alone,
#: which change all the time on a busy remote.
USE_SECONDS = 30.0
_USE_FIELDS = ("pods", "allocatable")
#: Longest message of a condition, in characters.
MAX_MESSAGE = 1024


class RemoteKind:
    """Remotes (`JoinedKind`)."""

    resource = REMOTES
    missing = "`bridge crds | kubectl apply -f -` defines it, and `bridge rbac fleet` grants access"

    def __init__(self) -> None:
        # When the status of each Remote was written, by UID.
        self._written: dict[str, datetime] = {}

    def node_name(self, joined: Object) -> str:
        """`JoinedKind.node_name`."""
        return node_name(joined)

    def secret_name(self, joined: Object) -> str:
        """`JoinedKind.secret_name`."""
        return secret_name(joined)

    def contents(
        self, joined: Object, secret: Object | None, *, has_file: bool
    ) -> Contents | Rejection:
        """`JoinedKind.contents`."""
        wanted, key = secret_name(joined), secret_key(joined)
        options = (joined.get("spec") or {}).get("options") or {}
        if secret is None:
            if has_file:
                return Contents(options)
            return Rejection(
                "SecretNotFound",
                f"home: there is no Secret {wanted} in namespace {namespace_of(joined)}; create it "
                "with the kubeconfig of the remote",
            )
        content = secret_value(secret, (key,) if key else DEFAULT_KEYS)
        return content if isinstance(content, Rejection) else Contents(options, content)

    def abandoned_at(self, joined: Object) -> datetime | None:
        """`JoinedKind.abandoned_at`."""
        return abandoned_at(joined)

    def labels(self, joined: Object, now: datetime) -> Mapping[str, str]:  # noqa: ARG002
        """None: those of the options are the join's."""
        return {}

    def was_ready(self, joined: Object) -> bool:
        """`JoinedKind.was_ready`."""
        return condition_of(joined, "Ready").get("status") == "True"

    def forget(self, uids: set[str]) -> None:
        """`JoinedKind.forget`."""
        for uid in self._written.keys() - uids:
            del self._written[uid]

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
        """Writes the status. Changes of the node's use alone wait for `USE_SECONDS`."""
        before = joined.get("status") or {}
        state, error = (report.state, report.error) if report is not None else (None, "")
        use = report.use() if report is not None and state == "running" else None
        wanted = status(joined, rejection=rejection, state=state, error=error, use=use, now=now)
        written = self._written.get(uid_of(joined))
        is_soon = written is not None and (now - written).total_seconds() < USE_SECONDS
        if wanted == before or (is_soon and _differ_by_use_alone(before, wanted)):
            return
        if not await may_write():
            return
        self._written[uid_of(joined)] = now
        known = {**dict.fromkeys(_USE_FIELDS), **wanted}
        await home.patch(
            REMOTES,
            name_of(joined),
            {"status": merge_patch(before, known, exact=frozenset(_USE_FIELDS))},
            namespace=namespace_of(joined),
            subresource="status",
            decode=False,
        )


def _differ_by_use_alone(before: Object, wanted: Object) -> bool:
    """Whether both have the node's use, and nothing else differs."""
    return before.keys() == wanted.keys() and all(
        before[key] == it for key, it in wanted.items() if key not in _USE_FIELDS
    )


def secret_value(secret: Object, keys: Sequence[str]) -> bytes | Rejection:
    """The value of the first of the keys that the Secret has."""
    data = secret.get("data") or {}
    found = next((it for it in keys if it in data), None)
    if found is None:
        message = f"Secret {name_of(secret)} has no key {' or '.join(keys)}"
        return Rejection("SecretInvalid", message)
    try:
        return base64.b64decode(data[found], validate=True)
    except (binascii.Error, ValueError):
        return Rejection("SecretInvalid", f"Secret {name_of(secret)}: {found} is not base64")


def node_name(remote: Object) -> str:
    """The name of the virtual node."""
    return str((remote.get("spec") or {}).get("nodeName") or name_of(remote))


def secret_name(remote: Object) -> str:
    """The Secret with the kubeconfig; "" if the spec names none."""
    return str(((remote.get("spec") or {}).get("kubeconfigSecret") or {}).get("name") or "")


def secret_key(remote: Object) -> str:
    """The key in the Secret; "" for the default."""
    return str(((remote.get("spec") or {}).get("kubeconfigSecret") or {}).get("key") or "")


def abandoned_at(remote: Object) -> datetime | None:
    """When the bridge leaves without the remote, if that does not answer; None if not deleted."""
    text = str((remote.get("spec") or {}).get("leaveTimeout") or "")
    seconds = sum(
        float(number) * _UNITS[unit or "s"]
        for number, unit in re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", text)
    )
    seconds = min(seconds, MAX_LEAVE_SECONDS) if text else DEFAULT_LEAVE_SECONDS
    return after_deletion(remote, seconds)


def status(
    remote: Object,
    *,
    rejection: Rejection | None,
    state: RemoteState | None,
    error: str,
    use: NodeUse | None = None,
    now: datetime,
) -> Object:
    """The status of a Remote; times of conditions that have not changed are kept.

    ``state`` is that of the join, None if there is none. A rejected change leaves the previous join
    as it is: both are shown.
    """
    generation = metadata(remote).get("generation") or 0
    conditions = [_accepted(rejection), _ready(rejection, state, error)]
    if rejection is not None and not is_leaving(remote):
        conditions.append(("Stalled", "True", rejection.reason, rejection.message))
    before = {
        it.get("type"): it
        for it in ((remote.get("status") or {}).get("conditions") or ())
        if isinstance(it, dict)
    }
    found = []
    for kind, value, reason, message in conditions:
        condition = {
            "type": kind,
            "status": value,
            "observedGeneration": generation,
            "reason": reason,
            "message": message[:MAX_MESSAGE],
        }
        found.append(condition | {"lastTransitionTime": _since(before.get(kind), value, now)})
    shown = {} if use is None else {"pods": use.pods, "allocatable": dict(use.allocatable)}
    return {
        "observedGeneration": generation,
        "nodeName": node_name(remote),
        **shown,
        "conditions": found,
    }


_Condition = tuple[str, str, str, str]


def _since(before: Object | None, value: str, now: datetime) -> str:
    """The time of the condition's last change of status."""
    if before is not None and before.get("status") == value:
        return str(before.get("lastTransitionTime") or format_time(now))
    return format_time(now)


def _accepted(rejection: Rejection | None) -> _Condition:
    if rejection is None:
        return "Accepted", "True", "Valid", "spec and Secret are valid"
    return "Accepted", "False", rejection.reason, rejection.message


def _ready(rejection: Rejection | None, state: RemoteState | None, error: str) -> _Condition:
    if state is None:
        if rejection is not None:
            return "Ready", "False", rejection.reason, rejection.message
        return "Ready", "False", "Pending", "the bridge has not started the join yet"
    value = "True" if state == "running" else "False"
    return "Ready", value, STATE_REASONS[state], error or _MESSAGES[state]
