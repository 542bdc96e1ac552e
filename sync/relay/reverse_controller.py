"""Publishes pods of home in the remote's Services if no pod network connects the clusters.

With `--relay-image`, for each home namespace with something to publish, one relay agent runs in the
remote (`sync.relay.agent_pods`); `Forwarder` connects to it. A key is a home namespace.

- A Service gets EndpointSlices that lead to the agent while the Service is copied, has ready pods
  at home, and the agent reports that it listens for the Service. A lost control connection has
  `CONTROL_GRACE` seconds to come back.
- A replaced agent, and a port that is no longer needed, stay connected for `LINGER` seconds.
- Without a bridge nothing can withdraw endpoints, because the agent has no permissions; it holds
  connections for some seconds and then refuses them. So a bridge that stops withdraws only the
  endpoints of Services that pods in the remote serve as well.
- Without `--relay-image`, the controller only deletes what an earlier join has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_resources import ENDPOINT_SLICES, PODS, SERVICES, Resource
from sync.kube.client import KubeClient
from sync.relay.agent_pods import POD_REJECTED, AgentPods
from sync.relay.endpoint_slices import ReverseSlices
from sync.relay.forward_controller import DRAIN_SECONDS
from sync.relay.unsupported_service_events import ServiceEvents
from sync.runtime.controller import Controller, ReconcileBlocked
from translators.mirror import endpoint_slice
from translators.mirror.service import is_copied
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_deleting,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import is_owned, matches_home_namespace, origin_of
from translators.relay import reverse_plan
from translators.relay.agent_pod import UNKNOWN_STATE, AgentPodPlan, AgentState
from translators.relay.reverse_plan import AgentPort, PodAddress, ReversePlan, ReverseRoute

#: Namespaces reconciled at once.
WORKERS = 4
#: Seconds for which a control connection may be lost; the agent holds connections for longer.
CONTROL_GRACE = 4.0
#: Seconds for which an agent or port serves after it is unpublished: kube-proxies follow late.
LINGER = 5.0
#: Seconds that open connections have to end when the bridge stops: as long as most requests take.
FINISH_SECONDS = 1.5


class Forwarder(Protocol):
    """Connects to relay agents and forwards (implemented in `bridge.relay.reverse`)."""

    def update(
        self, home: HomeNamespace, pods: Sequence[Object], routes: Mapping[int, ReverseRoute]
    ) -> None:
        """Sets the agents of the namespace. Each listens on the ports, the keys of ``routes``."""

    def agent_state(self, pod: Object) -> AgentState:
        """The state of the agent, known from its control connection."""

    def on_change(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls ``handler`` when the `agent_state` of an agent of the namespace changes."""

    async def run(self) -> None:
        """Forwards connections until cancelled, then aborts those that are open."""

    async def drain(self) -> None:
        """Accepts no more connections, so that agents hold new ones, and waits until the open ones
        have ended."""


@dataclass(slots=True)
class _State:
    """The state of a namespace between reconciles. Times are the event loop's."""

    ports: dict[AgentPort, int] = field(default_factory=dict)
    unpublished: dict[AgentPort, float] = field(default_factory=dict)
    """Ports that are no longer published, and until when agents listen on them."""
    unserved: dict[str, float] = field(default_factory=dict)
    """Services that no agent serves, and until when their endpoints stay."""
    replaced: dict[str, float] = field(default_factory=dict)
    """UIDs of replaced agents, and until when they stay connected."""
    unneeded_since: float | None = None
    """When the agent was first found unneeded; None while it is needed."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The input of one reconcile of a namespace."""

    home: HomeNamespace
    state: _State
    plans: Mapping[str, ReversePlan]
    """The plans of Services with something to forward, by name."""
    pods: Sequence[Object]
    slices: Sequence[Object]
    """The bridge's slices in the remote."""
    now: float

    @property
    def agent_ports(self) -> Iterator[AgentPort]:
        """All ports that the agent is to listen on."""
        for name, plan in self.plans.items():
            yield from plan.agent_ports(name)


