"""Handles container logs: streams the remote's ``pods/log``.

Guarantees: the response starts when the remote has answered, and each chunk is sent as it arrives;
a slow client slows the remote down and does not fill the bridge's memory. When the client
disconnects, the stream from the remote is closed. When the remote's stream breaks off, the response
ends without its terminating chunk, so that no client takes a part for the whole log.
"""

from __future__ import annotations

import logging

from aiohttp import web

from bridge.kubelet.active_streams import ActiveStreams, Stream, current_task_canceller
from bridge.kubelet.error_responses import PLAIN_TEXT_HEADERS, http_error_from
from bridge.kubelet.pod_lookup import PodDirectory, requested_pod
from bridge.kubelet.query_options import log_query, parse_query
from bridge.kubelet.routing import RoutedRequest
from sync.kube.api_errors import KubeError
from sync.kube.client import KubeClient
from sync.kube.resources import PODS

log = logging.getLogger(__name__)


class LogHandler:
    """Handles ``/containerLogs/{namespace}/{pod}/{container}``."""

    def __init__(self, remote: KubeClient, directory: PodDirectory, active: ActiveStreams) -> None:
        self._remote = remote
        self._directory = directory
        self._active = active

    async def serve(self, routed: RoutedRequest) -> web.StreamResponse:
        """Sends the log. Raises HttpError before the response has started."""
        query = log_query(parse_query(routed.query), container=routed.parameters["container"])
        pod = requested_pod(self._directory, routed.parameters)
        path = PODS.path(pod.name, namespace=pod.namespace, subresource="log")
        namespace = routed.parameters["namespace"]
        with self._active.track("logs", namespace, current_task_canceller()) as stream:
            return await self._copy_log(routed.request, path, query, stream)

    async def _copy_log(
        self, request: web.BaseRequest, path: str, query: list[tuple[str, str]], stream: Stream
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=PLAIN_TEXT_HEADERS)
        try:
            async with self._remote.stream(path, query=query) as answer:
                await response.prepare(request)
                while True:
                    with self._remote.map_read_errors(path):
                        chunk = await answer.content.readany()
                    if not chunk:
                        break
                    stream.count_bytes("out", len(chunk))
                    await response.write(chunk)
        except KubeError as error:
            if not response.prepared:
                raise http_error_from(error) from error
            log.warning("remote: a log stream broke off: %s", error)
            if request.transport is not None:
                request.transport.abort()
        return response
