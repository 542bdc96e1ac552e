"""Handles ``/run``: runs a command in a container and returns its output in one response.

As in a kubelet, the command is split at spaces, standard output precedes standard error, and a
command that fails is a 500 with the reason instead of the output. The output is buffered until the
command ends, so it is limited to `MAX_OUTPUT`; exec has no such limit.
"""

from __future__ import annotations

from aiohttp import web

from bridge.kubelet.active_streams import ActiveStreams, current_task_canceller
from bridge.kubelet.error_responses import PLAIN_TEXT_HEADERS, HttpError, http_error_from
from bridge.kubelet.pod_lookup import PodDirectory, requested_pod
from bridge.kubelet.query_options import parse_query, run_command_line
from bridge.kubelet.routing import RoutedRequest
from sync.kube.api_errors import KubeError
from sync.kube.client import KubeClient
from sync.kube.pod_exec import OutputLimitExceeded, run_command

#: Maximum output in bytes. Container runtimes buffer 16 MiB for a kubelet's one caller.
MAX_OUTPUT = 1024 * 1024


class RunHandler:
    """Handles ``/run/{namespace}/{pod}/{container}``."""

    def __init__(self, remote: KubeClient, directory: PodDirectory, active: ActiveStreams) -> None:
        self._remote = remote
        self._directory = directory
        self._active = active

    async def serve(self, routed: RoutedRequest) -> web.StreamResponse:
        """Runs the command and returns its output. Raises HttpError."""
        argv = run_command_line(parse_query(routed.query))
        pod = requested_pod(self._directory, routed.parameters)
        namespace = routed.parameters["namespace"]
        with self._active.track("run", namespace, current_task_canceller()) as stream:
            try:
                output = await run_command(
                    self._remote,
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=routed.parameters["container"],
                    argv=argv,
                    limit=MAX_OUTPUT,
                )
            except OutputLimitExceeded:
                raise HttpError(
                    500, f"the command wrote more than {MAX_OUTPUT} bytes; use exec instead"
                ) from None
            except KubeError as error:
                raise http_error_from(error) from error
            stream.count_bytes("out", len(output.stdout) + len(output.stderr))
        if output.failure:
            raise HttpError(500, output.failure)
        # Plain text: a kubelet declares any output as JSON.
        return web.Response(body=output.stdout + output.stderr, headers=PLAIN_TEXT_HEADERS)
