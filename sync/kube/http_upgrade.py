"""HTTP/1.1 upgrades (exec, attach, port-forward) at an API server, each on its own connection.

After a 101 the following bytes are passed unparsed to the protocol of `UpgradeResponse.take`.
Guarantees of `open_upgrade`:

- Bytes that arrive with the head, or before `take`, are not lost: the protocol receives them first.
- A response with a status of 400 and above is returned, since the caller forwards its body. Without
  such a response the call raises `Unreachable`, `ApiServerCertificateError` or `ClientConfigError`.
- After 401 the credential is read again and the request is sent once more.
- A call that fails or is cancelled leaves no connection and no task. After a 101 the caller owns
  the connection: `take` or `close` it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import quote, urlencode, urlsplit

from sync.kube import http1
from sync.kube.api_errors import Unreachable
from sync.kube.connections import CONNECT_TIMEOUT, USER_AGENT, Connection, Responses
from sync.kube.transport import REQUEST_TIMEOUT, Transport


class UpgradeResponse:
    """The response to an upgrade: a connection to `take` if `status` is 101, else an error."""

    def __init__(self, head: http1.Head, body: bytes, connection: Connection | None) -> None:
        self.head = head
        self.status = head.status
        self.body = body
        """The body of a response of 400 and above; empty for 101."""
        self._connection = connection

    def __repr__(self) -> str:
        return f"<UpgradeResponse {self.status}>"

    def take(self, protocol: asyncio.Protocol) -> None:
        """Hands the connection over to this protocol, from the first byte after the head on: calls
        its `connection_made`, and passes it the bytes received so far, and the end if there was
        one. Raises RuntimeError if there is no connection, or if it was taken before."""
        connection, self._connection = self._connection, None
        if connection is None:
            raise RuntimeError("no connection to take: the response is not 101, or it was taken")
        connection.hand_over(protocol)

    def close(self) -> None:
        """Aborts the connection unless it was taken."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None


async def open_upgrade(
    client: Transport,
    method: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
    *,
    user_agent: str = USER_AGENT,
) -> UpgradeResponse:
    """Requests an upgrade and returns the response, with the guarantees of the module docstring.

    ``path`` is quoted, ``query`` is not (bytes that are not UTF-8 are surrogate escapes).
    ``headers`` are those of the upgrade; ``Host``, ``Connection`` and the credential are added
    here.
    """
    what = f"{method} {path} (upgrade)"  # Without the query: a command line may contain a secret.
    if query:
        path += "?" + urlencode(query, quote_via=quote, errors="surrogateescape")

    def message() -> bytes:
        server = urlsplit(client.endpoint.server)
        added = [
            ("Host", server.netloc),
            ("User-Agent", user_agent),
            ("Connection", "Upgrade"),
        ]
        sent = [*added, *headers, *client.credentials.credential.headers()]
        return http1.request(method, server.path + path, sent)

    seen = client.credentials.generation
    response = await _open_once(client, what, method, message)
    if response.status == 401 and await client.credentials.renew(seen):
        response = await _open_once(client, what, method, message)
    return response


async def _open_once(
    client: Transport, what: str, method: str, message: Callable[[], bytes]
) -> UpgradeResponse:
    await client.confirm_cluster()
    with client.connection_errors(what):
        # Before the connection: what is read while it is opened must not be sent to the previous
        # address.
        request = message()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await client.dialer.connect(client.credentials.tls)
            try:
                connection.transport.write(request)
                responses = Responses(connection, method)
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    head = await responses.head()
                    while 100 <= head.status < 200 and head.status != 101:
                        head = await responses.head()
                    return await _read_response(connection, responses, head)
            except BaseException:
                connection.transport.abort()
                raise
        except ssl.SSLError:
            raise  # some SSLErrors are ValueErrors
        except ValueError as error:
            raise Unreachable(
                f"{error}; check that {client.endpoint.server} is an API server and not a proxy",
                side=client.side,
                what=what,
            ) from error


async def _read_response(
    connection: Connection, responses: Responses, head: http1.Head
) -> UpgradeResponse:
    if head.status == 101:
        connection.transport.pause_reading()
        return UpgradeResponse(head, b"", connection)
    if head.status < 400:
        raise ValueError(f"the response to an upgrade has status {head.status}")
    body = await responses.body(head)
    connection.transport.abort()
    return UpgradeResponse(head, body, None)
