"""Scripts in a container over an exec, against a server that runs them as a kubelet does."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import WSMsgType, web

from sync.base.background_task import background_task
from sync.kube import pod_exec
from sync.kube.api_errors import KubeError, Unreachable
from sync.kube.client import KubeClient
from sync.kube.pod_exec import PROTOCOL, ScriptFailed, ShellStream, failure_of, open_shell
from tests.bridge.kubelet.fake_api_servers import FakeRemote, UpgradeRequest
from tests.bridge.relay.fake_pods import Forward, server_frame
from tests.child_process import kill_group, piped_command
from tests.fakeapi.credentials import StaticCredentials

Play = Callable[[web.WebSocketResponse, str], Awaitable[None]]


@contextlib.asynccontextmanager
async def shell(play: Play, script: str = "true") -> AsyncIterator[ShellStream]:
    """The script's stream, while the server plays with the connection and the command."""

    async def handle(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,), autoping=False)
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):
            await play(socket, request.query.getall("command")[-1])
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/n/pods/p/exec", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with (
            KubeClient(StaticCredentials(f"http://127.0.0.1:{port}", "home", token=None)) as client,
            open_shell(client, script, namespace="n", pod="p", container="c") as made,
        ):
            yield made
    finally:
        await runner.cleanup()


async def run(socket: web.WebSocketResponse, command: str, size: int = 1000) -> None:
    """Runs the command until its client leaves, and sends its output in messages of this size."""
    async with piped_command("sh", "-c", command) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        async def feed() -> None:
            assert process.stdin is not None
            async for message in socket:
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
            kill_group(process)

        async with background_task(feed(), name="feed") as feeding:
            while data := await process.stdout.read(size):
                await socket.send_bytes(b"\1" + data)
            await feeding


async def output(running: ShellStream) -> bytes:
    return b"".join([data async for data in running.output()])


async def failed_output(running: ShellStream) -> tuple[bytes, str]:
    """The output and the error of a script that fails."""
    found = bytearray()

    async def read() -> None:
        async for data in running.output():
            found.extend(data)

    with pytest.raises(ScriptFailed) as caught:
        await read()
    return bytes(found), str(caught.value)


@pytest.mark.parametrize("size", [1, 7, 1000, 100_000])
async def test_output_ends_with_the_script(size: int) -> None:
    script = "seq 1 3000; printf end; echo one >&2; echo '  two ' >&2; exit 3"
    async with shell(lambda socket, command: run(socket, command, size), script) as running:
        found, error = await failed_output(running)
        assert found == "".join(f"{number}\n" for number in range(1, 3001)).encode() + b"end"
        assert error == "home: pod n/p: one; two"


@pytest.mark.parametrize("trailer", [b"\n%s\n", b"x" * 5000 + b"\n%s\n", b"%s\n\n%s\n"])
async def test_malformed_trailer_is_an_error(trailer: bytes) -> None:
    """It once raised ValueError."""

    async def play(socket: web.WebSocketResponse, command: str) -> None:
        token = re.findall(r"[0-9a-f]{32}", command)[0].encode()
        await socket.send_bytes(b"\1" + trailer.replace(b"%s", token))

    async with shell(play) as running:
        with pytest.raises(KubeError, match=r"broke|exit status unknown"):
            await output(running)


async def test_flood_of_messages_leaves_turns_to_other_work() -> None:
    """One read of them once kept the event loop busy until all were handled."""
    turns, seen = 0, set[int]()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def flood(request: UpgradeRequest) -> None:
        opening = Forward(request, "p", 0).opening()
        await request.send(opening + server_frame(2, b"\1") * 5_000)

    async with FakeRemote() as remote, background_task(count_turns(), name="turns"):
        remote.handler = flood
        async with (
            KubeClient(StaticCredentials(remote.url, "remote", token=None)) as client,
            open_shell(client, "a", namespace="n", pod="p", container="c") as running,
        ):
            with contextlib.suppress(Unreachable):  # the output has no end
                async for _ in running.output():
                    seen.add(turns)
    assert len(seen) > 1_000


@pytest.mark.parametrize("status", [b"[]", b"null", b"5", b'"x"', b"{", b""])
def test_malformed_status_is_a_failure(status: bytes) -> None:
    assert "is unknown" in failure_of(status)


async def test_script_without_output_succeeds() -> None:
    async with shell(run) as running:
        assert await output(running) == b""


async def test_failure_without_a_message_has_the_exit_status() -> None:
    async with shell(run, "exit 4") as running:
        assert await failed_output(running) == (b"", "home: pod n/p: exit status 4")


async def test_long_standard_error_is_cut() -> None:
    async with shell(run, "seq 1 5000 >&2; false") as running:
        _, error = await failed_output(running)
        assert error.startswith("home: pod n/p: ")
        assert len(error) < 1000


async def test_input_arrives_in_order() -> None:
    data = bytes(range(256)) * 4000
    async with shell(run, f"head -c {len(data)}") as running:
        for begin in range(0, len(data), 100_000):
            await running.write(data[begin : begin + 100_000])
        assert await output(running) == data


async def test_script_stays_until_the_client_closes_the_connection() -> None:
    """So the tail of its output is never lost."""
    ended = asyncio.Event()

    async def play(socket: web.WebSocketResponse, command: str) -> None:
        await run(socket, command)
        ended.set()

    async with shell(play, "echo all") as running:
        assert await output(running) == b"all\n"
        await asyncio.sleep(1)
        assert not ended.is_set()
    await ended.wait()


async def test_output_without_its_trailer_is_broken() -> None:
    async def play(socket: web.WebSocketResponse, _command: str) -> None:
        await socket.send_bytes(b"\1" + b"part" * 1000)

    async with shell(play) as running:
        with pytest.raises(Unreachable, match="broke before the command ended"):
            await output(running)


async def test_command_that_cannot_run_is_reported() -> None:
    async def play(socket: web.WebSocketResponse, _command: str) -> None:
        await socket.send_bytes(b'\3{"status":"Failure","message":"no such container"}')

    async with shell(play) as running:
        with pytest.raises(Unreachable, match="no such container"):
            await output(running)


async def test_status_that_is_no_object_is_reported() -> None:
    async def play(socket: web.WebSocketResponse, _command: str) -> None:
        await socket.send_bytes(b"\3[]")

    async with shell(play) as running:
        with pytest.raises(Unreachable, match="its status is not that of an API server"):
            await output(running)


@pytest.mark.real_time
async def test_output_that_nobody_reads_pauses_the_server() -> None:
    sent = 0

    async def play(socket: web.WebSocketResponse, _command: str) -> None:
        nonlocal sent
        for _ in range(2000):
            await socket.send_bytes(b"\1" + bytes(64 * 1024))
            sent += 64 * 1024

    async with shell(play):
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert 0 < sent < 64 * 1024 * 1024


@pytest.mark.real_time
async def test_command_that_does_not_read_pauses_the_client() -> None:
    async def play(socket: web.WebSocketResponse, _command: str) -> None:
        await asyncio.sleep(60)

    async with shell(play) as running:
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                while True:
                    await running.write(bytes(128 * 1024))
                    sent += 128 * 1024
        assert 0 < sent < 64 * 1024 * 1024


async def test_idle_connection_is_pinged() -> None:
    pings = 0

    async def play(socket: web.WebSocketResponse, _command: str) -> None:
        nonlocal pings
        while (message := await socket.receive()).type is WSMsgType.PING:
            pings += 1
            await socket.pong(message.data)

    async with shell(play):
        await asyncio.sleep(4.5 * pod_exec.PING_SECONDS)
    assert pings == 4
