"""Carries out the actions of `sync.pods.action_planner`, one after the other.

- A pod is created after its PVCs, its namespace, the ConfigMaps, Secrets and Services that it
  needs, and its service account tokens. If one of them is blocked, or an API server rejects the
  pod, the pod's status and one Event state the reason, and the error is raised for a retry.
- The outcome of a create request is unknown until an API server answered: `is_create_pending`.
- A pod that another client deletes again and again is created at growing intervals
  (`sync.base.repeated_writes`).
- Each answer to a write is put into the cache at once, which calls the handlers. Meanwhile
  `is_own_status_write` or `is_own_create` is true, so that a write does not requeue its own key.
- After a rejected update the other actions are still carried out; then the rejection is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from sync.base import clock, exception_summary
from sync.base.namespace_fair_cache import FairCache
from sync.base.repeated_writes import OVERWRITES, REPORTED, RepeatedWrites, overwritten_message
from sync.cache.store import Key, Store
from sync.declaration.controller_context import ControllerContext
from sync.kube.api_errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    Throttled,
)
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.mirror.copy_controller import CopyController
from sync.namespaces.per_namespace_informers import UNREAD_SECONDS
from sync.pods import action_planner
from sync.pods.actions import (
    Action,
    ConfirmAbsence,
    Create,
    Delete,
    DeleteIfUnbound,
    DeleteOrphan,
    EvictHomePod,
    PodState,
    RemoveHomePod,
    RequeueAfter,
    Ungate,
    Update,
    WriteStatus,
)
from sync.pods.pod_update_writer import PodUpdater
from sync.pods.remote_pod_lookup import RemotePodLookup
from sync.pods.service_account_tokens import TokenController
from sync.pods.status_writer import StatusWriter
from sync.references.reference_keys import CopyKey
from sync.runtime.controller import ReconcileBlocked, not_cached
from sync.runtime.log_fields import changes, name_fields, object_fields
from sync.runtime.workqueue import WorkQueue
from sync.storage.pvc_lookup import PvcLookup
from translators import pod_security
from translators.field_paths import FieldMessage
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import LABEL_NODE, has_home_uid, is_owned
from translators.pods import (
    active_deadline,
    fields_dropped_by_remote,
    remote_pod,
    restart_policy_never,
    synthetic_status,
)
from translators.storage.pvc_resolution import (
    REASON_WAITING,
    Unresolved,
    mounted_claims,
    replace_claims,
)
from translators.virtual_node_identity import Identity

log = logging.getLogger(__name__)

#: Seconds in which the cache shows a deletion that was sent. A remote that was restored from a
#: backup does not have it any more.
SENT_SECONDS = 30.0
#: ``status.reason`` of a pod that the remote's API server rejects; otherwise ``RemoteRefused``.
_REASONS: dict[type[ApiError], str] = {
    Forbidden: "RemoteForbidden",
    Invalid: "RemoteInvalid",
    NotFound: "RemoteNotFound",
}


class ActionExecutor:
    """``priority_classes`` is the cache of the remote's PriorityClasses; ``queue`` takes keys that
    are to be reconciled again; ``on_created`` is called with the UID of each home pod whose remote
    pod is known to exist."""

    def __init__(
        self,
        context: ControllerContext,
        lookup: RemotePodLookup,
        *,
        copies: CopyController,
        tokens: TokenController,
        priority_classes: Store,
        queue: WorkQueue[Key],
        on_created: Callable[[str], object],
    ) -> None:
        self._home = context.home
        self._remote = context.remote
        self._policy = context.policy
        self._identity = context.identity
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._remote_nodes = context.remote_nodes
        self._watches = context.watches
        self._references = context.references
        self._namespaces = context.namespaces
        self._events = context.events
        self._now = context.now
        self._lookup = lookup
        self._copies = copies
        self._tokens = tokens
        self._priority_classes = priority_classes
        self._queue = queue
        self._on_created = on_created
        self._claims = PvcLookup(context, context.storage) if context.storage else None
        self.updates = PodUpdater(context, copies)
        self._creator = CreationCheck(context.remote)
        self._statuses = StatusWriter(
            context.home, home_pods=context.home_pods, events=context.events
        )
        # UIDs of home pods: whose create request has an unknown outcome, and whose last create
        # request failed with a server error.
        self._create_pending: set[str] = set()
        self._server_failed: set[str] = set()
        # The creations that were answered, by the home pod's UID.
        self._repeated: RepeatedWrites[str] = RepeatedWrites()
        # The grace period of each deletion that was sent, and when, by the remote pod's UID; and
        # the UIDs of removed home pods. The caches show both soon.
        self._deletions: dict[str, tuple[int | None, float]] = {}
        self._removed: set[str] = set()
        self.is_own_create = False
        """Whether the change being handled is the pod that was just created, exactly as sent."""

    @property
    def is_own_status_write(self) -> bool:
        """Whether the change being handled is a status write of the bridge and nothing else."""
        return self._statuses.writing

    def is_create_pending(self, uid: str) -> bool:
        return uid in self._create_pending

    def settle_creation(self, uid: str) -> None:
        """Forgets earlier create requests: the remote pod exists, or the home pod was deleted."""
        self._create_pending.discard(uid)
        self._server_failed.discard(uid)
        self._on_created(uid)

    def forget_deletion(self, remote_uid: str) -> None:
        self._deletions.pop(remote_uid, None)

    def forget_removal(self, uid: str) -> None:
        """Forgets a removal: the cache of home pods shows it, or shows that it failed."""
        self._removed.discard(uid)

    async def execute(self, key: Key, state: PodState, actions: list[Action]) -> None:
        """Carries out the actions in order. Raises KubeError and ReconcileBlocked."""
        rejected: ApiError | ReconcileBlocked | None = None
        for action in actions:
            try:
                await self._execute(key, state, action)
            except (Forbidden, Invalid, ReconcileBlocked) as error:
                if not isinstance(action, Update):
                    raise
                rejected = error
        if rejected is not None:
            raise rejected

    async def _execute(self, key: Key, state: PodState, action: Action) -> None:
        match action:
            case WriteStatus(patch, event, warning):
                await self._statuses.write(_required(state.home), patch, event, warning=warning)
            case Create():
                await self._create(key, _required(state.home))
            case Ungate():
                await self._ungate(key, _required(state.home), action)
            case Update():
                await self._update(key, _required(state.home), action)
            case Delete(uid, grace):
                await self._delete(key, uid, grace)
            case DeleteIfUnbound(uid, version):
                namespace, name = self._lookup.remote_key(key)
                await self._remote.delete(
                    PODS, name, namespace=namespace, uid=uid, resource_version=version
                )
            case RequeueAfter(seconds):
                self._queue.add_after(key, seconds)
            case DeleteOrphan(uid, home_uid):
                await self._delete_orphan(key, uid, home_uid)
            case EvictHomePod():
                await self._evict(key, _required(state.home), _required(state.remote))
            case RemoveHomePod():
                await self._remove_home(key, _required(state.home))
            case ConfirmAbsence():
                raise AssertionError("ConfirmAbsence is the only action of its plan")

    async def _update(self, key: Key, home: Object, update: Update) -> None:
        wait = await self.updates.send(home, update)
        if wait is not None:
            self._queue.add_after(key, wait)

    # -- create ----------------------------------------------------------------------------

    async def _create(self, key: Key, home: Object) -> None:
        if (delayed := self._repeated.delayed(uid_of(home))) is not None:
            _, seconds = delayed
            self._queue.add_after(key, seconds)
            return
        namespace = HomeNamespace(key.namespace)
        references = list(self._references.keys_of(home))
        is_watched = self._watches.get(namespace) is not None
        if not is_watched or not all(map(self._references.is_readable, references)):
            await self._wait_for_home(key, home, references)
            return
        try:
            claims = await self._resolve_claims(home)
            remote_namespace = await self._namespaces.ensure(namespace)
            omitted = await self._copies.ensure(home)
            # Requested when the pod was first seen, in parallel with the copies.
            await self._tokens.ensure(home)
            translated = remote_pod.without_optional_references(
                self._translate(home, claims), omitted
            )
            if controller := self._namespaces.controller_of_pods(namespace):
                translated.pod["metadata"]["ownerReferences"] = [controller]
            await self._send_create(key, home, remote_namespace, translated)
        except ReconcileBlocked as blocked:
            await self._report_not_created(key, home, blocked.reason, blocked.message)
            raise
        except Throttled:
            raise  # The server is overloaded; the pod is not at fault.
        except ServerError as error:
            await self._report_server_error(key, home, error)
            raise
        except ApiError as error:
            reason = _REASONS.get(type(error), "RemoteRefused")
            message = f"{error.side}: the API server rejects a request for the pod: {error.message}"
            if error.side == "remote" and pod_security.is_violation(error.message):
                reason = pod_security.REASON
                message += f"; {self._namespaces.explain_pod_security(namespace)}"
            await self._report_not_created(key, home, reason, message)
            raise

    async def _wait_for_home(self, key: Key, home: Object, references: list[CopyKey]) -> None:
        """Reports why the bridge does not know what the pod needs, unless the home cluster has
        yet to answer. `PodController.requeue_namespace` and `requeue_reference` queue the
        key again."""
        namespace = HomeNamespace(key.namespace)
        if not any(map(self._references.is_pending, references)):
            forbidden = self._references.forbidden(references)
            blocked = self._watches.missing_permission(namespace, forbidden)
            if blocked is not None:
                await self._report_not_created(key, home, blocked.reason, blocked.message)
                return
        unread = self._references.unreadable(references) or self._watches.unreadable(namespace)
        if unread is not None:
            await self._report_waiting(key, home, unread.reason, unread.message, once_each=True)
            raise unread
        self._queue.add_after(key, UNREAD_SECONDS)

    async def _resolve_claims(self, home: Object) -> dict[str, str]:
        """The remote PVCs of the pod, by the name of the volume; none if the bridge provisions no
        volumes. Raises ReconcileBlocked and KubeError."""
        if self._claims is None:
            return {}
        claims = self._claims.claims_of(home)
        if isinstance(claims, Unresolved) and claims.reason == REASON_WAITING:
            await self._claims.refresh(home)
            claims = self._claims.claims_of(home)
        if isinstance(claims, Unresolved):
            raise ReconcileBlocked(claims.reason, claims.message)
        return claims

    async def _send_create(
        self, key: Key, home: Object, namespace: str, translated: remote_pod.TranslatedPod
    ) -> None:
        await self._creator.dry_run(home, translated.pod, namespace=namespace)
        self._create_pending.add(uid_of(home))
        is_as_sent = False
        try:
            created = await self._remote.create(PODS, translated.pod, namespace=namespace)
        except AlreadyExists:
            created = await self._remote.get(PODS, key.name, namespace=namespace)
            if not self._lookup.is_counterpart(created, key):
                raise _conflict(namespace, key.name, created, self._identity) from None
            if not has_home_uid(created, uid_of(home)):
                # A previous pod of that name, missing in the cache; its deletion requeues the key.
                self._remote_pods.observe_write(created)
                return
            await self._creator.check_created(home, translated.pod, created)
        else:
            pruned = await self._creator.check_created(home, translated.pod, created)
            is_as_sent = _is_first_start(home) and not restart_policy_never.is_gated(created)
            fields = object_fields("Pod", home, cluster="remote")
            changes.info(
                "pod %s: created in the remote, namespace %s", key, namespace, extra=fields
            )
            if dropped := [*translated.dropped, *pruned]:
                self._events.warn(home, "FieldDropped", "; ".join(map(str, dropped)))
            if self._repeated.sent(key.namespace, uid_of(home), "create") == REPORTED:
                self._events.warn(home, OVERWRITES, overwritten_message("the remote pod"))
        self.settle_creation(uid_of(home))
        self.is_own_create = is_as_sent
        self._remote_pods.observe_write(created)
        self.is_own_create = False
        if self._lookup.cached(key) is None and not self._remote_pods.is_complete:
            raise not_cached(f"pod {namespace}/{key.name}")

    async def check_unconfirmed_create(self, key: Key, home: Object, created: Object) -> None:
        """Checks a pod whose create request was not answered. Raises as
        `CreationCheck.check_created`."""
        try:
            claims = mounted_claims(created) if self._claims is not None else {}
            await self._creator.check_created(home, self._translate(home, claims).pod, created)
        except ReconcileBlocked as blocked:
            await self._report_not_created(key, home, blocked.reason, blocked.message)
            raise

    def _translate(self, home: Object, claims: Mapping[str, str]) -> remote_pod.TranslatedPod:
        classes = frozenset(map(name_of, self._priority_classes))
        translated = remote_pod.translate_pod(home, self._policy, priority_classes=classes)
        return replace(translated, pod=replace_claims(translated.pod, claims))

    async def _ungate(self, key: Key, home: Object, action: Ungate) -> None:
        if not action.marked and not await self._statuses.write(
            home, restart_policy_never.started_status(now=self._now())
        ):
            return  # Without the mark a later plan could start the pod a second time.
        if action.gated:
            patch = {"metadata": {"uid": action.uid}, **restart_policy_never.ungate_patch()}
            namespace, name = self._lookup.remote_key(key)
            ungated = await self._remote.patch(
                PODS, name, patch, namespace=namespace, kind="strategic"
            )
            self._remote_pods.observe_write(ungated)

    # -- delete ----------------------------------------------------------------------------

    async def _delete(self, key: Key, uid: str, grace: int | None) -> None:
        sent, at = self._deletions.get(uid, (..., 0.0))
        if sent == grace and (left := at + SENT_SECONDS - clock.now()) > 0:
            self._queue.add_after(key, left)
            return
        namespace, name = self._lookup.remote_key(key)
        await self._remote.delete(PODS, name, namespace=namespace, uid=uid, grace_seconds=grace)
        self._deletions[uid] = grace, clock.now()
        fields = name_fields("Pod", key.name, namespace=key.namespace, cluster="remote")
        changes.info("pod %s: deletion forwarded to the remote", key, extra=fields)

    async def _delete_orphan(self, key: Key, uid: str, home_uid: str | None) -> None:
        """Deletes a remote pod, unless home's API server still has its home pod."""
        # Not a GET, which the Node authorizer forbids for a pod that does not exist.
        selected = f"metadata.name={key.name},spec.nodeName={self._identity.node}"
        found = await self._home.list(PODS, namespace=key.namespace, fields=selected)
        for home in found.items:
            if uid_of(home) == home_uid:
                self._home_pods.observe_write(home)
                return
        namespace, name = self._lookup.remote_key(key)
        await self._remote.delete(PODS, name, namespace=namespace, uid=uid)
        fields = name_fields("Pod", key.name, namespace=key.namespace, cluster="remote")
        changes.info("pod %s: has no home pod, deleted in the remote", key, extra=fields)

    async def _evict(self, key: Key, home: Object, remote: Object) -> None:
        """Deletes the home pod, so that its controller replaces it, after a GET has confirmed that
        the remote pod is still being deleted: after an outage the caches may be stale."""
        if self._remote_nodes.error is not None:
            raise ReconcileBlocked(
                "RemoteUnreachable", "remote: the nodes cannot be watched, so their state is stale"
            )
        present = await self._lookup.read(key)
        if present is None or uid_of(present) != uid_of(remote):
            return
        node = (remote.get("spec") or {}).get("nodeName")
        message = (
            f"deleting the pod: it is being deleted in the remote cluster, whose node {node} is "
            "not Ready and cannot confirm the deletion"
        )
        await self._home.delete(PODS, key.name, namespace=key.namespace, uid=uid_of(home))
        self._events.warn(home, "RemoteNodeLost", message)
        fields = object_fields("Pod", home, cluster="home")
        changes.info("pod %s: RemoteNodeLost: %s", key, message, extra=fields)

    async def _remove_home(self, key: Key, home: Object) -> None:
        """Deletes the home pod. While a finalizer keeps the pod, the request is not repeated."""
        uid = uid_of(home)
        if uid in self._removed:
            return
        namespace = key.namespace
        await self._home.delete(PODS, key.name, namespace=namespace, uid=uid, grace_seconds=0)
        if self._home_pods.store.get(key) is not None:
            self._removed.add(uid)
        fields = object_fields("Pod", home, cluster="home")
        changes.info("pod %s: removed from home", key, extra=fields)

    # -- report ----------------------------------------------------------------------------

    async def report_defect(self, key: Key, home: Object, error: Exception) -> None:
        """Reports a defect of the bridge in the pod's status. Raises nothing."""
        message = (
            f"the bridge failed on this pod ({exception_summary.summary(error)}): this is a defect "
            "of the bridge, please report it; the bridge retries"
        )
        try:
            await self._report_not_created(key, home, "BridgeDefect", message)
        except Exception as second:  # noqa: BLE001  # the controller has logged the defect
            log.debug("pod %s: defect not reported: %s", key, exception_summary.summary(second))

    async def _report_not_created(self, key: Key, home: Object, reason: str, message: str) -> None:
        """Reports why the pod was not created, and forgets a create request of unknown outcome."""
        self._create_pending.discard(uid_of(home))
        await self._report_waiting(key, home, reason, message)

    async def _report_server_error(self, key: Key, home: Object, error: ServerError) -> None:
        """Reports the second server error in a row: the first may come from a restart. The pod may
        have been created."""
        if uid_of(home) not in self._server_failed:
            self._server_failed.add(uid_of(home))
            return
        reason = "HomeServerError" if error.side == "home" else "RemoteServerError"
        message = f"{error.side}: creating the pod failed: {error.message}"
        await self._report_waiting(key, home, reason, message, once_each=True)

    async def _report_waiting(
        self, key: Key, home: Object, reason: str, message: str, *, once_each: bool = False
    ) -> None:
        current = self._home_pods.store.get(key)
        if current is None or uid_of(current) != uid_of(home) or is_deleting(current):
            return
        for action in action_planner.report_waiting(
            current, reason=reason, message=message, now=self._now(), once_each=once_each
        ):
            await self._execute(key, PodState(current, None), action)
        if (left := active_deadline.deadline_remaining(current, now=self._now())) is not None:
            self._queue.add_after(key, left)


