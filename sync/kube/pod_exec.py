"""Runs a command in a container to its end, without stdin and terminal, and collects its output.

The WebSocket subprotocol is `PROTOCOL`, which every supported API server speaks. A command that
fails is a result (`Output.failure`); a command that cannot run, or whose end is not received,
raises. If the caller is cancelled, the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import orjson

from sync.kube.api_errors import Unreachable
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.kube.response_limits import SHORT_LIMIT

#: The first byte of a message is its stream (k8s.io/apimachinery/pkg/util/remotecommand).
PROTOCOL = "v4.channel.k8s.io"
_STDOUT, _STDERR, _STATUS = 1, 2, 3


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
    """Runs ``argv`` in the container and returns when the command has ended. ``hold`` gets the
    bytes of the output so far, and may raise OutputLimitExceeded. Raises the errors of
    `KubeClient.websocket`, too."""
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
