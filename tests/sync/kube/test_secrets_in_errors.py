"""No error contains the content of a request or a response, whatever the server sends.

The exception is the ``message`` of a Status, which the server writes for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sync.kube.api_errors import KubeError
from sync.kube.api_resources import SECRETS
from sync.kube.client import KubeClient
from tests.fakeapi.credentials import StaticCredentials
from tests.objects import secret

CANARY = "canary4711"
TOKEN = "token0815"

_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BROKEN = {
    "no HTTP": f"{CANARY}\r\n\r\n",
    "bad header": f"HTTP/1.1 200 OK\r\n{CANARY}\r\n\r\n",
    "bad header value": f"HTTP/1.1 200 OK\r\nContent-Length: {CANARY}\r\n\r\n",
    "bad chunk": f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n{CANARY}\r\n",
    "chunk without end": f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\n{CANARY}",
    "cut": f"{_HEAD}Content-Length: 99\r\n\r\n{CANARY}",
    "no JSON": f"{_HEAD}Content-Length: 10\r\n\r\n{CANARY}",
    "no gzip": f"{_HEAD}Content-Encoding: gzip\r\nContent-Length: 10\r\n\r\n{CANARY}",
    "failure": f"HTTP/1.1 500 {CANARY}\r\nContent-Length: 10\r\n\r\n{CANARY}",
}
#: Everything that a server could send: parts of HTTP in any order, the canary between them.
PARTS = st.sampled_from(
    [
        _HEAD,
        "\r\n",
        CANARY,
        "Content-Length: 10\r\n",
        "Transfer-Encoding: chunked\r\n",
        "a\r\n",
        "{",
    ]
)


@contextlib.asynccontextmanager
async def server_saying(answer: str) -> AsyncIterator[KubeClient]:
    """A client of a server that answers every request with this text and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer.encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    access = StaticCredentials(url, "remote", token=TOKEN)
    async with server, KubeClient(access) as client:
        yield client


def shown(error: BaseException) -> str:
    """All that a log would show of the error: its traceback, and each cause's repr."""
    text = "".join(traceback.format_exception(error))
    at: BaseException | None = error
    while at is not None:
        text += repr(at)
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return text


async def error_of(client: KubeClient, how: str) -> KubeError | None:
    try:
        if how == "request":
            body = secret("s", data={"key": CANARY})
            await client.create(SECRETS, body, namespace="default")
        else:
            path = SECRETS.path()
            async with client.stream(path) as response:
                with client.map_read_errors(path):
                    await response.read()
    except KubeError as error:
        return error
    return None


@pytest.mark.parametrize("how", ["request", "stream"])
@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
async def test_errors_do_not_quote_malformed_responses(answer: str, how: str) -> None:
    async with server_saying(answer) as client:
        error = await error_of(client, how)
    assert error is not None or (how == "stream" and answer == BROKEN["no JSON"])
    if error is not None:
        assert CANARY not in shown(error)
        assert TOKEN not in shown(error)


@settings(max_examples=50)
@given(parts=st.lists(PARTS, max_size=8), how=st.sampled_from(["request", "stream"]))
def test_errors_do_not_quote_any_response(parts: list[str], how: str) -> None:
    async def run() -> KubeError | None:
        async with server_saying("".join(parts)) as client:
            return await error_of(client, how)

    error = asyncio.run(run())
    if error is not None:
        assert CANARY not in shown(error)
        assert TOKEN not in shown(error)
