"""Handles ``/run``: runs a command in a container and returns its output in one response.

As in a kubelet, the command is split at spaces, standard output precedes standard error, and a
command that fails is a 500 with the reason instead of the output. The output is buffered until the
command ends, so it is limited to `MAX_OUTPUT`; exec has no such limit.
"""

from __future__ import annotations

from aiohttp import web

from bridge.kubelet.error_responses import PLAIN_TEXT_HEADERS, HttpError, http_error_from
from bridge.kubelet.pod_lookup import PodAccess
from bridge.kubelet.query_options import parse_query, run_command_line
from bridge.kubelet.routing import RoutedRequest
from bridge.kubelet.stream_audit import audit_headers
from sync.kube.api_errors import KubeError
from sync.kube.pod_exec import OutputLimitExceeded, run_command

#: Maximum output in bytes. Container runtimes buffer 16 MiB for a kubelet's one caller.
MAX_OUTPUT = 1024 * 1024


async def run_in_container(access: PodAccess, routed: RoutedRequest) -> web.StreamResponse:
    """Runs the command and returns its output. Raises HttpError."""
    argv = run_command_line(parse_query(routed.query))
    pod = access.requested_pod(routed.parameters)
    with access.streams.track("run", routed.parameters["namespace"]) as stream:
        try:
            output = await run_command(
                access.remote,
                namespace=pod.namespace,
                pod=pod.name,
                container=routed.parameters["container"],
                argv=argv,
                limit=MAX_OUTPUT,
                headers=audit_headers(access, "run", routed, pod),
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
