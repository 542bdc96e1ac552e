"""Has home's Services lead to pods of the virtual node where no network does.

For each Service of home that selects ready pods of the node, the bridge listens (`Listeners`), and
slices of ours at home say where (`translators.relay.forward`). A key is a Service's.

- Nothing is published before the bridge listens there. What is published no more is still listened
  on for a while, since kube-proxy has to learn that.
- A restarted bridge, or one that takes over, first asks for the ports that the slices tell.
- While the remote cannot be watched nothing is published: connections could not get there either.
  `PATIENCE` lets a watch be broken for a moment, as when one of several API servers restarts.
- A bridge that stops takes back all that is published, also what it was writing; of pods with an
  address of their own, that they are ready. One that is killed leaves it, and the next one takes it
  up.
- Slices of Services that are gone, or of namespaces without pods here, are removed.
- Headless Services have an address for each pod where the policy has a range
  (`sync.relay.headless`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube.resources import ENDPOINT_SLICES, SERVICES
from sync.pods.controller import PodController
from sync.registration.context import ControllerContext
from sync.registration.declaration import Declaration, HomeWatch, Watch
from sync.relay.endpoint_slices import EndpointSliceWriter
from sync.relay.headless import AddressListeners, HeadlessServices, pods_of
from sync.relay.service_events import ServiceEvents
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import name_fields
from translators.identity import origin_of
from translators.mirror import endpointslice
from translators.mirror import service as services
from translators.objects import HomeNamespace, Object, is_deleting, name_of, namespace_of
from translators.relay import forward, headless
from translators.relay.forward import EndpointPort, ForwardPlan
from translators.relay.headless import HeadlessEndpoint

changes = logging.getLogger("cluster-bridge.changes")

#: Services worked at once.
WORKERS = 8
#: Seconds for which the remote may be unwatchable before its pods are taken out of Services. With
#: the time in which the loss is noticed (`sync.kube.sockets.FAST_KEEPALIVE_SECONDS`) under ten.
REMOTE_GRACE = 2.0
#: Seconds after that in which connections are still taken and carried: kube-proxy has to learn of
#: it, and gathers changes for a second unless it is told otherwise (iptables.minSyncPeriod). Both
#: together are over before the Lease is (`bridge.election.election_record`).
DRAIN_SECONDS = 1.5

#: Seconds until a Service whose connections are refused is told so again.
LIMITED_EVENT_INTERVAL = 300.0

#: Is told of a Service whose connections are refused, and why in half a sentence.
OnLimited = Callable[[Key, str], None]


class PortUnavailableError(Exception):
    """Nothing more can be listened on; the message says why, and what to do."""


class Listeners(Protocol):
    """What listens at home and carries connections; its maker has its sockets."""

    @property
    def pod_listeners(self) -> AddressListeners | None:
        """What listens at addresses of pods; None where none can be had."""

    async def serve(
        self, key: Key, plan: ForwardPlan, previous_ports: Mapping[EndpointPort, int]
    ) -> dict[EndpointPort, int]:
        """Listens for the Service at the plan's places, and at no other, and says on which port at
        each; on those of ``known`` where they are free. Raises NoPort."""

    async def run(self, on_limited: OnLimited) -> None:
        """Carries connections until cancelled, and ends all that is open then. ``limited`` is
        called for each that is refused because there are too many, or they come too fast."""


class ForwardRelayController:
    """The reconciler. `run` is a task of the caller's group."""

    def __init__(
        self, context: ControllerContext, listeners: Listeners, *, pods: PodController
    ) -> None:
        self._client = context.home
        self._listeners = listeners
        self._identity = context.identity
        self._address = context.policy.relay_address
        self._watches = context.watches
        self._pods = pods
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._news = ServiceEvents(context.events)
        self.slices = Informer(
            context.home,
            ENDPOINT_SLICES,
            labels=forward.slice_selector(context.identity),
            indexers={"service": _service_keys, "pod": pods_of},
        )
        self._writer = EndpointSliceWriter(context.home, self.slices)
        self._away = False
        self._patience: asyncio.TimerHandle | None = None
        # When it was said of a Service that its connections are refused (the loop's time).
        self._limited_at: dict[Key, float] = {}
        self.controller: Controller[Key] = Controller(
            "relay", self._reconcile, workers=WORKERS, kind="Service"
        )
        self._names: HeadlessServices | None = None
        cidr, pod_listeners = context.policy.relay_cidr, listeners.pod_listeners
        if cidr and pod_listeners is not None:
            requeue = self.controller.queue.add
            self._names = HeadlessServices(cidr, pod_listeners, self.slices, requeue)

    def declare(self) -> Declaration:
        """What the engine runs."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                # Not replayed: `namespace_synced` queues every Service.
                Watch(self._home_pods, self.home_pod_changed, replay=False),
                Watch(
                    self._remote_pods,
                    self.remote_pod_changed,
                    replay=False,
                    on_state=self.remote_state_changed,
                ),
                Watch(self.slices, self.slice_changed),
            ],
            home_watches=[HomeWatch(SERVICES, self.service_changed)],
            requeue_namespace=self.namespace_synced,
            run=self.run,
        )

    # -- what changed ----------------------------------------------------------------------

    def service_changed(self, old: Object | None, new: Object | None) -> None:
        """A Service changed at home."""
        self.controller.queue.add(key_of(new or old or {}))

    def slice_changed(self, old: Object | None, new: Object | None) -> None:
        """A slice of ours changed, by us or by somebody else."""
        if self._names is not None:
            self._names.slice_changed(old, new)
        for key in _service_keys(new or old or {}):
            self.controller.queue.add(key)

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod of the node came, went, or changed in what is looked at."""
        if forward.plan_inputs(old) != forward.plan_inputs(new):
            for pod in (old, new):
                if pod is not None:
                    self._add_services_of(pod)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """So did one that stands for one of these."""
        if forward.plan_inputs(old) != forward.plan_inputs(new):
            origin = origin_of(new or old or {})
            if origin is not None:
                home = self._home_pods.store.get(Key(origin.namespace, origin.name))
                if home is not None:
                    self._add_services_of(home)

    def namespace_synced(self, namespace: HomeNamespace) -> None:
        """What Services home has in the namespace is known."""
        for service in self._services(namespace):
            self.controller.queue.add(key_of(service))
        for slice_ in self.slices.store:
            if namespace_of(slice_) == namespace:
                self.slice_changed(None, slice_)

    def remote_state_changed(self, informer: Informer) -> None:
        """The remote's pods cannot be watched, or can be again."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if informer.error is None:
            self._remote_is(away=False)
        else:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(REMOTE_GRACE, self._out_of_patience)

    def _out_of_patience(self) -> None:
        self._patience = None
        self._remote_is(away=self._remote_pods.error is not None)

    def _remote_is(self, *, away: bool) -> None:
        if away == self._away:
            return
        self._away = away
        said = (
            "the remote cannot be reached: its pods are taken out of home's Services"
            if away
            else "the remote can be reached again: its pods are behind home's Services again"
        )
        changes.info("relay: %s", said, extra=name_fields("Service", "", cluster="home"))
        for slice_ in self.slices.store:
            self.slice_changed(None, slice_)
        for namespace in {HomeNamespace(namespace_of(pod)) for pod in self._home_pods.store}:
            for service in self._services(namespace):
                self.controller.queue.add(key_of(service))

    def _add_services_of(self, pod: Object) -> None:
        for service in self._services(HomeNamespace(namespace_of(pod))):
            if forward.selects_pod(service, pod):
                self.controller.queue.add(key_of(service))

    # -- run -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Listens until cancelled, and takes back what is published before it stops to."""
        if self._names is not None:
            self._names.take_up()
        async with asyncio.TaskGroup() as group:
            carrying = self._listeners.run(self._limited)
            listening = group.create_task(carrying, name="relay-listeners")
            try:
                await self.controller.run()
            finally:
                if self._patience is not None:
                    self._patience.cancel()
                if await self._writer.withdraw(left=headless.not_ready_patch):
                    await asyncio.sleep(DRAIN_SECONDS)
                listening.cancel()

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        namespace = HomeNamespace(key.namespace)
        watch = self._watches.get(namespace)
        if watch is None and self._home_pods.store.has("namespace", namespace):
            return  # NB: the namespace is being listed; its keys come again when that is done.
        service = watch.informers[SERVICES].store.get(key) if watch is not None else None
        if service is None:
            self._news.forget(key)
            self._limited_at.pop(key, None)
        plan, placed = forward.NO_FORWARDING, dict[str, HeadlessEndpoint]()
        if service is not None and not is_deleting(service):
            plan, placed, left_out = self._plan(key, service)
            if left_out:
                said = "pods in the remote are not reached through this Service: "
                self._news.emit_on_change(service, "RelayLeftOut", said + "; ".join(left_out))
        if self._away:
            plan = forward.NO_FORWARDING
        present = self.slices.store.by_index("service", key)
        known = forward.recorded_forward_ports(present, key.name, self._identity)
        try:
            ports = await self._listeners.serve(key, plan, known)
            if self._names is not None:
                await self._names.serve(key, placed, reached=not self._away)
        except PortUnavailableError as error:
            if service is not None:
                self._news.emit_on_change(service, "RelayNoPort", str(error))
            raise ReconcileBlocked("RelayNoPort", str(error)) from error
        wanted: dict[str, Object] = {}
        if service is not None and ports:
            made = forward.forward_slices(service, ports, self._identity, address=self._address)
            wanted = {name_of(it): it for it in made}
        if service is not None and self._names is not None:
            wanted |= self._names.slices_of(service, placed, self._identity, reached=not self._away)
        await self._write(key, wanted, present)

    def _plan(
        self, key: Key, service: Object
    ) -> tuple[ForwardPlan, dict[str, HeadlessEndpoint], tuple[str, ...]]:
        """What to relay at the bridge's address, or at addresses of pods, and what is left out."""
        behind = self._behind(service)
        if self._names is None or not services.is_headless(service):
            plan = forward.plan_forwarding(service, behind, address=self._address)
            return plan, {}, plan.unsupported
        named = headless.plan_endpoints(service, behind, family=self._names.family)
        placed, lacking = self._names.place(key, named)
        return forward.NO_FORWARDING, placed, (*named.unsupported, *lacking)

    def _behind(self, service: Object) -> Iterator[tuple[Object, Object | None]]:
        for home in self._home_pods.store.by_index("namespace", namespace_of(service)):
            if forward.selects_pod(service, home):
                yield home, self._pods.remote_pod_of(home)

    async def _write(
        self, key: Key, wanted: Mapping[str, Object], present: Sequence[Object]
    ) -> None:
        """Has home's slices be these, and no others."""
        await self._writer.write(wanted, present)
        if len(wanted) != len({name_of(it) for it in present}):
            said = "Service %s: %d endpoint(s) for pods in the remote"
            changes.info(
                said,
                key,
                len(wanted),
                extra=name_fields("Service", key.name, namespace=key.namespace, cluster="home"),
            )

    # -- what cannot be done ---------------------------------------------------------------

    def _limited(self, key: Key, why: str) -> None:
        """Connections are refused. Thousands may be in a second: an Event is for the first."""
        now = asyncio.get_running_loop().time()
        if now - self._limited_at.get(key, -LIMITED_EVENT_INTERVAL) < LIMITED_EVENT_INTERVAL:
            return
        watch = self._watches.get(HomeNamespace(key.namespace))
        service = watch.informers[SERVICES].store.get(key) if watch is not None else None
        if service is None:
            return
        self._limited_at[key] = now
        message = f"connections to pods in the remote are refused: {why}"
        self._news.emit(service, "RelayLimited", message)

    # -- what is known ---------------------------------------------------------------------

    def _services(self, namespace: HomeNamespace) -> Iterable[Object]:
        watch = self._watches.get(namespace)
        return watch.informers[SERVICES].store if watch is not None else ()


def _service_keys(slice_: Object) -> Iterator[Key]:
    name = endpointslice.service_name(slice_)
    if name:
        yield Key(namespace_of(slice_), name)
