"""Runs commands in containers over a WebSocket of the subprotocol `PROTOCOL`, which every supported
API server speaks.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import orjson

from sync.base.background_task import background_task
from sync.kube.api_errors import KubeError, Unreachable
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.kube.response_limits import SHORT_LIMIT

#: The first byte of a message is its stream (k8s.io/apimachinery/pkg/util/remotecommand).
PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS = 0, 1, 2, 3


class OutputLimitExceeded(Exception):
    """Raised when the command writes more than its caller has memory for."""


@dataclass(frozen=True, slots=True)
class Output:
    """Output and result of a command that has ended."""

    stdout: bytes
    stderr: bytes
    failure: str
    """The server's message if the command failed, with the exit code; "" if it succeeded."""


async def run_command(
    client: KubeClient,
    *,
    namespace: str,
    pod: str,
    container: str,
    argv: Sequence[str],
    hold: Callable[[int], None],
    headers: Mapping[str, str] | None = None,
) -> Output:
    """Runs ``argv`` in the container, without stdin and terminal, and returns when the command has
    ended. A command that fails is a result (`Output.failure`); one that cannot run, or whose end is
    not received, raises. ``hold`` gets the bytes of the output so far, and may raise
    OutputLimitExceeded. Raises the errors of `KubeClient.websocket`, too. If the caller is
    cancelled, the connection is closed.
    """
    path = PODS.path(pod, namespace=namespace, subresource="exec")
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", argument) for argument in argv]
    streams = {_STDOUT: bytearray(), _STDERR: bytearray(), _STATUS: bytearray()}
    async with client.websocket(path, query=query, protocol=PROTOCOL, headers=headers) as socket:
        with client.map_read_errors(path):
            async for message in messages(socket):
                streams.setdefault(message[0], bytearray()).extend(message[1:])
                hold(sum(map(len, streams.values())))
    if not streams[_STATUS]:
        raise Unreachable(
            "the connection broke before the command ended", side=client.side, what=f"GET {path}"
        )
    return Output(bytes(streams[_STDOUT]), bytes(streams[_STDERR]), failure_of(streams[_STATUS]))


async def messages(socket: aiohttp.ClientWebSocketResponse[bool]) -> AsyncIterator[bytes]:
    """The binary messages that are not empty; pings are answered. Each message has a turn of the
    event loop, also pings: thousands may have arrived in one read."""
    async for message in socket:
        await asyncio.sleep(0)
        if message.type is aiohttp.WSMsgType.PING:
            await socket.pong(message.data)
        elif message.type is aiohttp.WSMsgType.BINARY and message.data:
            yield message.data


def failure_of(raw: bytes | bytearray) -> str:
    """The message of the status at the end of a command; "" for success."""
    try:
        status = orjson.loads(raw) if len(raw) <= SHORT_LIMIT else None
    except orjson.JSONDecodeError:
        status = None
    if not isinstance(status, dict):
        return "the result of the command is unknown: its status is not that of an API server"
    if status.get("status") == "Success":
        return ""
    return str(status.get("message") or "the command failed")


#: Seconds between two pings: proxies close connections that are idle.
PING_SECONDS = 20.0
#: Bytes of standard error in a trailer, and of a trailer at most.
_STDERR_MAX, _TRAILER_MAX = 2048, 2048 + 128


class ScriptFailed(KubeError):
    """Raised for an exit status other than 0; the message is the end of standard error."""


@dataclass(frozen=True, slots=True)
class ShellStream:
    """A script that runs in a container. Methods raise Unreachable if the connection breaks."""

    _socket: aiohttp.ClientWebSocketResponse[bool]
    _client: KubeClient
    _path: str
    _pod: str
    _token: bytes

    async def write(self, data: bytes) -> None:
        """Sends standard input. Returns when the connection's buffer has room."""
        with self._client.map_read_errors(self._path):
            await self._socket.send_bytes(bytes([_STDIN]) + data)

    async def output(self) -> AsyncIterator[bytes]:
        """Standard output, as it arrives. Raises ScriptFailed at its end."""
        held, reason = b"", "the connection broke before the command ended"
        with self._client.map_read_errors(self._path):
            async for message in messages(self._socket):
                if message[0] == _STATUS:
                    reason = failure_of(message[1:]) or reason
                if message[0] != _STDOUT:
                    continue
                held += message[1:]
                # Twice, or the server has made it up.
                if held.endswith(b"\n%s\n" % self._token) and held.count(self._token) > 1:
                    output, trailer, _ = held.rsplit(self._token, 2)
                    yield output[:-1]
                    lines = map(str.strip, trailer.decode(errors="replace").split("\n"))
                    status, *stderr = [*filter(None, lines)] or ["unknown"]
                    if status != "0":
                        cause = "; ".join(stderr) or f"exit status {status}"
                        raise ScriptFailed(cause, side=self._client.side, what=self._pod)
                    return
                yield held[:-_TRAILER_MAX]
                held = held[-_TRAILER_MAX:]
        raise Unreachable(reason, side=self._client.side, what=self._pod)


@asynccontextmanager
async def open_shell(
    client: KubeClient, script: str, *, namespace: str, pod: str, container: str
) -> AsyncIterator[ShellStream]:
    """Runs ``script`` with `sh` in the container, and streams its input and output.

    The status that an exec reports, and the tail of its output, can be lost: when a command ends, a
    kubelet may reset the connection before its last messages have arrived. So a shell around the
    script writes a trailer to standard output, between two lines with a token that no output
    contains: the exit status and the end of standard error. Then the shell waits until the client
    closes the connection. Output is complete exactly if the trailer has arrived.

    The input has no end: a script reads a number of bytes that it contains. API servers pass this
    protocol on unparsed; v5.channel.k8s.io, whose input has an end, is translated. Memory is
    bounded: a slow reader or a slow script pauses the sender.

    The end of the context closes the connection, which ends a script that still reads or writes.
    Raises the errors of `KubeClient.websocket`.
    """
    token = secrets.token_hex(16)
    wrapped = f"""(
{script}
) 2>/tmp/stderr.$$
printf '\\n{token} %d\\n' $?
tail -c {_STDERR_MAX} /tmp/stderr.$$
printf '\\n{token}\\n'
cat >/dev/null"""
    path = PODS.path(pod, namespace=namespace, subresource="exec")
    query = [("container", container), ("stdin", "true"), ("stdout", "true")]
    query += [("command", argument) for argument in ("sh", "-c", wrapped)]

    async def ping() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(PING_SECONDS)
                await socket.ping()

    async with (
        client.websocket(path, query=query, protocol=PROTOCOL) as socket,
        background_task(ping(), name="ping"),
    ):
        yield ShellStream(socket, client, path, f"pod {namespace}/{pod}", token.encode())
