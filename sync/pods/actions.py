"""Input and output of `sync.pods.action_planner`: the state of a pod, and the possible actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from translators.object_accessors import HomeUid, Object, RemoteUid
from translators.pods.resize_condition import ResizeRejection
from translators.pods.update import Subresource


@dataclass(frozen=True, slots=True)
class PodState:
    """The known state of one pod when it is reconciled."""

    home: Object | None
    """The pod bound to the virtual node, or None."""
    remote: Object | None
    """The pod of that name in the remote, if this virtual node owns it."""
    last_remote: Object | None = None
    """The last state of a deleted remote pod of this home pod; None if unknown."""
    create_pending: bool = False
    """This process sent a create request whose outcome is unknown; it may repeat the request."""
    absence_confirmed: bool = False
    """The remote's API server has confirmed that it has no such pod of this virtual node."""
    is_cache_complete: bool = True
    """The cache of remote pods has skipped none: one that it lacks does not exist, if no request is
    pending."""
    remote_capacity: Mapping[str, int] = field(default_factory=dict)
    """The sum of all remote nodes; {} if unknown."""
    node: Object | None = None
    """The virtual node at home; None if unknown."""
    rejected_resize: ResizeRejection | None = None
    """The last resize that the remote's API server rejected."""
    eviction_seconds: float | None = None
    """Seconds until the home pod is deleted because the node of its remote pod cannot confirm the
    deletion; None if the node can (`sync.pods.pod_controller`)."""
    ineffective_updates: Mapping[Subresource, str] = field(default_factory=dict)
    """Digests of the patches that the remote's API server accepted and its admission reverted, by
    subresource."""


@dataclass(frozen=True, slots=True)
class ConfirmAbsence:
    """GET the remote pod to confirm that it does not exist, then plan again."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create the remote pod; one that must not run twice gets a scheduling gate
    (`translators.pods.restart_policy_never`)."""


@dataclass(frozen=True, slots=True)
class Ungate:
    """Mark the home pod as possibly started, unless it is ``marked``; then remove the scheduling
    gate of the remote pod, if it is ``gated``."""

    uid: RemoteUid
    marked: bool
    gated: bool


@dataclass(frozen=True, slots=True)
class Update:
    """Patch the remote pod, or a subresource of it, to match the home pod."""

    uid: RemoteUid
    patch: Object
    subresource: Subresource = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the remote pod; ``grace_seconds`` None means the pod's own grace period."""

    uid: RemoteUid
    grace_seconds: int | None


@dataclass(frozen=True, slots=True)
class DeleteIfUnbound:
    """Delete an unscheduled remote pod at exactly this resourceVersion: a pod that was bound
    meanwhile stays, and its event requeues the key."""

    uid: RemoteUid
    version: str


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reconcile again in ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DeleteOrphan:
    """Delete a remote pod once home's API server confirms that its home pod no longer exists."""

    uid: RemoteUid
    home_uid: HomeUid | None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Patch the home pod's status. ``event``: (reason, message) of an Event to record, of type
    Warning unless ``warning`` is False."""

    patch: Object
    event: tuple[str, str] | None = None
    warning: bool = True


@dataclass(frozen=True, slots=True)
class EvictHomePod:
    """Delete the home pod with its own grace period, as the taint-eviction controller does."""


@dataclass(frozen=True, slots=True)
class RemoveHomePod:
    """Delete the home pod with a grace period of 0: its remote pod no longer exists."""


Action = (
    ConfirmAbsence
    | Create
    | Ungate
    | Update
    | Delete
    | DeleteIfUnbound
    | RequeueAfter
    | DeleteOrphan
    | WriteStatus
    | EvictHomePod
    | RemoveHomePod
)
