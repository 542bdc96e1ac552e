"""A relay agent in a remote, a bridge that is connected to it, and pods at home."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bridge.base.join_settings import RelaySettings
from bridge.relay.relay_counters import ReverseRelayMetrics
from bridge.relay.reverse.home_pod_connections import HomePodConnections
from bridge.relay.reverse.relay_agent import RelayAgent
from sync.kube.client import KubeClient
from tests.bridge.kubelet.fake_api_servers import FakeRemote, access_for, wait_until
from tests.bridge.relay.fake_pods import Forward, answer_at, serve_pods
from translators.object_accessors import HomeNamespace, Object
from translators.relay.agent_pod import CONTROL_PORT
from translators.relay.reverse_plan import HomeTarget, ReverseRoute

HERE = "127.0.0.1"
SHOP = HomeNamespace("shop")
POD: Object = {"metadata": {"name": "relay", "namespace": "shop-h", "uid": "uid-relay"}}
Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


class ReverseWorld:
    """A relay agent in a remote, a bridge that is connected to it, and pods at home."""

    def __init__(self, remote: FakeRemote, relay: RelayAgent, settings: RelaySettings) -> None:
        self.remote = remote
        self.relay = relay
        self.metrics = ReverseRelayMetrics()
        self.leads = True
        self.port = free_port()
        self.forwarder = HomePodConnections(
            KubeClient(access_for(remote.url, "remote")),
            settings=settings,
            metrics=self.metrics,
            is_leader=lambda: self.leads,
        )
        serve_pods(remote, {"relay": self._forwarded})
        self.forwards = 0

    async def _forwarded(self, forward: Forward) -> None:
        """As a kubelet does it: what comes goes to a port of the pod's loopback, and back."""
        assert forward.port == CONTROL_PORT, "only the control port is forwarded"
        self.forwards += 1
        reader, writer = await asyncio.open_connection(HERE, self.relay.control_port)

        async def out() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    await forward.send(data)
            await forward.close()

        back = asyncio.create_task(out())
        try:
            while data := await forward.receive():
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            await asyncio.gather(back, return_exceptions=True)

    def show(self, *targets: HomeTarget, sticky: bool = False) -> None:
        routes = {self.port: ReverseRoute("web", targets, sticky)}
        self.forwarder.update(SHOP, [POD], routes)

    def has(self, count: int) -> bool:
        """Whether so many connections are open."""
        return self.metrics.open == count

    async def ready(self) -> None:
        await wait_until(lambda: self.forwarder.agent_state(POD).listening == {self.port})

    async def ask(self, data: bytes = b"who?") -> bytes:
        """Connects as a client in the remote; returns the received data. Raises
        ConnectionResetError."""
        return await answer_at(HERE, self.port, data)


@asynccontextmanager
async def at_home(serve: Serving) -> AsyncIterator[HomeTarget]:
    """A pod at home."""
    tasks: set[asyncio.Task[Any]] = set()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(client, HERE, 0)
    try:
        yield HomeTarget(HERE, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def relayed(
    settings: RelaySettings | None = None, *, hold_timeout: float = 5.0, host: str = HERE
) -> AsyncIterator[ReverseWorld]:
    """All of it at work. The agent listens on ``host`` for pods of the remote."""
    relay = RelayAgent(host=host, control_port=0, hold_timeout=hold_timeout)
    stop = asyncio.Event()
    running = asyncio.create_task(relay.run(stop))
    await wait_until(lambda: relay.control_port > 0)
    async with FakeRemote() as remote:
        back = ReverseWorld(remote, relay, settings or RelaySettings())
        forwarding = asyncio.create_task(back.forwarder.run())
        await asyncio.sleep(0)
        try:
            yield back
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
            assert back.metrics.open == 0
            assert back.metrics.agents == 0
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