def _conflict(namespace: str, name: str, existing: Object, identity: Identity) -> ReconcileBlocked:
    if is_owned(existing, identity):
        node = (metadata(existing).get("labels") or {}).get(LABEL_NODE)
        return ReconcileBlocked(
            "RemotePodTerminating",
            f"remote: the previous pod of this name, {namespace}/{name} of virtual node {node}, "
            "still exists; this pod is created after its deletion",
        )
    return ReconcileBlocked(
        "RemoteClash",
        f"remote: pod {namespace}/{name} exists and is not managed by this virtual node; "
        "rename the home pod or delete that one",
    )


def _is_first_start(home: Object) -> bool:
    """Whether the pod has no status or update to write before its remote pod is scheduled."""
    has_run = bool((home.get("status") or {}).get("containerStatuses"))
    is_debugged = bool((home.get("spec") or {}).get("ephemeralContainers"))
    return not (has_run or is_debugged or synthetic_status.is_creation_blocked(home))


def _required(pod: Object | None) -> Object:
    if pod is None:
        raise AssertionError("a plan without this pod has no action on it")
    return pod


log = logging.getLogger(__name__)

#: ``status.reason`` of a pod that is not created because the remote drops a restricting field.
REASON = "RemoteDropsField"


class CreationCheck:
    """Checks that the remote's API server keeps the fields that restrict a pod.

    The answer to each create request is compared with the request
    (`translators.pods.fields_dropped_by_remote`): a pod without a field that restricts it is
    deleted again, and rejected with `REASON`. The pod could start before it is deleted, so a dry
    run precedes the create request of a pod with restricting fields that supported servers are
    known to drop, and of a pod that was rejected before. If a webhook of the remote does not
    support dry runs (400), only the comparison afterwards remains.

    ``client`` is the remote's. Every method raises KubeError.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        # UIDs of rejected home pods; a forgotten one is created and deleted once more.
        self._rejected: FairCache[str, bool] = FairCache()

    async def dry_run(self, home: Object, sent: Object, *, namespace: str) -> None:
        """Sends a dry run, if the pod needs one. Raises ReconcileBlocked if the pod would lose a
        restricting field."""
        if not fields_dropped_by_remote.needs_dry_run(sent) and uid_of(home) not in self._rejected:
            return
        try:
            dry = await self._client.create(PODS, sent, namespace=namespace, dry_run=True)
        except BadRequest as error:
            log.debug("pod %s: dry run not supported: %s", name_of(sent), error)
            return
        self._check(home, fields_dropped_by_remote.pruned_fields(sent, dry))

    async def check_created(
        self, home: Object, sent: Object, created: Object
    ) -> list[FieldMessage]:
        """Returns the fields that the created pod lacks. If one of them restricts the pod, deletes
        the pod and raises ReconcileBlocked."""
        missing = fields_dropped_by_remote.pruned_fields(sent, created)
        try:
            self._check(home, missing)
        except ReconcileBlocked:
            name, namespace = name_of(created), namespace_of(created)
            await self._client.delete(PODS, name, namespace=namespace, uid=uid_of(created))
            raise
        return [field.field_message for field in missing]

    def _check(self, home: Object, missing: list[fields_dropped_by_remote.PrunedField]) -> None:
        restricting = [field.location for field in missing if field.restricts]
        if restricting:
            self._rejected.put(namespace_of(home), uid_of(home), True)
            raise ReconcileBlocked(
                REASON,
                f"remote: the API server drops {', '.join(restricting)}: "
                f"{fields_dropped_by_remote.MESSAGE}; use a remote "
                "that supports it, or remove it from the pod",
            )
        self._rejected.pop(uid_of(home))
