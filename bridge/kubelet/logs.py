"""Logs of containers: the remote's ``pods/log``, passed on as it comes.

Guarantees: the head is sent as soon as the remote has answered, and every chunk as it comes; a
reader that is slow slows the remote down, not the bridge's memory. When the reader leaves, the
stream from the remote is closed. When the remote breaks off in the middle, so do we, without the
end that a complete log has; so nobody takes a part for the whole.
"""

from __future__ import annotations

import logging

from aiohttp import web

from bridge.kubelet.pod_directory import PodDirectory
from bridge.kubelet.pod_lookup import remote_pod
from bridge.kubelet.query_options import log_query, parse_query
from bridge.kubelet.routing import RoutedRequest
from bridge.net.active_streams import ActiveStreams, Stream, current_task_canceller
from bridge.net.error_responses import PLAIN_TEXT_HEADERS, http_error_from
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.resources import PODS

log = logging.getLogger(__name__)


class LogHandler:
    """Answers ``/containerLogs/{namespace}/{pod}/{container}``."""

    def __init__(self, remote: KubeClient, directory: PodDirectory, active: ActiveStreams) -> None:
        self._remote = remote
        self._directory = directory
        self._active = active

    async def serve(self, call: RoutedRequest) -> web.StreamResponse:
        """The log. Raises HttpError while nothing has been sent."""
        query = log_query(parse_query(call.query), container=call.parameters["container"])
        pod = remote_pod(self._directory, call.parameters)
        path = PODS.path(pod.name, namespace=pod.namespace, subresource="log")
        namespace = call.parameters["namespace"]
        with self._active.track("logs", namespace, current_task_canceller()) as stream:
            return await self._passed_on(call.request, path, query, stream)

    async def _passed_on(
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
            log.warning("a log was cut short: %s", error)
            if request.transport is not None:
                request.transport.abort()
        return response
