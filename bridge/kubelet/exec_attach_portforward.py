"""Handles exec, attach, port-forward and run: upgrades the remote's connection and forwards bytes.

Guarantees: a stream counts from its request on, within the limit of `ActiveStreams`. The remote
gets the bridge's own credential, the headers of the upgrade and those of
`bridge.kubelet.stream_audit`, and nothing else of the request.
Its 101 response is returned with the headers of the upgrade; an error response (400 and above) with
its body, as JSON or plain text whatever its type. Redirects are not followed. After a 101 the two
connections form one `Tunnel` until either ends; both are closed however the request ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from bridge.kubelet.authn import TOKEN_PROTOCOL
from bridge.kubelet.error_responses import (
    CREDENTIAL_REJECTED,
    PLAIN_TEXT_HEADERS,
    HttpError,
    http_error_from,
)
from bridge.kubelet.pod_lookup import PodAccess
from bridge.kubelet.query_options import (
    Pairs,
    exec_query,
    parse_query,
    port_forward_query,
    run_command_line,
)
from bridge.kubelet.routing import RoutedRequest
from bridge.kubelet.stream_audit import audit_headers
from bridge.kubelet.stream_limits import ActiveStreams, Stream
from bridge.net.http_server import HttpConnection
from bridge.net.splice import Tunnel
from sync.kube import http1
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import PODS
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.pod_exec import OutputLimitExceeded, run_command

#: Values of the Upgrade header that exec, attach and port-forward accept.
_PROTOCOLS = ("spdy/3.1", "websocket")
#: Headers that are forwarded with an upgrade, in both directions; all others are dropped.
_STREAM_PROTOCOL = "x-stream-protocol-version"
_WEBSOCKET = "sec-websocket-"
#: Prefix of the subprotocol of SPDY tunneled in a WebSocket, which current clients use.
_SPDY_TUNNEL = "spdy/3.1+"
#: Headers that are forwarded with an error response.
_ERROR_HEADERS = ("retry-after", "x-accepted-stream-protocol-versions")


async def exec_or_attach(access: PodAccess, kind: str, routed: RoutedRequest) -> web.StreamResponse:
    """Runs a command in a container, or attaches to it. Raises HttpError before the upgrade."""
    query = exec_query(parse_query(routed.query), container=routed.parameters["container"])
    return await _upgrade_and_tunnel(access, kind, routed, query)


async def port_forward(access: PodAccess, routed: RoutedRequest) -> web.StreamResponse:
    """Forwards connections to ports of a pod. Raises HttpError before the upgrade."""
    channels = _uses_websocket_channels(routed.request)
    query = port_forward_query(parse_query(routed.query), websocket=channels)
    return await _upgrade_and_tunnel(access, "portforward", routed, query)


async def _upgrade_and_tunnel(
    access: PodAccess, kind: str, routed: RoutedRequest, query: Pairs
) -> web.StreamResponse:
    pod = access.requested_pod(routed.parameters)
    request = routed.request
    headers = upgrade_headers(request)
    path = PODS.path(pod.name, namespace=pod.namespace, subresource=kind)
    with access.streams.track(kind, routed.parameters["namespace"]) as stream:
        audit = audit_headers(access, kind, routed, pod)
        agent = audit.pop("User-Agent")
        headers += audit.items()
        try:
            upgraded = await open_upgrade(
                access.remote, request.method, path, query, headers, user_agent=agent
            )
        except KubeError as error:
            raise http_error_from(error) from error
        if upgraded.status == 401:
            raise HttpError(502, CREDENTIAL_REJECTED)
        if upgraded.status != 101:
            return _error_response(upgraded)
        return await _tunnel(request, upgraded, stream)


async def _tunnel(
    request: web.BaseRequest, upgraded: UpgradeResponse, stream: Stream
) -> web.StreamResponse:
    transport = request.transport
    if transport is None or transport.is_closing():
        upgraded.close()
        raise ConnectionResetError("the client has disconnected")
    server = cast("HttpConnection", transport.get_protocol())
    tunnel = Tunnel(stream.unsent, stream.count_bytes)
    stream.end = tunnel.close
    try:
        transport.set_protocol(tunnel.client)
        tunnel.client.connection_made(transport)
        tunnel.client.write(_switching_protocols(upgraded.head))
        transport.resume_reading()
        upgraded.take(tunnel.remote)
        if rest := server.take_rest():  # the client has not waited for the response
            tunnel.client.data_received(rest)
        await tunnel.run()
    finally:
        upgraded.close()
        tunnel.abort()
        # The transport no longer reports the end of the connection to the server's protocol; this
        # does, and the server then ends the task of this request.
        server.connection_lost(None)
    return _DetachedResponse()


def upgrade_headers(request: web.BaseRequest) -> list[tuple[str, str]]:
    """The headers for the remote's upgrade. Raises HttpError (400) for a request that is no
    upgrade."""
    protocols = [value.strip().lower() for value in request.headers.getall("Upgrade", [])]
    options = ",".join(request.headers.getall("Connection", [])).lower().split(",")
    if len(protocols) != 1 or "upgrade" not in [option.strip() for option in options]:
        raise HttpError(400, "you must upgrade the connection to SPDY/3.1 or a WebSocket")
    if protocols[0] not in _PROTOCOLS:
        raise HttpError(
            400, "you must upgrade to SPDY/3.1 or a WebSocket; other protocols are not supported"
        )
    if request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers:
        raise HttpError(400, "an upgrade request must not have a body")
    return [
        (name, _without_bearer_tokens(value) if name.lower() == "sec-websocket-protocol" else value)
        for name, value in request.headers.items()
        if _is_forwarded(name)
    ]


def _is_forwarded(header: str) -> bool:
    name = header.lower()
    return name in ("upgrade", _STREAM_PROTOCOL) or name.startswith(_WEBSOCKET)


def _uses_websocket_channels(request: web.BaseRequest) -> bool:
    """Whether the client requests a WebSocket with a pair of channels for each port."""
    subprotocols = ",".join(request.headers.getall("Sec-WebSocket-Protocol", [])).lower().split(",")
    spdy = any(protocol.strip().startswith(_SPDY_TUNNEL) for protocol in subprotocols)
    return request.headers.get("Upgrade", "").lower() == "websocket" and not spdy


def _without_bearer_tokens(subprotocols: str) -> str:
    """Drops bearer tokens, which are valid in home only."""
    protocols = (protocol.strip() for protocol in subprotocols.split(","))
    return ", ".join(it for it in protocols if not it.lower().startswith(TOKEN_PROTOCOL))


def _switching_protocols(head: http1.Head) -> bytes:
    """The remote's 101 response with only the headers of the upgrade (no cookies)."""
    headers = [
        (name, value)
        for name, value in head.headers
        if name.lower() == "connection" or _is_forwarded(name)
    ]
    return http1.response(101, "Switching Protocols", headers)


