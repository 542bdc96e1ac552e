"""Runs a shell script in a container and streams its input and output.

The status that an exec reports can be lost: when a command ends, a kubelet may reset the connection
before its last messages have arrived. So the script runs in a shell that writes a trailer to
standard output, with a token that no output contains and the exit status, and then waits until the
client closes the connection, or some seconds if the client has ended its input. Output is complete
exactly if its trailer has arrived.

The exec uses SPDY (`sync.kube.spdy_exec`), or a WebSocket where the server has no SPDY.

Memory is bounded: a slow reader or a slow command pauses the sender, and at most one message and
the buffers of one connection are held in each direction.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import aiohttp
import orjson

from sync.kube.api_errors import Unreachable
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.kube.pod_exec import PROTOCOL
from sync.kube.spdy_exec import SpdyExec, open_spdy_exec

_STDOUT, _STDERR, _STATUS = 1, 2, 3
#: Bytes of standard error that are kept: the last.
STDERR_MAX = 4096
#: Seconds for the rest of standard error after the end of standard output.
STDERR_SECONDS = 5.0
_TOKEN_BYTES = 16
#: Seconds in which the client receives the trailer of a script whose input has ended.
_LINGER_SECONDS = 10
#: Bytes of the trailer: end of line, token, blank, three digits, end of line.
_TRAILER = 2 * _TOKEN_BYTES + 6


class _Exec(Protocol):
    """The connection of an exec. Both methods raise OSError and aiohttp's errors."""

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Sends standard input. Returns when the connection's buffer has room."""

    def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Channels and their bytes, until the connection ends."""
        ...


class _WebSocketExec:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        if is_last:
            raise RuntimeError("a WebSocket cannot end the input of a command")
        await self._socket.send_bytes(b"\0" + data)

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY and len(message.data) > 1:
                yield message.data[0], message.data[1:]


class ShellStream:
    """A script that runs in a container: `output` reads it, `write` feeds it."""

    def __init__(self, connection: _Exec, client: KubeClient, path: str, token: str) -> None:
        self._connection = connection
        self._client = client
        self._path = path
        self._token = token.encode()
        self._end = re.compile(rb"\n%s (\d{3})\n" % token.encode())
        self._stderr = bytearray()
        self.exit_status: int | None = None
        """The script's exit status; None until `output` has ended."""

    @property
    def stderr(self) -> str:
        """The last standard error, in one line."""
        text = self._stderr.partition(self._token)[0].decode(errors="replace")
        lines = text.splitlines()
        return "; ".join(line.strip() for line in lines if line.strip())

    async def write(self, data: bytes) -> None:
        """Sends standard input. Returns when the connection's buffer has room. Raises
        Unreachable."""
        with self._client.map_read_errors(self._path):
            await self._connection.send(data)

    @property
    def can_end_input(self) -> bool:
        """Whether the connection can end standard input before the script ends."""
        return isinstance(self._connection, SpdyExec)

    async def end_input(self) -> None:
        """Ends standard input. Raises Unreachable."""
        with self._client.map_read_errors(self._path):
            await self._connection.send(b"", is_last=True)

    async def output(self) -> AsyncIterator[bytes]:
        """Standard output, as it arrives. Raises Unreachable if the connection ends before the
        script has."""
        held = b""
        async for data in self._stdout():
            tail = data[-_TRAILER:] if len(data) >= _TRAILER else (held + data)[-_TRAILER:]
            if (end := self._end.fullmatch(tail)) is not None:
                self.exit_status = int(end[1])
                if rest := (held + data)[:-_TRAILER]:
                    yield rest
                if self.exit_status:
                    await self._read_stderr()
                return
            if len(data) >= _TRAILER:
                if held:
                    yield held
                held = data
            else:
                held += data
                if len(held) > _TRAILER:
                    yield held[:-_TRAILER]
                    held = held[-_TRAILER:]
        raise Unreachable(
            "the connection broke before the command ended",
            side=self._client.side,
            what=f"GET {self._path}",
        )

    async def _read_stderr(self) -> None:
        """Reads standard error to its end, which can arrive after that of standard output."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STDERR_SECONDS):
                async for _ in self._stdout():
                    if self._token in self._stderr:
                        return

    async def _stdout(self) -> AsyncIterator[bytes]:
        with self._client.map_read_errors(self._path):
            async for channel, data in self._connection.messages():
                if channel == _STDOUT:
                    yield data
                elif channel == _STDERR:
                    self._stderr += data
                    del self._stderr[:-STDERR_MAX]
                elif channel == _STATUS and (reason := _failure(data)):
                    raise Unreachable(reason, side=self._client.side, what=f"GET {self._path}")


@asynccontextmanager
async def open_shell(
    client: KubeClient, script: str, *, namespace: str, pod: str, container: str
) -> AsyncIterator[ShellStream]:
    """Runs ``script`` with `sh` in the container. The end of the context closes the connection,
    which ends a script that still reads or writes. Raises the errors of `KubeClient.websocket`."""
    token = secrets.token_hex(_TOKEN_BYTES)
    path = PODS.path(pod, namespace=namespace, subresource="exec")
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", it) for it in ("sh", "-c", _with_trailer(script, token))]
    if (spdy := await open_spdy_exec(client.config, path, query)) is not None:
        try:
            yield ShellStream(spdy, client, path, token)
        finally:
            spdy.close()
        return
    async with client.websocket(path, query=query, protocol=PROTOCOL) as socket:
        yield ShellStream(_WebSocketExec(socket), client, path, token)


def _with_trailer(script: str, token: str) -> str:
    end = f"echo {token} >&2\nprintf '\\n%s %03d\\n' {token} $status"
    return f"(\n{script}\n)\nstatus=$?\n{end}\ncat >/dev/null\nexec sleep {_LINGER_SECONDS}"


def _failure(raw: bytes) -> str:
    """Why the command could not run, by the status that the server sends at its end; "" for an exit
    status, which the trailer has."""
    try:
        status = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(status, dict) or status.get("status") == "Success":
        return ""
    return str(status.get("message") or "the command failed")
