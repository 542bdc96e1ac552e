"""Clients of UDP in a remote, and pods of UDP at home."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.bridge.kubelet.fake_api_servers import wait_until
from tests.bridge.relay.reverse.reverse_world import HERE, POD, SHOP, ReverseWorld
from translators.relay.reverse_plan import HomeTarget, ReverseRoute

#: The longest datagram of UDP over IPv4: 65,535 bytes less the two headers.
LONGEST = 65507
#: Seconds that a client waits for what has to come.
PATIENCE = 30.0
#: Makes datagrams differ from each other.
_NUMBERS = itertools.count()
Answer = Callable[[bytes, Any], bytes | None]


class UdpPod:
    """A pod at home that answers each datagram."""

    def __init__(self, answer: Answer, address: str = HERE) -> None:
        self._answer = answer
        self._address = address
        self.peers: list[Any] = []
        self.sock = udp_socket(address)
        self.sock.bind((address, 0))

    def receive(self) -> None:
        data, peer = self.sock.recvfrom(1 << 16)
        if peer not in self.peers:
            self.peers.append(peer)
        answer = self._answer(data, peer)
        if answer is not None:
            self.sock.sendto(answer, peer)

    @property
    def target(self) -> HomeTarget:
        return HomeTarget(self._address, self.sock.getsockname()[1])


def udp_socket(address: str) -> socket.socket:
    """A socket of the address's family."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    return sock


@asynccontextmanager
async def udp_pod(answer: Answer, address: str = HERE) -> AsyncIterator[UdpPod]:
    loop = asyncio.get_running_loop()
    pod = UdpPod(answer, address)
    loop.add_reader(pod.sock, pod.receive)
    try:
        yield pod
    finally:
        loop.remove_reader(pod.sock)
        pod.sock.close()


def named(name: bytes) -> Answer:
    """A pod that answers with its name and the request."""
    return lambda data, _: name + b":" + data


def echo(data: bytes, _: Any) -> bytes:
    return data


def silent(_: bytes, __: Any) -> None:
    return None


class Client:
    """A client in the remote: one address and port."""

    def __init__(self, port: int, address: str = HERE) -> None:
        self.sock = udp_socket(address)
        self.sock.connect((address, port))

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)

    async def ask(self, data: bytes | None = None) -> bytes:
        """Sends a datagram, by default one like no other, and repeats it on a machine that stalls;
        returns the answer to it."""
        if data is None:
            data = f"#{next(_NUMBERS)}".encode()
        async with asyncio.timeout(PATIENCE):
            while True:
                self.sock.send(data)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2):
                        while True:
                            answer = await self.receive()
                            if answer == data or answer.endswith(b":" + data):  # not a late one
                                return answer

    async def received(self, seconds: float) -> list[bytes]:
        """The datagrams that arrive within so many seconds."""
        found = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    found.append(await self.receive())
        return found

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def route(*targets: HomeTarget, sticky: bool = False) -> ReverseRoute:
    return ReverseRoute("dns", targets, sticky, port="dns", is_udp=True)


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


async def serve(
    back: ReverseWorld, *targets: HomeTarget, sticky: bool = False, count: int = 1
) -> list[int]:
    """Routes UDP ports of the agent to the targets and waits until they are open; returns them."""
    ports = [free_udp_port() for _ in range(count)]
    back.forwarder.update(SHOP, [POD], {port: route(*targets, sticky=sticky) for port in ports})
    await wait_until(lambda: back.forwarder.agent_state(POD).listening == {*ports})
    return ports


async def first_answer(client: Client) -> bytes:
    """The answer to a client that repeats an empty datagram: the stream may not be open yet."""
    async with asyncio.timeout(PATIENCE):
        while True:
            client.sock.send(b"")
            if found := await client.received(0.1):
                return found[0]
