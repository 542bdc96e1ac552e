"""Handles container logs: streams the remote's ``pods/log``.

Guarantees: the response starts when the remote has answered, and each chunk is sent as it arrives;
a slow client slows the remote down and does not fill the bridge's memory
(`bridge.net.unsent_budget`), nor the kernel's (`bridge.net.receive_buffer`). When the client
disconnects, the stream from the remote is closed. When the remote's stream breaks off, or the
bridge stops, the client's connection is reset, so that no client takes a part for the whole log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from bridge.kubelet.error_responses import PLAIN_TEXT_HEADERS, http_error_from
from bridge.kubelet.pod_lookup import PodAccess
from bridge.kubelet.query_options import log_query, parse_query
from bridge.kubelet.routing import RoutedRequest
from bridge.kubelet.stream_audit import audit_headers
from bridge.net.receive_buffer import ReceiveBuffer
from bridge.net.unsent_budget import UnsentShare
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import PODS
from sync.kube.layered_transport import reset_connection
from sync.kube.sockets import leave_receive_buffer_to_kernel

log = logging.getLogger(__name__)


async def serve_log(access: PodAccess, routed: RoutedRequest) -> web.StreamResponse:
    """Sends a container's log. Raises HttpError before the response has started."""
    query = log_query(parse_query(routed.query), container=routed.parameters["container"])
    pod = access.requested_pod(routed.parameters)
    path = PODS.path(pod.name, namespace=pod.namespace, subresource="log")
    response = web.StreamResponse(headers=PLAIN_TEXT_HEADERS)
    is_complete = False
    with access.streams.track("logs", routed.parameters["namespace"]) as stream:
        headers = audit_headers(access, "logs", routed, pod)
        try:
            async with (
                access.remote.stream(path, query=query, headers=headers) as answer,
                _receive_buffer(answer, stream.unsent) as received,
            ):
                writer = cast("AbstractStreamWriter", await response.prepare(routed.request))
                if (client := routed.request.transport) is not None:
                    client.set_write_buffer_limits(0)  # so `drain` waits until all is sent
                while True:
                    with access.remote.map_read_errors(path):
                        chunk = await answer.content.read(stream.unsent.window())
                    if not chunk:
                        break
                    stream.count_bytes("out", len(chunk))
                    received(len(chunk))
                    await response.write(chunk)
                    stream.unsent.hold(len(chunk))
                    try:
                        await writer.drain()
                    finally:
                        stream.unsent.hold(-len(chunk))
                is_complete = True
        except KubeError as error:
            if not response.prepared:
                raise http_error_from(error) from error
            log.warning("remote: a log stream broke off: %s", error)
        finally:
            client = routed.request.transport
            if response.prepared and client is not None and not is_complete:
                reset_connection(client)
    return response


@asynccontextmanager
async def _receive_buffer(
    answer: aiohttp.ClientResponse, share: UnsentShare
) -> AsyncIterator[Callable[[int], None]]:
    """Bounds the kernel's buffer of the response; yields a function that takes the number of bytes
    of each read."""
    transport = answer.connection.transport if answer.connection is not None else None
    if transport is None:  # The whole response has arrived.
        yield lambda _: None
        return
    sock = transport.get_extra_info("socket")
    buffer = ReceiveBuffer(sock, share)
    try:
        yield buffer.received
    finally:
        buffer.release()
        leave_receive_buffer_to_kernel(sock)  # a watch may use the connection next
