"""The life of the pods on the virtual node: carries out what `sync.pods.plan` decides.

One key, a home pod's namespace and name, stands for the home pod and its remote pod, so that
whatever happens to either is decided together, and one after the other. A key comes when either
pod changes, when a foreign object may have gone out of the way (a retry), and when the caches of
its namespace are complete.

A defect of the bridge that a pod which has not begun shows is told there too, `BridgeDefect`.
What cannot be done is told once, in the pod's status (whose ``reason`` is what `kubectl get pods`
shows) and as an Event, and tried again. An unreachable API server is told by the node, not here.
"""

from __future__ import annotations

import functools
import logging
import time

from sync.base import exceptions
from sync.base.fair_cache import FairCache
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    Throttled,
)
from sync.kube.resources import CONFIG_MAPS, PODS, PRIORITY_CLASSES, SECRETS, Resource
from sync.mirror.copies import CopyController, CopyKey
from sync.pods import plan
from sync.pods.creation import PodCreator
from sync.pods.evictions import NodeLossEvictions
from sync.pods.kubelet_admission import KubeletAdmission
from sync.pods.latency import PodLatency
from sync.pods.plan import Action, PodState
from sync.pods.service_account_tokens import TokenController
from sync.pods.status_writer import StatusWriter
from sync.pods.update import PodUpdater
from sync.registration.context import ControllerContext
from sync.registration.declaration import Declaration, HomeWatch, Watch
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import key_fields, name_fields, object_fields
from translators.identity import (
    LABEL_NODE,
    Identity,
    has_home_uid,
    is_in_mapped_namespace,
    is_owned,
    is_owned_by_node,
    matches_home_namespace,
    origin_of,
)
from translators.objects import (
    HomeNamespace,
    Object,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.pods import active_deadline, remote_pod, run_once, status, synthetic_status
from translators.pods.references import Reference

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: Pods reconciled at once: enough to keep the connections of both clients busy.
WORKERS = 64
#: Last states of remote pods that are gone, kept until their home pod has been dealt with.
ENDED_MAX = 10_000
#: Pods queued or reconciled at once that make a burst (pods that come one after the other are one
#: or two), and seconds after that in which its last pods may still come.
BURST, BURST_SECONDS = 4, 2.0
#: A plan may ask for another look (`ConfirmAbsence`) and then decides; more turns are a defect.
PLANS = 3


class PodController:
    """Reconciles the pods of one virtual node."""

    def __init__(
        self, context: ControllerContext, *, copies: CopyController, tokens: TokenController
    ) -> None:
        self._home = context.home
        self._remote = context.remote
        self._policy = context.policy
        self._identity = context.identity
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._remote_nodes = context.remote_nodes
        self._priority_classes = Informer(context.remote, PRIORITY_CLASSES)
        self._watches = context.watches
        self._namespaces = context.namespaces
        self._copies = copies
        self._tokens = tokens
        self._events = context.events
        self._now = context.now
        self.admission = KubeletAdmission(context.home, context.remote_nodes)
        # UIDs of home pods whose creation was tried by us, with an outcome that is not known.
        self._making: set[str] = set()
        # UIDs of home pods whose creation failed last by an error of a server.
        self._failed: set[str] = set()
        # UIDs of remote pods whose deletion was passed on, and with which grace; and of home pods
        # that were taken away. The caches show both a moment later.
        self._passed_on: dict[str, int | None] = {}
        self._removed: set[str] = set()
        # Whether the remote pod that is being told was made just now, as home's says.
        self._telling_made = False
        self._ended: FairCache[str, Object] = FairCache(ENDED_MAX)
        self._evictions = NodeLossEvictions(context.remote_nodes.store)
        self.latency = PodLatency()
        """How soon home knows."""
        self._creation = PodCreator(context.remote)
        self._statuses = StatusWriter(
            context.home, home_pods=context.home_pods, events=context.events
        )
        self._updates = PodUpdater(context, copies)
        self.controller: Controller[Key] = Controller(
            "pods", self._reconcile, workers=WORKERS, on_defect=self._tell_defect, kind="Pod"
        )
        self._burst_ends = 0.0

    def declare(self) -> Declaration:
        """What the engine runs."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_pods, self.remote_pod_changed),
                Watch(self._remote_nodes, self.remote_node_changed, replay=False),
                Watch(self._priority_classes),
            ],
            home_watches=[
                HomeWatch(resource, functools.partial(self.reference_changed, resource))
                for resource in (CONFIG_MAPS, SECRETS)
            ],
            requeue_namespace=self.requeue_namespace,
            namespace_forbidden=self.requeue_namespace,
            start=self.latency.begin,
        )

    def in_burst(self) -> bool:
        """Whether several pods are reconciled at once, or were just now."""
        queue, now = self.controller.queue, time.monotonic()
        if len(queue) + len(queue.working) >= BURST:
            self._burst_ends = now + BURST_SECONDS
        return now < self._burst_ends

    # -- what changed ----------------------------------------------------------------------

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod that is bound to the node came, changed or went."""
        obj = new or old or {}
        namespace = HomeNamespace(namespace_of(obj))
        self.latency.home_changed(old, new)
        if new is not None:
            if plan.may_run(new, self._policy):
                self._watches.retain(namespace)
        else:
            self._made(uid_of(obj))
            if not self._home_pods.store.has("namespace", namespace):
                self._watches.release(namespace)
        if new is None or metadata(new).get("deletionGracePeriodSeconds") != 0:
            self._removed.discard(uid_of(obj))
        key = Key(namespace, name_of(obj))
        ended = new is None and self._known(key) is None
        if not ended and not self._statuses.writing:
            self.controller.queue.add(key)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A remote pod of this home came, changed or went."""
        obj = new or old or {}
        origin = origin_of(obj)
        self._evictions.pod_changed(old, new)
        if origin is None:
            return
        if not is_owned_by_node(obj, self._identity):
            key = Key(origin.namespace, origin.name)
            moved = is_owned(obj, self._identity) and self._home_pods.store.get(key)
            if new is None and moved:
                # It was another virtual node's of this home: the name is free.
                self.controller.queue.add(key)
            return
        if not is_in_mapped_namespace(obj, self._identity):
            return
        if new is None:
            self._ended.put(namespace_of(obj), origin.uid, obj)
            self._passed_on.pop(uid_of(obj), None)
        _tell_phase(old, new)
        if not self._telling_made:
            key = Key(origin.namespace, origin.name)
            self.latency.remote_changed(key)
            self.controller.queue.add(key)

    def remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        """A node of the remote came, changed or went."""
        self.admission.remote_node_changed(old, new)
        for key in self._evictions.affected(old, new):
            self.controller.queue.add(key)

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """The namespace's ConfigMaps, Secrets and Services are known: its pods can go on. Or home
        refuses them, which is told."""
        for home in self._home_pods.store.by_index("namespace", namespace):
            self.controller.queue.add(Key(namespace, name_of(home)))

    def reference_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Requeues the pods that may wait for a ConfigMap or Secret that was created at home."""
        if old is not None or new is None:
            return
        reference = CopyKey(resource, HomeNamespace(namespace_of(new)), name_of(new))
        for home in self._home_pods.store.by_index("reference", reference):
            if synthetic_status.is_creation_blocked(home):
                self.controller.queue.add(Key(namespace_of(home), name_of(home)))

    # -- where a pod is --------------------------------------------------------------------

    def remote_pod_of(self, home: Object) -> Object | None:
        """The remote pod that stands for this very home pod, or None."""
        remote = self._known(Key(namespace_of(home), name_of(home)))
        return remote if remote is not None and has_home_uid(remote, uid_of(home)) else None

    def _known(self, key: Key) -> Object | None:
        remote = self._remote_pods.store.get(self._remote_key(key))
        return remote if remote and self._is_counterpart(remote, key) else None

    def _is_counterpart(self, remote: Object, key: Key) -> bool:
        """Whether a remote pod at the key's place is this node's, and of the key's namespace."""
        own = is_owned_by_node(remote, self._identity)
        return own and matches_home_namespace(remote, key.namespace)

    def _remote_key(self, key: Key) -> Key:
        return Key(self._identity.remote_namespace(HomeNamespace(key.namespace)), key.name)

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        news = self.latency.take_change(key)
        try:
            wrote = await self._agree(key)
        except BaseException:
            self.latency.restore_change(key, news)
            raise
        if wrote and news is not None:
            self.latency.status_written(news)

    async def _agree(self, key: Key) -> bool:
        """Makes both clusters agree on the pod, and says whether home has another status now."""
        confirmed = False
        for _ in range(PLANS):
            home = self._home_pods.store.get(key)
            uid = uid_of(home) if home is not None else ""
            remote = self._known(key)
            if remote is not None and has_home_uid(remote, uid):
                if home is not None and uid in self._making:
                    await self._check_unanswered(key, home, remote)
                self._made(uid)
            node = await self.admission.virtual_node_for(home, remote)
            state = PodState(
                home,
                remote,
                last_remote=self._ended.get(uid),
                create_pending=uid in self._making,
                absence_confirmed=confirmed,
                remote_capacity=self.admission.remote_capacity(),
                node=node,
                rejected_resize=self._updates.rejected_resize(remote)
                if remote is not None
                else None,
                eviction_seconds=self._evictions.seconds_left(remote)
                if remote is not None
                else None,
                ineffective_updates=self._updates.ineffective(remote) if remote is not None else {},
            )
            actions = plan.plan(state, self._policy, now=self._now())
            if actions != [plan.ConfirmAbsence()]:
                await self._carry_out(key, state, actions)
                return any(type(action) is plan.WriteStatus for action in actions)
            confirmed = await self._is_gone(key)
        raise ReconcileBlocked(
            "Undecided", f"pod {key} is neither here nor gone in the remote cluster"
        )

    async def _carry_out(self, key: Key, state: PodState, actions: list[Action]) -> None:
        """One after the other; an update that is refused does not keep the others back."""
        refused: ApiError | None = None
        for action in actions:
            try:
                await self._act(key, state, action)
            except (Forbidden, Invalid) as error:
                if not isinstance(action, plan.Update):
                    raise
                refused = error
        if refused is not None:
            raise refused

    async def _is_gone(self, key: Key) -> bool:
        """Asks the remote's API server. What it finds of ours is put into the cache."""
        namespace, name = self._remote_key(key)
        try:
            remote = await self._remote.get(PODS, name, namespace=namespace)
        except NotFound:
            return True
        if not self._is_counterpart(remote, key):
            return True
        self._remote_pods.observe_write(remote)
        return False

    async def _act(self, key: Key, state: PodState, action: Action) -> None:
        match action:
            case plan.WriteStatus(patch, event, warning):
                await self._statuses.write(_there(state.home), patch, event, warning=warning)
            case plan.Create():
                await self._create(key, _there(state.home))
            case plan.Ungate():
                await self._let_go(key, _there(state.home), action)
            case plan.Update():
                await self._update(key, _there(state.home), action)
            case plan.Delete(uid, grace):
                await self._delete(key, uid, grace)
            case plan.DeleteIfUnbound(uid, version):
                namespace, name = self._remote_key(key)
                await self._remote.delete(
                    PODS, name, namespace=namespace, uid=uid, resource_version=version
                )
            case plan.RequeueAfter(seconds):
                self.controller.queue.add_after(key, seconds)
            case plan.DeleteOrphan(uid, home_uid):
                await self._delete_orphan(key, uid, home_uid)
            case plan.EvictHomePod():
                await self._evict(key, _there(state.home), _there(state.remote))
            case plan.RemoveHomePod():
                await self._remove_home(key, _there(state.home))
            case plan.ConfirmAbsence():
                raise AssertionError("Confirm stands alone in a plan")

    async def _update(self, key: Key, home: Object, update: plan.Update) -> None:
        """An update that the remote undoes counts as acted on, which the next plan writes."""
        if await self._updates.send(home, update):
            self.controller.queue.add(key)

    async def _evict(self, key: Key, home: Object, remote: Object) -> None:
        """Deletes the home pod, so that its controller replaces it; it stays until the remote pod
        is gone. The remote's API server confirms first that its pod is still being deleted: the
        caches may be of before a cut."""
        if self._remote_nodes.error is not None:
            raise ReconcileBlocked(
                "RemoteUnreachable", "the state of the remote's nodes is not known"
            )
        gone = await self._is_gone(key)
        if gone or uid_of(self._known(key) or {}) != uid_of(remote):
            return
        node = (remote.get("spec") or {}).get("nodeName")
        message = (
            f"deleting the pod: it is being deleted in the remote cluster, whose node {node} is "
            "not Ready and does not confirm its end"
        )
        await self._home.delete(PODS, key.name, namespace=key.namespace, uid=uid_of(home))
        self._events.warn(home, "RemoteNodeLost", message)
        evicted = object_fields("Pod", home, cluster="home")
        changes.info("pod %s: RemoteNodeLost: %s", key, message, extra=evicted)

    async def _remove_home(self, key: Key, home: Object) -> None:
        """Takes the home pod away, once: where a finalizer keeps it, it goes with that."""
        uid = uid_of(home)
        if uid not in self._removed:
            await self._home.delete(
                PODS, key.name, namespace=key.namespace, uid=uid, grace_seconds=0
            )
            if self._home_pods.store.get(key) is not None:
                self._removed.add(uid)
            changes.info("pod %s: gone", key, extra=object_fields("Pod", home, cluster="home"))

    async def _create(self, key: Key, home: Object) -> None:
        if self._watches.get(HomeNamespace(key.namespace)) is None:
            # `requeue_namespace` brings the key back.
            if (
                waiting := self._watches.missing_permission(HomeNamespace(key.namespace))
            ) is not None:
                await self._tell(key, home, waiting.reason, waiting.message)
            return
        try:
            namespace = await self._namespaces.ensure(HomeNamespace(key.namespace))
            omitted = await self._copies.ensure(home)
            # Asked for when the pod came, so that both are waited for at once.
            await self._tokens.ensure(home)
            await self._make(key, home, namespace, omitted)
        except ReconcileBlocked as waiting:
            await self._tell(key, home, waiting.reason, waiting.message)
            raise
        except Throttled:
            raise  # The server's trouble, not the pod's.
        except ServerError as error:
            await self._tell_server_error(key, home, error)
            raise
        except ApiError as error:
            reason = _REASONS.get(type(error), "RemoteRefused")
            message = f"the {error.side} cluster refuses it: {error.message}"
            await self._tell(key, home, reason, message)
            raise

    async def _make(
        self, key: Key, home: Object, namespace: str, omitted: frozenset[Reference]
    ) -> None:
        translated = remote_pod.without_optional_references(self._translated(home), omitted)
        await self._creation.dry_run(home, translated.pod, namespace=namespace)
        self._making.add(uid_of(home))
        first = False
        try:
            made = await self._remote.create(PODS, translated.pod, namespace=namespace)
        except AlreadyExists:
            made = await self._remote.get(PODS, key.name, namespace=namespace)
            if not self._is_counterpart(made, key):
                raise _clash(namespace, key.name, made, self._identity) from None
            if not has_home_uid(made, uid_of(home)):
                # A former pod of that name, which the cache lacked; its end brings the key back.
                self._remote_pods.observe_write(made)
                return
            await self._creation.check_created(home, translated.pod, made)
        else:
            lost = await self._creation.check_created(home, translated.pod, made)
            first = _is_first(home) and not run_once.is_gated(made)
            changes.info(
                "pod %s: created in the remote, namespace %s",
                key,
                namespace,
                extra=object_fields("Pod", home, cluster="remote"),
            )
            if dropped := [*translated.dropped, *lost]:
                self._events.warn(home, "FieldDropped", "; ".join(map(str, dropped)))
        self._made(uid_of(home))
        self._telling_made = first
        self._remote_pods.observe_write(made)
        self._telling_made = False

    async def _check_unanswered(self, key: Key, home: Object, made: Object) -> None:
        """Compares a pod whose creation by this process was not answered (`PodCreation`)."""
        try:
            await self._creation.check_created(home, self._translated(home).pod, made)
        except ReconcileBlocked as waiting:
            await self._tell(key, home, waiting.reason, waiting.message)
            raise

    async def _let_go(self, key: Key, home: Object, held: plan.Ungate) -> None:
        if not held.marked and not await self._statuses.write(
            home, run_once.started_status(now=self._now())
        ):
            return  # Nobody would know that it runs.
        if held.gated:
            patch = {"metadata": {"uid": held.uid}, **run_once.ungate_patch()}
            namespace, name = self._remote_key(key)
            let_go = await self._remote.patch(
                PODS, name, patch, namespace=namespace, kind="strategic"
            )
            self._remote_pods.observe_write(let_go)

    def _translated(self, home: Object) -> remote_pod.TranslatedPod:
        classes = frozenset(name_of(it) for it in self._priority_classes.store)
        return remote_pod.translate_pod(home, self._policy, priority_classes=classes)

    def _made(self, uid: str) -> None:
        """What was remembered of the making and the end of earlier remote pods is settled."""
        self._making.discard(uid)
        self._failed.discard(uid)
        self._ended.pop(uid)

    async def _tell(self, key: Key, home: Object, reason: str, message: str) -> None:
        """Tells at home why the pod is not running; it was surely not made."""
        self._making.discard(uid_of(home))
        await self._refuse(key, home, reason, message)

    async def _refuse(
        self, key: Key, home: Object, reason: str, message: str, *, once_each: bool = False
    ) -> None:
        current = self._home_pods.store.get(key)
        if current is None or uid_of(current) != uid_of(home) or is_deleting(current):
            return
        for action in plan.report_waiting(
            current, reason=reason, message=message, now=self._now(), once_each=once_each
        ):
            await self._act(key, PodState(current, None), action)
        if (left := active_deadline.deadline_remaining(current, now=self._now())) is not None:
            self.controller.queue.add_after(key, left)

    async def _tell_server_error(self, key: Key, home: Object, error: ServerError) -> None:
        """From the second one in a row on, as the first may be a server that restarts. An admission
        webhook that fails answers so for ever. The pod may have been made."""
        if uid_of(home) not in self._failed:
            self._failed.add(uid_of(home))
            return
        reason = "HomeServerError" if error.side == "home" else "RemoteServerError"
        message = f"{error.side}: creating the pod failed: {error.message}"
        await self._refuse(key, home, reason, message, once_each=True)

    async def _tell_defect(self, key: Key, error: Exception) -> None:
        """Tells a pod that has not begun that the bridge stumbles over it. Raises nothing."""
        home = self._home_pods.store.get(key)
        begun = ((home or {}).get("status") or {}).get("phase", "Pending") != "Pending"
        if home is None or begun or self._known(key) is not None:
            return
        message = (
            f"the bridge has a defect that this pod shows ({exceptions.summary(error)}): please "
            "report it; the bridge tries again"
        )
        try:
            await self._tell(key, home, "BridgeDefect", message)
        except Exception as again:  # noqa: BLE001  # the log has the defect already
            log.debug("pod %s: its defect is not told: %s", key, exceptions.summary(again))

    async def _delete(self, key: Key, uid: str, grace: int | None) -> None:
        """Passes a deletion on, once for each grace: the cache shows it only a moment later."""
        if self._passed_on.get(uid, ...) == grace:
            return
        namespace, name = self._remote_key(key)
        await self._remote.delete(PODS, name, namespace=namespace, uid=uid, grace_seconds=grace)
        self._passed_on[uid] = grace
        passed = name_fields("Pod", key.name, namespace=key.namespace, cluster="remote")
        changes.info("pod %s: deletion passed on to the remote", key, extra=passed)

    async def _delete_orphan(self, key: Key, uid: str, home_uid: str | None) -> None:
        """Deletes a remote pod without a home pod, once home's API server has confirmed that."""
        try:
            home = await self._home.get(PODS, key.name, namespace=key.namespace)
        except NotFound:
            pass
        else:
            node = (home.get("spec") or {}).get("nodeName")
            if uid_of(home) == home_uid and node == self._identity.node:
                self._home_pods.observe_write(home)
                return
        namespace, name = self._remote_key(key)
        await self._remote.delete(PODS, name, namespace=namespace, uid=uid)
        orphan = name_fields(
            "Pod", key.name, namespace=key.namespace, uid=home_uid or "", cluster="remote"
        )
        changes.info("pod %s: gone at home, deleted in the remote", key, extra=orphan)


#: What the pod's ``status.reason`` says for a refusal of the remote's API server.
_REASONS: dict[type[ApiError], str] = {
    Forbidden: "RemoteForbidden",
    Invalid: "RemoteInvalid",
    NotFound: "RemoteNotFound",
}


def _clash(namespace: str, name: str, there: Object, identity: Identity) -> ReconcileBlocked:
    if is_owned(there, identity):
        node = (metadata(there).get("labels") or {}).get(LABEL_NODE)
        return ReconcileBlocked(
            "RemotePodTerminating",
            f"the previous pod of this name, {namespace}/{name} of virtual node {node}, is still "
            "in the remote cluster; this one is created when that one is gone",
        )
    return ReconcileBlocked(
        "RemoteClash",
        f"pod {namespace}/{name} exists in the remote cluster and is not this virtual node's; "
        "rename yours or remove that one",
    )


def _is_first(home: Object) -> bool:
    """Whether nothing is to be told or added when the home pod has its remote pod: it has never had
    one, was not refused, and has no container that only a running pod takes. The next event of the
    remote pod comes when it is placed."""
    has_run = bool((home.get("status") or {}).get("containerStatuses"))
    debugged = bool((home.get("spec") or {}).get("ephemeralContainers"))
    return not (has_run or debugged or synthetic_status.is_creation_blocked(home))


def _there(home: Object | None) -> Object:
    if home is None:
        raise AssertionError("a plan without a home pod has no action on it")
    return home


def _tell_phase(old: Object | None, new: Object | None) -> None:
    """One line for what a person watching wants to know: each change of phase."""
    if old is None or new is None or status.phase(old) == status.phase(new):
        return
    origin = origin_of(new)
    name = f"{origin.namespace}/{origin.name}" if origin else name_of(new)
    where = (new.get("spec") or {}).get("nodeName") or "no node yet"
    fields = key_fields("Pod", origin) if origin else object_fields("Pod", new, cluster="remote")
    changes.info("pod %s: %s in the remote (%s)", name, status.phase(new), where, extra=fields)