class ReverseRelayController:
    """Reconciles home namespaces. Without ``forwarder``, only deletes what an earlier join left."""

    def __init__(
        self, context: ControllerContext, forwarder: Forwarder | None, *, linger: float
    ) -> None:
        self._forwarder = forwarder
        self._verifier = EndpointVerifier(context.account)
        self._identity = context.identity
        self._watches = context.watches
        self._namespaces = context.namespaces
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._service_copies = context.copies[SERVICES]
        self._slice_copies = context.copies[ENDPOINT_SLICES]
        agent_state = forwarder.agent_state if forwarder is not None else lambda _: UNKNOWN_STATE
        self._agents = AgentPods(context, agent_state)
        self._slices = ReverseSlices(
            context.remote,
            self._slice_copies,
            self._service_copies,
            self._remote_pods,
            self._identity,
        )
        self._events = ServiceEvents(context.events)
        self._linger = linger
        self._states: dict[HomeNamespace, _State] = {}
        self._populated: set[HomeNamespace] = set()
        self.controller: Controller[HomeNamespace] = Controller(
            "relay-back", self._reconcile, workers=WORKERS, kind="Namespace"
        )
        if forwarder is not None:
            forwarder.on_change(self.controller.queue.add)

    def declare(self) -> Declaration:
        home_resources = [SERVICES, ENDPOINT_SLICES] if self._forwarder is not None else []
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_pods, self.relay_object_changed),
                Watch(self._service_copies, self.service_copy_changed),
                Watch(self._slice_copies, self.relay_object_changed),
            ],
            home_watches=[
                HomeWatch(resource, functools.partial(self.home_changed, resource))
                for resource in home_resources
            ],
            requeue_namespace=self.namespace_synced,
            run=self.run,
        )

    # -- from changes to keys --------------------------------------------------------------

    def home_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        changed = new or old or {}
        if resource is SERVICES and new is None:
            self._events.forget(key_of(changed))
        self.controller.queue.add(HomeNamespace(namespace_of(changed)))

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        namespace = HomeNamespace(namespace_of(new or old or {}))
        if self._forwarder is not None and self._has_pods(namespace) != (
            namespace in self._populated
        ):
            self._populated ^= {namespace}
            self.controller.queue.add(namespace)

    def relay_object_changed(self, old: Object | None, new: Object | None) -> None:
        home = reverse_plan.relay_home_namespace(new or old or {})
        if home is not None:
            self.controller.queue.add(home)

    def service_copy_changed(self, old: Object | None, new: Object | None) -> None:
        if self._forwarder is not None and _slice_inputs(old) != _slice_inputs(new):
            origin = origin_of(new or old or {})
            if origin is not None:
                self.controller.queue.add(origin.namespace)

    def namespace_synced(self, namespace: HomeNamespace) -> None:
        if self._forwarder is not None:
            self.controller.queue.add(namespace)

    # -- run -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled; then withdraws endpoints and drains connections."""
        async with asyncio.TaskGroup() as group:
            forwarding = None
            if self._forwarder is not None:
                forwarding = group.create_task(self._forwarder.run(), name="relay-reverse")
            try:
                await self.controller.run()
            finally:
                if self._forwarder is not None and forwarding is not None:
                    if await self._slices.withdraw():
                        await asyncio.sleep(DRAIN_SECONDS)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(FINISH_SECONDS):
                            await self._forwarder.drain()
                    forwarding.cancel()

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, home: HomeNamespace) -> None:
        if self._forwarder is not None and self._watches.get(home) is None and self._has_pods(home):
            return  # The namespace is being listed; `namespace_synced` queues the key again.
        snapshot = _Snapshot(
            home,
            self._states.setdefault(home, _State()),
            await self._plans(home),
            self._agents.present(home),
            self._slices.present(home),
            asyncio.get_running_loop().time(),
        )
        self._allocate_ports(snapshot)
        ports = snapshot.state.ports
        listen = frozenset(ports[it] for it in snapshot.agent_ports if it in ports)
        needed = self._is_agent_needed(snapshot)
        agents = self._agents.plan(snapshot.pods, listen, needed=needed)
        self._update_forwarder(snapshot, agents, listen)
        if wait := await self._slices.write(
            self._desired_slices(snapshot, agents), snapshot.slices
        ):
            self.controller.queue.add_after(home, wait)
        for reason, message in self._agents.problems(home, snapshot.pods, agents):
            self._emit(snapshot, reason, message)
        try:
            if delay := await self._agents.apply(home, agents, snapshot.now):
                self.controller.queue.add_after(home, delay)
        except ReconcileBlocked as error:
            if error.reason == POD_REJECTED:
                self._emit(snapshot, error.reason, error.message)
            raise
        if not (needed or snapshot.pods or snapshot.slices):
            self._states.pop(home, None)
            self._agents.forget(home)

    async def _plans(self, home: HomeNamespace) -> dict[str, ReversePlan]:
        """The forwarding plans, by Service. Raises KubeError."""
        plans: dict[str, ReversePlan] = {}
        copied = list(self._copied_services(home))
        claims = {
            claim
            for _, slices in copied
            for claim in reverse_plan.pod_addresses(slices, self._identity)
        }
        verified = await self._verifier.verified(home, claims)
        for service, slices in copied:
            plan = reverse_plan.plan_reverse_forwarding(
                service, slices, self._identity, verified=verified
            )
            if plan.unsupported:
                message = "pods in the remote do not reach home's pods through this Service: "
                message += "; ".join(plan.unsupported)
                self._events.emit_on_change(service, "RelayBackLeftOut", message)
            if plan.targets:
                plans[name_of(service)] = plan
        return plans

    def _copied_services(self, home: HomeNamespace) -> Iterator[tuple[Object, list[Object]]]:
        """The namespace's Services with a copy that the bridge owns, and their EndpointSlices."""
        if self._forwarder is None or not self._has_pods(home):
            return
        if not self._namespaces.has_usable(home):
            return  # The relay agent there would be an unmanaged Pod.
        slices = self._watches.store(home, ENDPOINT_SLICES)
        for service in self._watches.store(home, SERVICES):
            name, is_live = name_of(service), not is_deleting(service)
            if is_live and is_copied(service) and self._copy(home, name) is not None:
                yield service, slices.by_index("service", name)

    def _allocate_ports(self, snapshot: _Snapshot) -> None:
        """Gives each agent port a number, which it keeps for `LINGER` after it is unpublished."""
        state, agent_ports = snapshot.state, list(snapshot.agent_ports)
        wanted = set(agent_ports)
        # The slices record the ports of an earlier bridge.
        ports = state.ports or reverse_plan.recorded_agent_ports(snapshot.slices)
        expired = set()
        for unwanted in ports.keys() - wanted:
            until = state.unpublished.setdefault(unwanted, snapshot.now + LINGER)
            if until > snapshot.now:
                self.controller.queue.add_after(snapshot.home, until - snapshot.now)
            else:
                expired.add(unwanted)
        ports = {used: port for used, port in ports.items() if used not in expired}
        state.unpublished = {
            unused: until
            for unused, until in state.unpublished.items()
            if unused in ports and unused not in wanted
        }
        state.ports = {**ports, **reverse_plan.allocate_ports(agent_ports, ports)}

    def _is_agent_needed(self, snapshot: _Snapshot) -> bool:
        state = snapshot.state
        if self._forwarder is None:
            return False
        if snapshot.plans:
            state.unneeded_since = None
            return True
        if not snapshot.pods:
            return False
        if state.unneeded_since is None:
            state.unneeded_since = snapshot.now
        seconds = state.unneeded_since + self._linger - snapshot.now
        if seconds > 0:
            self.controller.queue.add_after(snapshot.home, seconds)
        return seconds > 0

    def _update_forwarder(
        self, snapshot: _Snapshot, agents: AgentPodPlan, listen: frozenset[int]
    ) -> None:
        """Sets the forwarder's agents and routes."""
        if self._forwarder is None:
            return
        state = snapshot.state
        serving = next(filter(self._agents.listens_on(listen), agents.serving), None)
        if serving is not None:
            self._agents.serves(snapshot.home)
        connected, replaced = [], {}
        for pod in agents.serving:
            if is_deleting(pod) and serving is not None and serving is not pod:
                until = state.replaced.get(uid_of(pod), snapshot.now + LINGER)
                replaced[uid_of(pod)] = until
                if until <= snapshot.now:
                    continue
                self.controller.queue.add_after(snapshot.home, until - snapshot.now)
            connected.append(pod)
        state.replaced = replaced
        routes = {}
        for agent_port, number in state.ports.items():
            plan = snapshot.plans.get(agent_port.service, reverse_plan.NO_FORWARDING)
            routes[number] = plan.route(agent_port)
        self._forwarder.update(snapshot.home, connected, routes)

    def _desired_slices(self, snapshot: _Snapshot, agents: AgentPodPlan) -> dict[str, Object]:
        home, state = snapshot.home, snapshot.state
        desired: dict[str, Object] = {}
        state.unserved = {
            name: until for name, until in state.unserved.items() if name in snapshot.plans
        }
        services = self._watches.store(home, SERVICES)
        for name, plan in snapshot.plans.items():
            copy, service = self._copy(home, name), services.get(Key(home, name))
            if copy is None or service is None:
                continue
            ports = {it: state.ports[it] for it in plan.agent_ports(name) if it in state.ports}
            listening = self._agents.listens_on(frozenset(ports.values()))
            pod = next(filter(listening, agents.serving), None)
            if pod is not None:
                state.unserved.pop(name, None)
                lacking = self._agents.unsupported(pod)
                ports = {it: port for it, port in ports.items() if port not in lacking}
                # Not the ports of the copy: of one that is too large the cache has only a stub.
                service_ports = (service.get("spec") or {}).get("ports")
                spec = {**(copy.get("spec") or {}), "ports": service_ports}
                slices = reverse_plan.reverse_slices(
                    {**copy, "spec": spec}, ports, pod, home, self._identity
                )
                desired |= {name_of(it): it for it in slices}
                continue
            # An agent should serve the Service in a moment: until then its slices may stay.
            until = state.unserved.setdefault(name, snapshot.now + CONTROL_GRACE)
            if until > snapshot.now:
                self.controller.queue.add_after(home, until - snapshot.now)
                kept = (it for it in snapshot.slices if endpoint_slice.service_name(it) == name)
                desired |= {name_of(it): it for it in kept}
        return desired

    def _emit(self, snapshot: _Snapshot, reason: str, message: str) -> None:
        """Emits an Event of every Service with something to forward."""
        for service in self._watches.store(snapshot.home, SERVICES):
            if name_of(service) in snapshot.plans:
                self._events.emit_on_change(service, reason, message)

    def _has_pods(self, home: HomeNamespace) -> bool:
        return self._home_pods.store.has("namespace", home)

    def _copy(self, home: HomeNamespace, name: str) -> Object | None:
        """The Service's copy in the remote, if there is one that the bridge owns."""
        copy = self._service_copies.store.get(Key(self._identity.remote_namespace(home), name))
        if copy is None or is_deleting(copy) or not is_owned(copy, self._identity):
            return None
        return copy if matches_home_namespace(copy, home) else None


