"""Publishes pods of the remote in home's Services if no pod network connects the clusters.

For each Service at home that selects ready pods of the node, the bridge listens at home
(`Listeners`) and publishes EndpointSlices with its address (`translators.relay.forward_plan`).

- The bridge listens before it publishes, and continues to listen for a while after it unpublishes:
  kube-proxies need time to follow. After a restart it first requests the ports that the slices
  record, unless those of another Service record them, too.
- While the remote cannot be watched, the bridge publishes nothing, because connections would fail.
  It tolerates `REMOTE_GRACE` seconds, for example while one of several API servers restarts.
- A bridge that stops withdraws all its slices, including those being written, and marks pods with
  an address of their own as not ready. A killed bridge leaves its slices to the next one.
- Pods behind headless Services get an address each if `--relay-cidr` is set
  (`sync.relay.headless_forward`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_resources import ENDPOINT_SLICES, SERVICES
from sync.pods.pod_controller import PodController
from sync.relay import headless_forward
from sync.relay.endpoint_slices import EndpointSliceWriter
from sync.relay.headless_forward import AddressListeners, HeadlessServices
from sync.relay.unsupported_service_events import ServiceEvents
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import changes, name_fields
from translators.mirror import endpoint_slice
from translators.mirror.service import is_headless
from translators.object_accessors import HomeNamespace, Object, is_deleting, name_of, namespace_of
from translators.ownership_labels import origin_of
from translators.relay import forward_plan, headless_forward_plan
from translators.relay.forward_plan import EndpointPort, ForwardPlan
from translators.relay.headless_forward_plan import HeadlessEndpoint
from translators.relay.ipam import PodName

#: Services reconciled at once.
WORKERS = 8
#: Seconds without a watch of the remote after which its pods are removed from Services. Together
#: with the detection of the loss (`sync.kube.sockets.FAST_KEEPALIVE_SECONDS`) less than ten.
REMOTE_GRACE = 2.0
#: Seconds after a withdrawal in which connections are still accepted: kube-proxy batches changes
#: for a second (iptables.minSyncPeriod). Ends before the Lease expires.
DRAIN_SECONDS = 1.5
#: Seconds until the Event about rejected connections of a Service is repeated.
LIMITED_EVENT_INTERVAL = 300.0

#: Called with a Service, a connection of which a limit rejects, and the reason as a clause.
OnLimited = Callable[[Key, str], None]


class PortUnavailableError(Exception):
    """The bridge cannot listen on a port; the message has the cause and the remedy."""


class Listeners(Protocol):
    """Listens at home and forwards connections (implemented in `bridge.relay.forward`)."""

    @property
    def pod_listeners(self) -> AddressListeners | None:
        """The listeners on pod addresses; None without `--relay-cidr`."""

    async def serve(
        self, key: Key, plan: ForwardPlan, previous_ports: Mapping[EndpointPort, int]
    ) -> dict[EndpointPort, int]:
        """Listens for the Service at the plan's endpoint ports only, on ``previous_ports`` if they
        are free, and returns the port of each. Raises PortUnavailableError."""

    async def run(self, on_limited: OnLimited) -> None:
        """Forwards connections until cancelled, then ends those that are open. Calls
        ``on_limited`` for each connection that a limit or rate rejects."""


class ForwardRelayController:
    """Reconciles Services at home."""

    def __init__(
        self, context: ControllerContext, listeners: Listeners, *, pods: PodController
    ) -> None:
        self._client = context.account
        self._listeners = listeners
        self._identity = context.identity
        self._address = context.policy.relay_address
        self._watches = context.watches
        self._pods = pods
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._events = ServiceEvents(context.events)
        self.slices = Informer(
            context.account,
            ENDPOINT_SLICES,
            labels=forward_plan.slice_selector(context.identity),
            indexers={
                "service": _service_keys,
                "port": partial(forward_plan.recorded_port_numbers, context.identity),
                **headless_forward.indexers(context.identity),
            },
        )
        self._writer = EndpointSliceWriter(context.account, self.slices)
        self._remote_lost = False
        self._grace_timer: asyncio.TimerHandle | None = None
        # When the last Event about rejected connections was emitted, in the loop's time.
        self._limited_at: dict[Key, float] = {}
        self.controller: Controller[Key] = Controller(
            "relay", self._reconcile, workers=WORKERS, kind="Service"
        )
        self._headless: HeadlessServices | None = None
        cidr, pod_listeners = context.policy.relay_cidr, listeners.pod_listeners
        if cidr and pod_listeners is not None:
            requeue = self.controller.queue.add
            self._headless = HeadlessServices(
                cidr, pod_listeners, self.slices, context.identity, requeue
            )

    def declare(self) -> Declaration:
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

    # -- from changes to keys --------------------------------------------------------------

    def service_changed(self, old: Object | None, new: Object | None) -> None:
        self.controller.queue.add(key_of(new or old or {}))

    def slice_changed(self, old: Object | None, new: Object | None) -> None:
        if self._headless is not None:
            self._headless.slice_changed(old, new)
        for key in _service_keys(new or old or {}):
            self.controller.queue.add(key)

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        if forward_plan.plan_inputs(old) != forward_plan.plan_inputs(new):
            for pod in (old, new):
                if pod is not None:
                    self._queue_services_of(pod)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        if forward_plan.plan_inputs(old) != forward_plan.plan_inputs(new):
            origin = origin_of(new or old or {})
            if origin is not None:
                home = self._home_pods.store.get(Key(origin.namespace, origin.name))
                if home is not None:
                    self._queue_services_of(home)

    def namespace_synced(self, namespace: HomeNamespace) -> None:
        for service in self._watches.store(namespace, SERVICES):
            self.controller.queue.add(key_of(service))
        for slice_ in self.slices.store:
            if namespace_of(slice_) == namespace:
                self.slice_changed(None, slice_)

    def remote_state_changed(self, informer: Informer) -> None:
        """The watch of the remote's pods was lost or restored."""
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        if informer.error is None:
            self._set_remote_lost(False)
        else:
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(REMOTE_GRACE, self._set_remote_lost, True)

    def _set_remote_lost(self, lost: bool) -> None:
        if lost == self._remote_lost:
            return
        self._remote_lost = lost
        change = (
            "unreachable: removing its pods from" if lost else "reachable again: adding its pods to"
        )
        fields = name_fields("Service", "", cluster="home")
        changes.info("relay: remote %s home's Services", change, extra=fields)
        for slice_ in self.slices.store:
            self.slice_changed(None, slice_)
        for namespace in {HomeNamespace(namespace_of(pod)) for pod in self._home_pods.store}:
            for service in self._watches.store(namespace, SERVICES):
                self.controller.queue.add(key_of(service))

    def _queue_services_of(self, pod: Object) -> None:
        for service in self._watches.store(HomeNamespace(namespace_of(pod)), SERVICES):
            if forward_plan.selects_pod(service, pod):
                self.controller.queue.add(key_of(service))

    # -- run -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled; then withdraws the slices before it closes the listeners."""
        if self._headless is not None:
            self._headless.restore(self._runs_in_remote)
        async with asyncio.TaskGroup() as group:
            listeners = self._listeners.run(self._report_limited)
            listening = group.create_task(listeners, name="relay-listeners")
            try:
                await self.controller.run()
            finally:
                if self._grace_timer is not None:
                    self._grace_timer.cancel()
                if await self._writer.withdraw(patch_for=headless_forward_plan.not_ready_patch):
                    await asyncio.sleep(DRAIN_SECONDS)
                listening.cancel()

    # -- reconcile -------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        namespace = HomeNamespace(key.namespace)
        if self._watches.get(namespace) is None and self._home_pods.store.has(
            "namespace", namespace
        ):
            return  # The namespace is being listed; `namespace_synced` queues the key again.
        service = self._watches.store(namespace, SERVICES).get(key)
        if service is None:
            self._events.forget(key)
            self._limited_at.pop(key, None)
        plan, assigned = forward_plan.NO_FORWARDING, dict[str, HeadlessEndpoint]()
        if service is not None and not is_deleting(service):
            plan, assigned, unsupported = self._plan(key, service)
            if unsupported:
                message = "pods in the remote are not reached through this Service: "
                message += "; ".join(unsupported)
                self._events.emit_on_change(service, "RelayLeftOut", message)
        reachable = not self._remote_lost
        if not reachable:
            plan = forward_plan.NO_FORWARDING
        present = self.slices.store.by_index("service", key)
        try:
            ports = await self._listeners.serve(key, plan, self._recorded_ports(key))
            if self._headless is not None:
                await self._headless.serve(key, assigned, reachable=reachable)
        except PortUnavailableError as error:
            if service is not None:
                self._events.emit_on_change(service, "RelayNoPort", str(error))
            raise ReconcileBlocked("RelayNoPort", str(error)) from error
        desired: dict[str, Object] = {}
        if service is not None and ports:
            address = self._address
            slices = forward_plan.forward_slices(service, ports, self._identity, address=address)
            desired = {name_of(it): it for it in slices}
        if service is not None and self._headless is not None:
            desired |= self._headless.slices_of(service, assigned, reachable=reachable)
        await self._write_slices(key, desired, present)

    async def _write_slices(
        self, key: Key, desired: Mapping[str, Object], present: Sequence[Object]
    ) -> None:
        if wait := await self._writer.write(desired, present):
            self.controller.queue.add_after(key, wait)
        if len(desired) != len({name_of(it) for it in present}):
            fields = name_fields("Service", key.name, namespace=key.namespace, cluster="home")
            message = "Service %s: %d endpoint(s) for pods in the remote"
            changes.info(message, key, len(desired), extra=fields)

    def _plan(
        self, key: Key, service: Object
    ) -> tuple[ForwardPlan, dict[str, HeadlessEndpoint], tuple[str, ...]]:
        """The plan for the bridge's address, the endpoints at pod addresses (one of the two is
        empty), and messages about what is unsupported."""
        selected = self._selected_pods(service)
        if self._headless is None or not is_headless(service):
            plan = forward_plan.plan_forwarding(service, selected, address=self._address)
            return plan, {}, plan.unsupported
        endpoints = headless_forward_plan.plan_endpoints(
            service, selected, family=self._headless.family
        )
        assigned, lacking = self._headless.assign(key, endpoints)
        return forward_plan.NO_FORWARDING, assigned, (*endpoints.unsupported, *lacking)

    def _recorded_ports(self, key: Key) -> dict[EndpointPort, int]:
        """The ports of an earlier bridge, without those that slices of another Service record as
        well: users can write slices, so neither is known to be true."""
        present = self.slices.store.by_index("service", key)
        ports = forward_plan.recorded_forward_ports(present, key.name, self._identity)
        return {
            endpoint_port: number
            for endpoint_port, number in ports.items()
            if all(
                key in _service_keys(slice_)
                for slice_ in self.slices.store.by_index("port", number)
            )
        }

    def _selected_pods(self, service: Object) -> Iterator[tuple[Object, Object | None]]:
        """The node's pods that the Service selects: (home pod, remote pod)."""
        for home in self._home_pods.store.by_index("namespace", namespace_of(service)):
            if forward_plan.selects_pod(service, home):
                yield home, self._pods.remote_pod_of(home)

    def _runs_in_remote(self, pod: PodName) -> bool:
        home = self._home_pods.store.get(Key(*pod))
        return home is not None and self._pods.remote_pod_of(home) is not None

    def _report_limited(self, key: Key, reason: str) -> None:
        """Emits an Event about rejected connections, at most one per `LIMITED_EVENT_INTERVAL`."""
        now = asyncio.get_running_loop().time()
        if now - self._limited_at.get(key, -LIMITED_EVENT_INTERVAL) < LIMITED_EVENT_INTERVAL:
            return
        service = self._watches.store(HomeNamespace(key.namespace), SERVICES).get(key)
        if service is None:
            return
        self._limited_at[key] = now
        message = f"connections to pods in the remote are rejected: {reason}"
        self._events.emit(service, "RelayLimited", message)


def _service_keys(slice_: Object) -> Iterator[Key]:
    name = endpoint_slice.service_name(slice_)
    if name:
        yield Key(namespace_of(slice_), name)
