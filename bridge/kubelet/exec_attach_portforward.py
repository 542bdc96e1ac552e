"""exec, attach and port-forward: upgrades that are passed on, and bytes that are not looked at.

Guarantees: a stream counts as one from its request on, and there are as many as `active` allows.
The remote is asked with our own credential and with the headers of the upgrade, and with nothing
else that the caller sent; its answer comes back with its own protocol headers, and an answer of 400
and above with its body as it is, which is JSON or plain text, whatever type the remote gives it. A
redirect is not followed: `open_upgrade` takes it for no API server. After a 101 the two connections
are one `Tunnel`, which lasts until either end does; both are closed by then, however the request
ended.
"""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from bridge.kubelet.authn import TOKEN_PROTOCOL
from bridge.kubelet.pod_directory import PodDirectory, RemotePod
from bridge.kubelet.pod_lookup import remote_pod
from bridge.kubelet.query_options import Pairs, exec_query, forward_query, parse_query
from bridge.kubelet.routing import RoutedRequest
from bridge.net.active_streams import ActiveStreams, Stream, current_task_canceller
from bridge.net.error_responses import (
    PLAIN_TEXT_HEADERS,
    HttpError,
    credential_rejected_message,
    http_error_from,
)
from bridge.net.tunnel import Tunnel
from sync.kube import http1 as http
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.resources import PODS

#: The protocols that exec, attach and port-forward have.
_PROTOCOLS = ("spdy/3.1", "websocket")
#: Headers of an upgrade, in a request and in its answer. All others stay where they are.
_STREAM_PROTOCOL = "x-stream-protocol-version"
_WEBSOCKET = "sec-websocket-"
#: A WebSocket that carries SPDY: port-forward of clients and API servers of our day.
_CARRIES_SPDY = "spdy/3.1+"
#: Headers of an answer that says no.
_OF_REFUSALS = ("retry-after", "x-accepted-stream-protocol-versions")


class StreamHandler:
    """Answers ``/exec``, ``/attach`` and ``/portForward``."""

    def __init__(self, remote: KubeClient, directory: PodDirectory, active: ActiveStreams) -> None:
        self._remote = remote
        self._directory = directory
        self._active = active

    async def exec(self, call: RoutedRequest) -> web.StreamResponse:
        """Runs a command in a container. Raises HttpError."""
        return await self._container_stream(call, "exec")

    async def attach(self, call: RoutedRequest) -> web.StreamResponse:
        """Joins a container's own streams. Raises HttpError."""
        return await self._container_stream(call, "attach")

    async def forward(self, call: RoutedRequest) -> web.StreamResponse:
        """Reaches ports of a pod. Raises HttpError."""
        query = forward_query(parse_query(call.query), websocket=_channels(call.request))
        pod = remote_pod(self._directory, call.parameters)
        return await self._tunnelled(call, pod, "portforward", query)

    async def _container_stream(self, call: RoutedRequest, kind: str) -> web.StreamResponse:
        query = exec_query(parse_query(call.query), container=call.parameters["container"])
        pod = remote_pod(self._directory, call.parameters)
        return await self._tunnelled(call, pod, kind, query)

    async def _tunnelled(
        self, call: RoutedRequest, pod: RemotePod, kind: str, query: Pairs
    ) -> web.StreamResponse:
        request, namespace = call.request, call.parameters["namespace"]
        headers = upgrade_headers(request)
        path = PODS.path(pod.name, namespace=pod.namespace, subresource=kind)
        with self._active.track(kind, namespace, current_task_canceller()) as stream:
            try:
                access = self._remote.config
                upgraded = await open_upgrade(access, request.method, path, query, headers)
            except KubeError as error:
                raise http_error_from(error) from error
            if upgraded.status == 401:
                raise HttpError(502, credential_rejected_message())
            if upgraded.status != 101:
                return _relayed(upgraded)
            return await _joined(request, upgraded, stream)


async def _joined(
    request: web.BaseRequest, upgraded: UpgradeResponse, stream: Stream
) -> web.StreamResponse:
    transport = request.transport
    if transport is None or transport.is_closing():
        upgraded.close()
        raise ConnectionResetError("the caller has left")
    server = cast("asyncio.Protocol", transport.get_protocol())
    tunnel = Tunnel(stream.count_bytes)
    stream.end = tunnel.close
    try:
        transport.set_protocol(tunnel.client)
        tunnel.client.connection_made(transport)
        tunnel.client.write(_switching(upgraded.head))
        transport.resume_reading()
        upgraded.take(tunnel.remote)
        await tunnel.run()
    finally:
        upgraded.close()
        tunnel.abort()
        # The server's own protocol hears of the end of its connection from us, since the
        # transport no longer tells it; it then ends this request's task, too.
        server.connection_lost(None)
    return _Taken()


def upgrade_headers(request: web.BaseRequest) -> list[tuple[str, str]]:
    """What the remote gets of a request's headers. Raises HttpError (400) when it is no upgrade."""
    protocols = [value.strip().lower() for value in request.headers.getall("Upgrade", [])]
    options = ",".join(request.headers.getall("Connection", [])).lower().split(",")
    if len(protocols) != 1 or "upgrade" not in [option.strip() for option in options]:
        raise HttpError(400, "you must upgrade: this is a stream of SPDY/3.1 or a WebSocket")
    if protocols[0] not in _PROTOCOLS:
        raise HttpError(400, "you must upgrade to SPDY/3.1 or to a WebSocket, and to nothing else")
    if request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers:
        raise HttpError(400, "an upgrade has no body")
    return [
        (name, _without_tokens(value) if name.lower() == "sec-websocket-protocol" else value)
        for name, value in request.headers.items()
        if name.lower() in ("upgrade", _STREAM_PROTOCOL) or name.lower().startswith(_WEBSOCKET)
    ]


def _channels(request: web.BaseRequest) -> bool:
    """Whether it asks for a WebSocket with a pair of channels for each port."""
    asked = ",".join(request.headers.getall("Sec-WebSocket-Protocol", [])).lower().split(",")
    spdy = any(protocol.strip().startswith(_CARRIES_SPDY) for protocol in asked)
    return request.headers.get("Upgrade", "").lower() == "websocket" and not spdy


def _without_tokens(subprotocols: str) -> str:
    """Tokens there are home's, not the remote's."""
    kept = [
        protocol.strip()
        for protocol in subprotocols.split(",")
        if not protocol.strip().lower().startswith(TOKEN_PROTOCOL)
    ]
    return ", ".join(kept)


def _switching(head: http.Head) -> bytes:
    """The remote's 101 for the caller, without what is not of the upgrade (cookies)."""
    headers = [
        (name, value)
        for name, value in head.headers
        if name.lower() in ("connection", "upgrade", _STREAM_PROTOCOL)
        or name.lower().startswith(_WEBSOCKET)
    ]
    return http.response(101, "Switching Protocols", headers)


def _relayed(upgraded: UpgradeResponse) -> web.Response:
    kept = {name: value for name, value in upgraded.head.headers if name.lower() in _OF_REFUSALS}
    headers = {**PLAIN_TEXT_HEADERS, **kept}
    if upgraded.head.values("content-type") == ["application/json"]:  # a v1.Status
        headers["Content-Type"] = "application/json"
    response = web.Response(status=upgraded.status, body=upgraded.body, headers=headers)
    response.force_close()
    return response


class _Taken(web.StreamResponse):
    """Stands for an answer whose connection is not the server's any more: nothing is sent."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        return None

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002
        return None
