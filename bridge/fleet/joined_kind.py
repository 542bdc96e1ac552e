"""The kinds of home's objects that describe joins, as `bridge.fleet.object_source` sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from bridge.crds.remote_crd import FINALIZER
from bridge.fleet.fleet_report import RemoteReport
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata
from translators.timestamps import parse_time


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an object is not accepted."""

    reason: str
    """In CamelCase, as of a condition or an Event."""
    message: str
    """The cause, and what to do, without secrets."""


@dataclass(frozen=True, slots=True)
class ProfileAccess:
    """How to reach the cluster of a ClusterProfile; all but ``plugin`` is untrusted."""

    provider: str
    """The name of the access provider."""
    cluster: Object
    """The ``cluster`` of the access provider."""
    token: bytes | None = field(default=None, repr=False)
    """The token of a Secret."""
    kubeconfig: bytes | None = field(default=None, repr=False)
    """The kubeconfig of a Secret, of which only the credential counts."""
    context: str = ""
    """The context of ``kubeconfig``; "" is the current one."""
    plugin: Object | None = field(default=None, repr=False)
    """The ``exec`` of a kubeconfig, as the operator wrote it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The join that an object and its Secret describe; without credentials, those that an earlier
    state of the object had count."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the join, by the property of a Remote's ``spec.options``."""
    kubeconfig: bytes | None = field(default=None, repr=False)
    """From the Secret, untrusted."""
    access: ProfileAccess | None = None


class JoinedKind(Protocol):
    """A kind of objects, each of which describes one join."""

    @property
    def resource(self) -> Resource:
        """The resource."""

    @property
    def missing(self) -> str:
        """What to do where the resource is not defined."""

    def node_name(self, joined: Object) -> str:
        """The name of the virtual node."""

    def secret_name(self, joined: Object) -> str:
        """The Secret with the credential, in the namespace of the object; "" if there is none."""

    def contents(
        self, joined: Object, secret: Object | None, *, has_file: bool
    ) -> Contents | Rejection:
        """The join that the object describes. ``has_file``: whether no credential is needed,
        because that of an earlier state counts."""

    def abandoned_at(self, joined: Object) -> datetime | None:
        """When the bridge leaves without the remote, if that does not answer; None if the object
        is not deleted."""

    def labels(self, joined: Object, now: datetime) -> Mapping[str, str]:
        """Labels for the Node that may change while the join runs."""

    def was_ready(self, joined: Object) -> bool:
        """Whether a bridge may serve the node, by what the object shows."""

    def forget(self, uids: set[str]) -> None:
        """Forgets all objects but those of these UIDs."""

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
        """Writes the state of the join for users, if it has changed and ``may_write``."""


def is_leaving(joined: Object) -> bool:
    """Whether the object is being deleted."""
    return bool(metadata(joined).get("deletionTimestamp"))


def after_deletion(joined: Object, seconds: float) -> datetime | None:
    """So many seconds after the deletion; None if the object is not deleted."""
    if not is_leaving(joined):
        return None
    return parse_time(str(metadata(joined)["deletionTimestamp"])) + timedelta(seconds=seconds)


def has_finalizer(joined: Object) -> bool:
    """Whether the bridge still keeps the object."""
    return FINALIZER in (metadata(joined).get("finalizers") or ())
