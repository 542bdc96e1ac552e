"""Two fake clusters with an engine between them. The test plays all other parties: users and
controllers of home, and the remote's scheduler and kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from sync.cache.informer import Informer
from sync.engine.controller_list import Build, ControllerOptions, build_controllers
from sync.engine.engine import Engine
from sync.kube.api_errors import Side
from sync.kube.api_resources import CONFIG_MAPS, EVENTS, NODES, PODS, SECRETS, Object
from sync.kube.client import KubeClient
from sync.relay.forward_controller import Listeners
from sync.relay.reverse_controller import Forwarder
from sync.runtime.workqueue import WorkQueue
from tests import objects
from tests.fakeapi import FakeApi
from tests.fakeapi.credentials import credentials_for
from tests.sync.informer_harness import all_caught_up
from tests.sync.memory_ownership_record import MemoryRecord
from translators.capacity.node_capacity import NO_LIMITS
from translators.translation_options import HostPort, Policy
from translators.virtual_node_identity import Identity, home_id_from_uid

NODE = "virtual"
ADDRESS = "192.0.2.7"
IDENTITY = Identity(
    home_id=home_id_from_uid("some uid"), home_name="h", node=NODE, accepted_namespaces=("*",)
)
#: The remote namespace of home's namespace ``default``.
REMOTE_NAMESPACE = "default-h"
#: Seconds within which a delayed key is due at once.
AT_ONCE = 0.02


def _is_due(queue: WorkQueue[Any]) -> bool:
    """Whether the first delayed key is due at once."""
    wait = queue.seconds_until_next_delayed
    return wait is not None and wait < AT_ONCE


class EngineHarness:
    """Use as an async context manager; `start` starts the engine, `stop` ends it."""

    def __init__(self, home: FakeApi, remote: FakeApi) -> None:
        self.home = home
        self.remote = remote
        self.identity = IDENTITY
        self.now = "2030-01-01T00:00:00Z"
        self.policy = Policy(
            self.identity, ADDRESS, service_accounts="none", home_api=HostPort("192.0.2.1", 6443)
        )
        self.record = MemoryRecord()
        self.namespace_linger = 60.0
        self.copy_linger = 0.0
        self.listeners: Listeners | None = None
        self.forwarder: Forwarder | None = None
        self.limits = NO_LIMITS
        self.build: Build = build_controllers
        home.api.clock = lambda: self.now
        self._clients = AsyncExitStack()
        self._engine: Engine | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EngineHarness:
        self.remote.put(objects.node("worker"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def engine(self) -> Engine:
        """The running engine."""
        assert self._engine is not None
        return self._engine

    async def start(self, *, settle: bool = True) -> None:
        """Starts an engine with empty caches."""
        self._task = asyncio.create_task(_run(await self._new_engine()))
        if settle:
            await self.settle()

    @asynccontextmanager
    async def standing_by(self) -> AsyncIterator[Engine]:
        """An engine on standby, until `take_over`."""
        engine = await self._new_engine()
        self._task = asyncio.create_task(engine.watch())
        try:
            await engine.synced()
            yield engine
        finally:
            await self.stop()

    async def take_over(self) -> None:
        """Lets the standby engine begin to work."""
        assert self._task is not None
        self._task = asyncio.create_task(_work_besides_watches(self._task, self.engine))
        await self.settle()

    async def _new_engine(self) -> Engine:
        home = await self._client(self.home, "home")
        remote = await self._client(self.remote, "remote")
        self._engine = Engine(
            home,
            remote,
            policy=replace(self.policy, identity=self.identity),
            record=self.record,
            options=ControllerOptions(
                namespace_linger=self.namespace_linger,
                copy_linger=self.copy_linger,
                listeners=self.listeners,
                forwarder=self.forwarder,
            ),
            limits=self.limits,
            now=lambda: self.now,
            build=self.build,
        )
        return self._engine

    async def start_running(self, **pod: Any) -> None:
        """Starts an engine, then a pod (arguments as of `pod`) that runs in the remote."""
        await self.start()
        name = self.pod(**pod)["metadata"]["name"]
        await self.settle()
        self.report_running(name)
        await self.settle()

    async def _client(self, api: FakeApi, side: Side) -> KubeClient:
        return await self._clients.enter_async_context(KubeClient(credentials_for(api, side)))

    async def stop(self) -> None:
        """Kills the engine without finishing its work."""
        if self._task is not None:
            self._task.cancel()
            (result,) = await asyncio.gather(self._task, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError), repr(result)
        await self._clients.aclose()
        self._engine = self._task = None

    async def wait_ended(self) -> None:
        """Waits for an engine that ends by itself, and raises its exception."""
        task, self._task = self._task, None
        assert task is not None
        try:
            await task
        finally:
            await self.stop()

    async def restart(self) -> None:
        """Replaces the engine by a new one, with cleared request logs."""
        await self.stop()
        self.clear_logs()
        await self.start()

    async def settle(self, *, waiting: bool = False) -> None:
        """Waits until all changes are cached and reconciled; with ``waiting`` keys may still
        fail."""
        async with asyncio.timeout(30):
            while True:
                before = self._progress()
                await self.caught_up()
                while not self._idle(waiting=waiting):
                    self.assert_running()
                    await asyncio.sleep(0.002)
                if before == self._progress():
                    return

    async def caught_up(self) -> None:
        """Waits until every informer has received all events of its server."""
        self.assert_running()
        sides: tuple[tuple[Side, FakeApi], ...] = (("remote", self.remote), ("home", self.home))
        for side, api in sides:
            await all_caught_up(api, partial(self._informers, side), skip_backoff=True)

    def _informers(self, side: Side) -> list[Informer]:
        return [it for it in self.engine.watches if it.client.side == side]

    def assert_running(self) -> None:
        assert self._task is not None
        assert not self._task.done(), self._task

    def _idle(self, *, waiting: bool) -> bool:
        # Checks of empty namespaces are due long after the test.
        controllers = [it for it in self.engine.controllers if it.name != "namespaces"]
        queues: list[WorkQueue[Any]] = [it.queue for it in controllers]
        return not self.engine.events.waiting and not any(
            len(queue)
            or queue.working
            # A delayed key that did not fail waits for its time, such as a token's renewal.
            or (queue.failing and not waiting)
            or _is_due(queue)
            for queue in queues
        )

    def _progress(self) -> tuple[object, ...]:
        revisions = [api.store.history.revision for api in (self.home, self.remote)]
        return (*revisions, *self.engine.watches)

    def clear_logs(self) -> None:
        """Clears the request logs."""
        self.home.clear_log()
        self.remote.clear_log()

    def writes(self) -> list[str]:
        """All writes to both clusters except Events, as ``home PATCH /api/v1/…``."""
        return [
            f"{side} {entry.method} {entry.path}"
            for side, api in (("home", self.home), ("remote", self.remote))
            for entry in api.writes()
            if not entry.path.endswith("/events")
        ]

    def pod(
        self,
        name: str = "a",
        namespace: str = "default",
        *,
        uses: Sequence[str] = (),
        labels: dict[str, str] | None = None,
        **spec: object,
    ) -> Object:
        """Creates a home pod on the virtual node; ``uses`` are ``cm/NAME`` and ``secret/NAME``."""
        pod = objects.pod(name, namespace, labels=labels, node=NODE)
        sources = []
        for use in uses:
            kind, _, used = use.partition("/")
            sources.append({"configMapRef" if kind == "cm" else "secretRef": {"name": used}})
        pod["spec"]["containers"][0]["envFrom"] = sources
        pod["spec"].update(spec)
        return self.home.put(pod)

    def home_pod(self, name: str = "a", namespace: str = "default") -> Object:
        """The home pod. Raises Refused if it does not exist."""
        return self.home.get(PODS, name, namespace)

    def status(self, name: str = "a", namespace: str = "default") -> Object:
        """The home pod's status."""
        status: Object = self.home_pod(name, namespace).get("status") or {}
        return status

    async def events_with_reason(self, reason: str) -> list[Object]:
        """The Events at home with this reason, once there is one."""

        def found() -> list[Object]:
            return [event for event in self.home.objects(EVENTS) if event["reason"] == reason]

        await self.home.until(found)
        return found()

    def remote_pod(self, name: str = "a", namespace: str = REMOTE_NAMESPACE) -> Object | None:
        """The remote pod."""
        return self.remote.find(PODS, name, namespace)

    def report_running(
        self, name: str = "a", namespace: str = REMOTE_NAMESPACE, **status: object
    ) -> Object:
        """Has the remote's scheduler and kubelet run the pod, with ``status`` merged into its
        status."""
        pod = self.remote.get(PODS, name, namespace)
        if not pod["spec"].get("nodeName"):
            self.remote.bind(name, "worker", namespace)
        running: Object = {
            "phase": "Running",
            "hostIP": "198.51.100.1",
            "hostIPs": [{"ip": "198.51.100.1"}],
            "podIP": "10.9.0.1",
            "podIPs": [{"ip": "10.9.0.1"}],
            "startTime": "2030-01-01T00:00:01Z",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True"},
            ],
            "containerStatuses": [
                {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}
            ],
        }
        return self.remote.update(PODS, name, {"status": running | status}, namespace)

    def report_terminated(
        self, phase: str, name: str = "a", namespace: str = REMOTE_NAMESPACE
    ) -> Object:
        """Has the remote pod's containers terminate in this phase."""
        code = 0 if phase == "Succeeded" else 1
        ended = {"name": "main", "state": {"terminated": {"exitCode": code}}}
        return self.report_running(name, namespace, phase=phase, containerStatuses=[ended])

    def config_map(self, name: str = "conf", namespace: str = REMOTE_NAMESPACE) -> Object | None:
        """The remote ConfigMap."""
        return self.remote.find(CONFIG_MAPS, name, namespace)

    def secret(self, name: str = "key", namespace: str = REMOTE_NAMESPACE) -> Object | None:
        """The remote Secret."""
        return self.remote.find(SECRETS, name, namespace)

    def nodes(self) -> list[Object]:
        """The remote's nodes."""
        return self.remote.objects(NODES)


async def _run(engine: Engine) -> None:
    """Runs an engine that watches and works."""
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.watch())
        group.create_task(engine.work())


async def _work_besides_watches(watching: asyncio.Task[None], engine: Engine) -> None:
    """Lets a watching engine begin to work."""
    try:
        await engine.work()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
