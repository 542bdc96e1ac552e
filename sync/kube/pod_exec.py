"""A command in a container, run to its end: without input or terminal, its output collected.

Spoken as a WebSocket of `PROTOCOL`, which every API server understands that is in use. A failure of
the command is a value, `Output.failure`; what keeps it from running, or from being heard to its
end, is raised. When the caller is cancelled the connection is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import orjson

from sync.kube.client import KubeClient
from sync.kube.errors import Unreachable
from sync.kube.resources import PODS

#: Of a binary message the first byte says which stream the rest belongs to: standard output,
#: standard error, and the end as a v1.Status (k8s.io/apimachinery/pkg/util/remotecommand).
PROTOCOL = "v4.channel.k8s.io"
_OUTPUT, _ERROR, _END = 1, 2, 3


class OutputLimitExceeded(Exception):
    """The command has written more than was asked to be kept."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a command has written."""

    stdout: bytes
    stderr: bytes
    failure: str
    """Why it failed, in the server's words, the exit code among them; "" when it did not."""


async def run_command(
    client: KubeClient, *, namespace: str, pod: str, container: str, argv: Sequence[str], limit: int
) -> Output:
    """Runs it, and returns when it has ended.

    Raises TooMuchOutput beyond ``limit`` bytes of both streams together, and the errors of
    `KubeClient.websocket`.
    """
    path = PODS.path(pod, namespace=namespace, subresource="exec")
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", argument) for argument in argv]
    streams = {_OUTPUT: bytearray(), _ERROR: bytearray(), _END: bytearray()}
    async with client.websocket(path, query=query, protocol=PROTOCOL) as socket:
        with client.map_read_errors(path):
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY and message.data:
                    streams.setdefault(message.data[0], bytearray()).extend(message.data[1:])
                if sum(map(len, streams.values())) > limit:
                    raise OutputLimitExceeded
    if not streams[_END]:
        raise Unreachable(
            "the connection broke before the command ended", side=client.side, what=f"GET {path}"
        )
    return Output(bytes(streams[_OUTPUT]), bytes(streams[_ERROR]), _failure(streams[_END]))


def _failure(end: bytes | bytearray) -> str:
    try:
        status = orjson.loads(end)
    except orjson.JSONDecodeError:
        return "the end of the command is not known: its status is no JSON"
    if status.get("status") == "Success":
        return ""
    return str(status.get("message") or "the command failed")