def _error_response(upgraded: UpgradeResponse) -> web.Response:
    kept = {name: value for name, value in upgraded.head.headers if name.lower() in _ERROR_HEADERS}
    headers = {**PLAIN_TEXT_HEADERS, **kept}
    if upgraded.head.values("content-type") == ["application/json"]:  # a v1.Status
        headers["Content-Type"] = "application/json"
    response = web.Response(status=upgraded.status, body=upgraded.body, headers=headers)
    response.force_close()
    return response


class _DetachedResponse(web.StreamResponse):
    """Placeholder response for a connection that a `Tunnel` has taken over: sends nothing."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        return None

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002
        return None


#: Maximum output in bytes, of one command and of all. Container runtimes buffer 16 MiB for a
#: kubelet's one caller.
MAX_OUTPUT, MAX_OUTPUTS = 1024 * 1024, 4 * 1024 * 1024


async def run_in_container(access: PodAccess, routed: RoutedRequest) -> web.StreamResponse:
    """Handles ``/run``: runs a command and returns its output in one response. Raises HttpError.

    As in a kubelet, the command is split at spaces, standard output precedes standard error, and a
    command that fails is a 500 with the reason instead of the output. The output is buffered until
    the caller has it, so it is limited to `MAX_OUTPUT`, and that of all commands to `MAX_OUTPUTS`;
    exec has no such limit.
    """
    argv = run_command_line(parse_query(routed.query))
    pod = access.requested_pod(routed.parameters)
    with (
        access.streams.track("run", routed.parameters["namespace"]) as stream,
        _held_output(access.streams) as hold,
    ):
        try:
            output = await run_command(
                access.remote,
                namespace=pod.namespace,
                pod=pod.name,
                container=routed.parameters["container"],
                argv=argv,
                hold=hold,
                headers=audit_headers(access, "run", routed, pod),
            )
        except OutputLimitExceeded:
            raise HttpError(
                500,
                f"the command wrote more than {MAX_OUTPUT} bytes, or all commands now more than "
                f"{MAX_OUTPUTS}; use exec instead",
            ) from None
        except KubeError as error:
            raise http_error_from(error) from error
        stream.count_bytes("out", len(output.stdout) + len(output.stderr))
        if output.failure:
            raise HttpError(500, output.failure)
        # Plain text: a kubelet declares any output as JSON.
        body = output.stdout + output.stderr
        response = web.Response(body=body, headers=PLAIN_TEXT_HEADERS)
        await response.prepare(routed.request)
        await response.write_eof()
        return response


@contextmanager
def _held_output(streams: ActiveStreams) -> Iterator[Callable[[int], None]]:
    """Counts the output of one command. The yielded function gets its bytes so far, and raises
    OutputLimitExceeded."""
    held = 0

    def hold(size: int) -> None:
        nonlocal held
        streams.output += size - held
        held = size
        if size > MAX_OUTPUT or streams.output > MAX_OUTPUTS:
            raise OutputLimitExceeded

    try:
        yield hold
    finally:
        streams.output -= held