def _slice_inputs(copy: Object | None) -> object:
    return (uid_of(copy), copy.get("spec"), is_deleting(copy)) if copy is not None else None


#: New claims that are verified one by one. A list has some KiB per pod of the namespace.
MAX_SINGLE_REQUESTS = 8


class EndpointVerifier:
    """Verifies that the addresses in EndpointSlices belong to the pods that these name.

    Anyone who may write EndpointSlices in a namespace can claim any address. Only a kubelet writes
    a pod's status, so an endpoint counts if the Pod that it names has that UID and, in its status,
    that address.

    A claimed address is verified once, for as long as slices claim it: by one request per pod if
    few are new, otherwise by a list of the namespace's pods. There is no watch: a pod's address
    does not change.
    """

    def __init__(self, home: KubeClient) -> None:
        self._home = home
        self._results: dict[HomeNamespace, dict[PodAddress, bool]] = {}

    async def verified(self, namespace: HomeNamespace, claims: Set[PodAddress]) -> Set[PodAddress]:
        """The claims that are true; drops the results of all other claims. Raises KubeError."""
        results = self._results.get(namespace, {})
        new = claims - results.keys()
        if new:
            pods = await self._pods(namespace, {claim.pod for claim in new})
            results |= {claim: _is_true(claim, pods.get(claim.pod)) for claim in new}
        kept = {claim: results[claim] for claim in claims}
        if kept:
            self._results[namespace] = kept
        else:
            self._results.pop(namespace, None)
        return {claim for claim, is_true in kept.items() if is_true}

    async def _pods(self, namespace: HomeNamespace, names: Collection[str]) -> dict[str, Object]:
        if len(names) > MAX_SINGLE_REQUESTS:
            page = await self._home.list(PODS, namespace=namespace, slim=_slim)
            return {name_of(pod): pod for pod in page.items}
        pods = {}
        for name in names:
            if (pod := await self._home.find(PODS, name, namespace=namespace)) is not None:
                pods[name] = _slim(pod)
        return pods


def _slim(pod: Object) -> Object:
    status = pod.get("status") or {}
    return {
        "metadata": {"name": name_of(pod), "uid": uid_of(pod)},
        "status": {key: status[key] for key in ("podIP", "podIPs") if key in status},
    }


def _is_true(claim: PodAddress, pod: Object | None) -> bool:
    if pod is None or uid_of(pod) != claim.uid:
        return False
    status = pod.get("status") or {}
    addresses = {entry.get("ip") for entry in status.get("podIPs") or ()} | {status.get("podIP")}
    return claim.address in addresses
