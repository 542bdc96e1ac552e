"""Has Services in the remote lead to home's pods where no network does: `--relay-image`.

For each home namespace whose pods on the node may want it there is one relay pod in the remote
(`translators.relay.agent_pod`), which this makes, makes again when it is gone, and removes;
`Carriers` speaks to it. A key is a home namespace.

- A Service has endpoints of ours while it is copied, has ready pods at home, and a relay pod says
  that it listens for it. A control that ends is given `PATIENCE` to come back.
- A relay pod that hangs is deleted, and another is made; at greater and greater intervals while
  none serves.
- A relay pod that somebody deletes, or that was made in another way, serves until its successor
  does, and is spoken to for `LINGER` seconds after that: kube-proxies have to learn of it. So it is
  with a port that nobody needs any more.
- Without a bridge nobody can take endpoints out: the relay pod has no rights. It holds what arrives
  for some seconds, for a bridge that is started again, and then refuses. So a bridge that stops
  takes out the endpoints of those Services alone that pods in the remote serve, too.
- The relay pod goes ``linger`` seconds after it was last needed.
- Without an image nothing is made, and what is left of another join is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sync.base.backoff import Backoff
from sync.cache.store import Key
from sync.kube.errors import Forbidden, Invalid
from sync.kube.resources import ENDPOINT_SLICES, PODS, SERVICES, Resource
from sync.registration.context import ControllerContext
from sync.registration.declaration import Declaration, HomeWatch, Watch
from sync.relay.endpoint_verification import EndpointVerifier
from sync.relay.forward import DRAIN_SECONDS
from sync.relay.reverse_slices import ReverseSlices
from sync.relay.service_events import ServiceEvents
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import name_fields
from translators.identity import is_owned, matches_home_namespace, origin_of
from translators.mirror import endpointslice
from translators.mirror import service as services
from translators.objects import HomeNamespace, Object, is_deleting, name_of, namespace_of, uid_of
from translators.relay import agent_pod, reverse
from translators.relay.agent_pod import UNKNOWN_STATE, AgentState
from translators.relay.reverse import AgentPort, ReversePlan, ReverseRoute

changes = logging.getLogger("cluster-bridge.changes")

#: Namespaces worked at once.
WORKERS = 4
#: Seconds for which a control may be away before endpoints are taken out. The relay pod holds what
#: arrives for longer.
PATIENCE = 4.0
#: Seconds for which something is served after it is no longer published: as long as kube-proxies
#: take to learn of it.
LINGER = 5.0
#: Seconds that connections have to end when the bridge stops: as long as most requests take.
FINISH = 1.5
#: Seconds between relay pods that end by themselves: the first time, and at most.
ANEW, ANEW_CAP = 1.0, 60.0


class Forwarder(Protocol):
    """What speaks to relay pods and carries connections; its maker has the sockets."""

    def update(
        self, home: HomeNamespace, pods: Sequence[Object], ways: Mapping[int, ReverseRoute]
    ) -> None:
        """These pods are the namespace's: have each listen on these ports, and carry so."""

    def agent_state(self, pod: Object) -> AgentState:
        """What is known of the pod by what it says to this bridge."""

    def on_change(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls ``handler`` when what is `heard` of a pod of the namespace has changed."""

    async def run(self) -> None:
        """Carries connections until cancelled, and ends all that is open then."""

    async def drain(self) -> None:
        """Takes no more, which relay pods hold from then on, and waits until nothing is open."""


@dataclass(slots=True)
class _State:
    """What is remembered of a namespace. Times are the loop's."""

    ports: dict[AgentPort, int] = field(default_factory=dict)
    unwanted: dict[AgentPort, float] = field(default_factory=dict)
    """Ports that are listened on until then, and no longer published."""
    silent: dict[str, float] = field(default_factory=dict)
    """Services whose endpoints nobody serves, and until when they stay all the same."""
    retired: dict[str, float] = field(default_factory=dict)
    """UIDs of pods that serve no more, and until when they are spoken to."""
    needed: float | None = None
    """When a relay pod was last needed; None while it is, and before it ever was."""
    anew: float = 0.0
    """When the next relay pod may be made."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=ANEW, cap=ANEW_CAP))
    failed: frozenset[str] = frozenset()
    """UIDs of pods that have failed and are still there: each is held off for once."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one reconcile of a namespace decides by."""

    home: HomeNamespace
    state: _State
    plans: Mapping[str, ReversePlan]
    """By Service; only of those that have something to carry."""
    pods: Sequence[Object]
    present: Sequence[Object]
    """Slices of ours in the remote."""
    now: float

    @property
    def slots(self) -> Iterator[AgentPort]:
        """All that is to be listened for."""
        for name, plan in self.plans.items():
            yield from plan.agent_ports(name)


class ReverseRelayController:
    """The reconciler. `run` is a task of the caller's group. Without ``carriers`` it removes what
    is left. ``services`` and ``slices`` are informers of this home's copies."""

    def __init__(
        self, context: ControllerContext, forwarder: Forwarder | None, *, linger: float
    ) -> None:
        self._client = context.remote
        self._forwarder = forwarder
        self._addresses = EndpointVerifier(context.home)
        self._policy = context.policy
        self._identity = context.identity
        self._watches = context.watches
        self._namespaces = context.namespaces
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._services = context.copies[SERVICES]
        self._slice_copies = context.copies[ENDPOINT_SLICES]
        self._slices = ReverseSlices(
            context.remote, self._slice_copies, self._services, self._remote_pods, self._identity
        )
        self._news = ServiceEvents(context.events)
        self._linger = linger
        self._states: dict[HomeNamespace, _State] = {}
        self._populated: set[HomeNamespace] = set()
        self.controller: Controller[HomeNamespace] = Controller(
            "relay-back", self._reconcile, workers=WORKERS, kind="Namespace"
        )
        if forwarder is not None:
            forwarder.on_change(self.controller.queue.add)

    def declare(self) -> Declaration:
        """What the engine runs."""
        home_resources = [SERVICES, ENDPOINT_SLICES] if self._forwarder is not None else []
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_pods, self.remote_pod_changed),
                Watch(self._services, functools.partial(self.copy_changed, SERVICES)),
                Watch(self._slice_copies, functools.partial(self.copy_changed, ENDPOINT_SLICES)),
            ],
            home_watches=[
                HomeWatch(resource, functools.partial(self.home_changed, resource))
                for resource in home_resources
            ],
            requeue_namespace=self.namespace_synced,
            run=self.run,
        )

    # -- what changed ----------------------------------------------------------------------

    def home_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """A Service or its endpoints changed at home."""
        it = new or old or {}
        if resource is SERVICES and new is None:
            self._news.forget(Key(namespace_of(it), name_of(it)))
        self.controller.queue.add(HomeNamespace(namespace_of(it)))

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod of the node came or went; the first or the last of its namespace counts."""
        namespace = HomeNamespace(namespace_of(new or old or {}))
        if self._forwarder is not None and self._has_pods(namespace) != (
            namespace in self._populated
        ):
            self._populated ^= {namespace}
            self.controller.queue.add(namespace)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A relay pod changed, among others."""
        self._ours_changed(old, new)

    def copy_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """A slice of ours changed in the remote, or the copy of a Service did."""
        if resource is ENDPOINT_SLICES:
            self._ours_changed(old, new)
        elif resource is SERVICES and self._forwarder is not None and _shape(old) != _shape(new):
            origin = origin_of(new or old or {})
            if origin is not None:
                self.controller.queue.add(origin.namespace)

    def _ours_changed(self, old: Object | None, new: Object | None) -> None:
        home = reverse.relay_home_namespace(new or old or {})
        if home is not None:
            self.controller.queue.add(home)

    def namespace_synced(self, namespace: HomeNamespace) -> None:
        """What home has in the namespace is known."""
        if self._forwarder is not None:
            self.controller.queue.add(namespace)

    # -- run -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until cancelled, and takes out what others serve as well before it stops."""
        async with asyncio.TaskGroup() as group:
            carrying = None
            if self._forwarder is not None:
                carrying = group.create_task(self._forwarder.run(), name="relay-back-carriers")
            try:
                await self.controller.run()
            finally:
                if self._forwarder is not None and carrying is not None:
                    if await self._slices.withdrawn():
                        await asyncio.sleep(DRAIN_SECONDS)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FINISH):
                            await self._forwarder.drain()
                    carrying.cancel()

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, home: HomeNamespace) -> None:
        if self._forwarder is not None and self._watches.get(home) is None and self._has_pods(home):
            return  # NB: the namespace is being listed; its key comes again when that is done.
        turn = _Turn(
            home,
            self._states.setdefault(home, _State()),
            await self._plans(home),
            self._pods(home),
            self._slices.present(home),
            asyncio.get_running_loop().time(),
        )
        self._give_ports(turn)
        ports = turn.state.ports
        needed = frozenset(ports[slot] for slot in turn.slots if slot in ports)
        stays = self._is_needed(turn)
        standing = agent_pod.plan_agent_pods(
            turn.pods,
            desired_hash=self._hash if stays else None,
            listening=self._listens_on(needed),
            unresponsive=lambda pod: self._heard(pod).unresponsive,
        )
        self._show(turn, standing, needed)
        await self._slices.write(self._wanted(turn, standing), turn.present)
        self._say_standing(turn, standing)
        self._hold_off(turn, standing)
        for pod in standing.delete:
            await self._client.delete(
                PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod)
            )
            self._say_pod(home, pod, "removed from the remote")
        if standing.create:
            await self._create(turn)
        if not (stays or turn.pods or turn.present):
            self._states.pop(home, None)

    async def _plans(self, home: HomeNamespace) -> dict[str, ReversePlan]:
        """What is to be carried, by Service; only of those whose copies are ours."""
        found: dict[str, ReversePlan] = {}
        slices = {name: (it, slices) for name, it, slices in self._wanting(home)}
        claimed = {
            it
            for _, theirs in slices.values()
            for it in reverse.pod_addresses(theirs, self._identity)
        }
        confirmed = await self._addresses.confirmed(home, claimed)
        for name, (service, theirs) in slices.items():
            plan = reverse.plan_reverse_forwarding(
                service, theirs, self._identity, verified=confirmed
            )
            if plan.unsupported:
                said = "pods in the remote do not reach home's pods through this Service: "
                self._news.emit_on_change(
                    service, "RelayBackLeftOut", said + "; ".join(plan.unsupported)
                )
            if plan.targets:
                found[name] = plan
        return found

    def _wanting(self, home: HomeNamespace) -> Iterator[tuple[str, Object, list[Object]]]:
        """The Services whose copies are ours, with their names and EndpointSlices."""
        watch = self._watches.get(home)
        if self._forwarder is None or watch is None or not self._has_pods(home):
            return
        if not self._namespaces.has_usable(home):
            return  # The relay agent there would be an unmanaged Pod.
        for service in watch.informers[SERVICES].store:
            name = name_of(service)
            if (
                is_deleting(service)
                or not services.is_copied(service)
                or not self._copy(home, name)
            ):
                continue
            slices = watch.informers[ENDPOINT_SLICES].store.by_index("service", name)
            yield name, service, list(slices)

    def _give_ports(self, turn: _Turn) -> None:
        """Each slot has a port while it is wanted, and for a while after that."""
        state, slots = turn.state, list(turn.slots)
        # Those of an earlier bridge are in its slices.
        known = state.ports or reverse.recorded_agent_ports(turn.present)
        for slot in known.keys() - set(slots):
            until = state.unwanted.setdefault(slot, turn.now + LINGER)
            if until > turn.now:
                self.controller.queue.add_after(turn.home, until - turn.now)
            else:
                known = {it: port for it, port in known.items() if it != slot}
        state.unwanted = {
            it: until
            for it, until in state.unwanted.items()
            if it in known and it not in set(slots)
        }
        state.ports = {**known, **reverse.allocate_ports(slots, known)}

    def _is_needed(self, turn: _Turn) -> bool:
        """Whether there is to be a relay pod."""
        state = turn.state
        if self._forwarder is None:
            return False
        if turn.plans:
            state.needed = None
            return True
        if not turn.pods:
            return False
        if state.needed is None:
            state.needed = turn.now
        left = state.needed + self._linger - turn.now
        if left > 0:
            self.controller.queue.add_after(turn.home, left)
        return left > 0

    def _show(self, turn: _Turn, standing: agent_pod.AgentPodPlan, needed: frozenset[int]) -> None:
        """Says to the carriers which pods there are, and where connections go."""
        if self._forwarder is None:
            return
        state = turn.state
        serves = next(filter(self._listens_on(needed), standing.serving), None)
        if serves is not None:
            state.backoff.reset()
        shown, retired = [], {}
        for pod in standing.serving:
            if is_deleting(pod) and serves is not None and serves is not pod:
                until = state.retired.get(uid_of(pod), turn.now + LINGER)
                retired[uid_of(pod)] = until
                if until <= turn.now:
                    continue
                self.controller.queue.add_after(turn.home, until - turn.now)
            shown.append(pod)
        state.retired = retired
        ways = {}
        for slot, port in state.ports.items():
            plan = turn.plans.get(slot.service, reverse.NO_FORWARDING)
            ways[port] = ReverseRoute(slot.service, plan.targets.get(slot.port, ()), plan.sticky)
        self._forwarder.update(turn.home, shown, ways)

    def _wanted(self, turn: _Turn, standing: agent_pod.AgentPodPlan) -> dict[str, Object]:
        """The slices that are to be there, by name."""
        state = turn.state
        wanted: dict[str, Object] = {}
        state.silent = {name: it for name, it in state.silent.items() if name in turn.plans}
        for name, plan in turn.plans.items():
            copy = self._copy(turn.home, name)
            if copy is None:
                continue
            ports = {it: state.ports[it] for it in plan.agent_ports(name) if it in state.ports}
            listening = self._listens_on(frozenset(ports.values()))
            pod = next(filter(listening, standing.serving), None)
            if pod is not None:
                state.silent.pop(name, None)
                made = reverse.reverse_slices(copy, ports, pod, turn.home, self._identity)
                wanted |= {name_of(it): it for it in made}
                continue
            # Somebody is to serve it in a moment: what stands there may stay for that.
            until = state.silent.setdefault(name, turn.now + PATIENCE)
            if until > turn.now:
                self.controller.queue.add_after(turn.home, until - turn.now)
                kept = (it for it in turn.present if endpointslice.service_name(it) == name)
                wanted |= {name_of(it): it for it in kept}
        return wanted

    def _hold_off(self, turn: _Turn, standing: agent_pod.AgentPodPlan) -> None:
        """After one that has failed the next is made a while later."""
        state, failed = turn.state, frozenset(map(uid_of, standing.failed))
        if failed - state.failed:
            state.anew = max(state.anew, turn.now + state.backoff.next())
        state.failed = failed

    # -- writing ---------------------------------------------------------------------------

    async def _create(self, turn: _Turn) -> None:
        home = turn.home
        if turn.state.anew > turn.now:
            self.controller.queue.add_after(home, turn.state.anew - turn.now)
            return
        namespace = await self._namespaces.ensure(home)
        made = agent_pod.agent_pod(
            f"cluster-bridge-relay-{secrets.token_hex(4)}",
            home,
            self._identity,
            image=self._policy.relay_image,
            node_selector=self._policy.node_selector,
        )
        try:
            pod = await self._client.create(PODS, made, namespace=namespace)
        except (Forbidden, Invalid) as error:
            said = f"the remote cluster refuses the relay pod: {error.message}"
            self._say_all(turn, "RelayBackRefused", said)
            raise ReconcileBlocked("RelayBackRefused", said) from error
        self._remote_pods.observe_write(pod)
        self._say_pod(home, pod, "made in the remote")

    # -- what is told ----------------------------------------------------------------------

    def _say_all(self, turn: _Turn, reason: str, message: str) -> None:
        """The same of all Services that are carried."""
        for service in self._scoped(turn.home):
            if name_of(service) in turn.plans:
                self._news.emit_on_change(service, reason, message)

    def _say_standing(self, turn: _Turn, standing: agent_pod.AgentPodPlan) -> None:
        """What keeps relay pods from serving."""
        where = f"in namespace {self._identity.remote_namespace(turn.home)} of the remote cluster"
        image = f"(image {self._policy.relay_image})"
        if why := agent_pod.blocking_reason(turn.pods):
            said = f"the relay pod {where} does not run: {why} {image}"
            self._say_all(turn, "RelayBackWaiting", said)
        for pod in standing.failed:
            if self._heard(pod).unresponsive:
                said = f"the relay pod {name_of(pod)} {where} does not answer: it is replaced"
                self._say_all(turn, "RelayBackSilent", said)
        if standing.current is not None and (
            unlike := self._heard(standing.current).version_warning
        ):
            said = f"the relay pod {where} is of another version {image}: {unlike}"
            self._say_all(turn, "RelayBackVersion", said)

    def _say_pod(self, home: HomeNamespace, pod: Object, what: str) -> None:
        where = name_fields("Pod", name_of(pod), namespace=namespace_of(pod), cluster="remote")
        changes.info(
            "relay: pod %s/%s %s, for namespace %s",
            namespace_of(pod),
            name_of(pod),
            what,
            home,
            extra=where,
        )

    # -- what is known ---------------------------------------------------------------------

    @property
    def _hash(self) -> str:
        return agent_pod.spec_hash(self._policy.relay_image, self._policy.node_selector)

    def _has_pods(self, home: HomeNamespace) -> bool:
        return self._home_pods.store.has("namespace", home)

    def _pods(self, home: HomeNamespace) -> list[Object]:
        """The relay pods of this node for the namespace."""
        found = self._remote_pods.store.by_index("relay", home)
        return [it for it in found if reverse.is_own_relay_object(it, self._identity)]

    def _scoped(self, home: HomeNamespace) -> Iterable[Object]:
        watch = self._watches.get(home)
        return watch.informers[SERVICES].store if watch is not None else ()

    def _copy(self, home: HomeNamespace, name: str) -> Object | None:
        """The Service's copy in the remote, if it is there and ours."""
        copy = self._services.store.get(Key(self._identity.remote_namespace(home), name))
        if copy is None or is_deleting(copy) or not is_owned(copy, self._identity):
            return None
        return copy if matches_home_namespace(copy, home) else None

    def _heard(self, pod: Object) -> AgentState:
        return self._forwarder.agent_state(pod) if self._forwarder is not None else UNKNOWN_STATE

    def _listens_on(self, ports: frozenset[int]) -> Callable[[Object], bool]:
        """Whether a pod listens on all of these, and is spoken to."""
        return lambda pod: bool(ports) and ports <= self._heard(pod).listening


def _shape(copy: Object | None) -> object:
    """What of a Service's copy slices are made from."""
    return (uid_of(copy), copy.get("spec"), is_deleting(copy)) if copy is not None else None
