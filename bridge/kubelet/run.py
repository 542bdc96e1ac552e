"""``/run``: a command in a container, and what it wrote as one answer.

As a kubelet: the command is split on spaces, standard output comes first and standard error after
it, and a command that fails is 500 with the reason instead of its output. Output is held until the
command has ended, so it is bounded (`MAX_OUTPUT`); exec has no such bound.
"""

from __future__ import annotations

from aiohttp import web

from bridge.kubelet.pod_directory import PodDirectory
from bridge.kubelet.pod_lookup import remote_pod
from bridge.kubelet.query_options import parse_query, run_command_line
from bridge.kubelet.routing import RoutedRequest
from bridge.net.active_streams import ActiveStreams, current_task_canceller
from bridge.net.error_responses import PLAIN_TEXT_HEADERS, HttpError, http_error_from
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.pod_exec import OutputLimitExceeded, run_command

#: Bytes. Container runtimes keep 16 MiB for a kubelet; this is for one of many callers.
MAX_OUTPUT = 1024 * 1024


class RunHandler:
    """Answers ``/run/{namespace}/{pod}/{container}``."""

    def __init__(self, remote: KubeClient, directory: PodDirectory, active: ActiveStreams) -> None:
        self._remote = remote
        self._directory = directory
        self._active = active

    async def serve(self, call: RoutedRequest) -> web.StreamResponse:
        """The command's output. Raises HttpError."""
        argv = run_command_line(parse_query(call.query))
        pod = remote_pod(self._directory, call.parameters)
        namespace = call.parameters["namespace"]
        with self._active.track("run", namespace, current_task_canceller()) as stream:
            try:
                output = await run_command(
                    self._remote,
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=call.parameters["container"],
                    argv=argv,
                    limit=MAX_OUTPUT,
                )
            except OutputLimitExceeded:
                raise HttpError(
                    500, f"the command writes more than {MAX_OUTPUT} bytes; use exec for it"
                ) from None
            except KubeError as error:
                raise http_error_from(error) from error
            stream.count_bytes("out", len(output.stdout) + len(output.stderr))
        if output.failure:
            raise HttpError(500, output.failure)
        # A kubelet says that it is JSON, whatever it is.
        return web.Response(body=output.stdout + output.stderr, headers=PLAIN_TEXT_HEADERS)
