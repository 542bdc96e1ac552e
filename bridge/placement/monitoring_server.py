"""Serves the probes and metrics of the placer, over HTTPS alone.

- ``/livez`` and ``/readyz`` with their checks, as `bridge.kubelet.healthz`, need no credential: a
  kubelet's probes have none. They show names of checks and no reason.
- Everything else needs a bearer token of home, and the verb ``get`` on the path ``/metrics``, as
  the control plane's own components (`bridge.kubelet.token_access`); only then is the path looked
  at.
- prometheus_client is imported at the first request for metrics.
- Connections, their time and the heads of requests are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.certificates.serving_certificate import (
    CertificateSource,
    FileSource,
    SelfSignedSource,
)
from bridge.certificates.tls_key_pair import TlsKeyPair, server_context
from bridge.clusters.connection import Notify
from bridge.kubelet import healthz
from bridge.kubelet.authn import ANONYMOUS, InvalidCredentialError, bearer_token
from bridge.kubelet.authz import Attributes
from bridge.kubelet.error_responses import HttpError, text_response
from bridge.kubelet.routing import RoutedRequest, split_target
from bridge.kubelet.token_access import MAX_TOKEN, TokenAccess
from bridge.net.https_server import HttpsServer
from bridge.net.listening_socket import listening_socket
from bridge.placement.placer_report import PlacerReport
from translators.pod_metrics.exposition import CONTENT_TYPE

#: Names of a self-signed certificate.
_HOSTS = ["localhost", "127.0.0.1"]
_METRICS = "/metrics"


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """Options of `bridge placement run`."""

    port: int
    address: str = ""
    """An IP address; "" for all."""
    tls_files: tuple[Path, Path] | None = None
    """Certificate and key; None for a self-signed certificate."""

    @property
    def certificate(self) -> CertificateSource:
        """The source of the serving certificate."""
        if self.tls_files is not None:
            return FileSource(*self.tls_files)
        return SelfSignedSource("cluster-bridge-placement", _HOSTS)


@asynccontextmanager
async def serve_monitoring(
    report: PlacerReport, settings: MonitoringSettings | None, *, notify: Notify
) -> AsyncIterator[int]:
    """Serves while the block runs, and yields the port; without settings nothing listens. Raises
    PreflightError and CertificateError."""
    if settings is None:
        yield 0
        return
    source = settings.certificate
    certificate = await source.first()
    try:
        sock = listening_socket(settings.address, settings.port)
    except OSError as error:
        raise PreflightError(
            f"cannot listen for probes and metrics on {settings.address or 'any address'} port "
            f"{settings.port}: {error.strerror or error}; choose another --port or --address"
        ) from error
    server = MonitoringServer(report, certificate)
    renewal = asyncio.create_task(source.run(server.use), name="certificate")
    try:
        port = await server.start(sock)
        notify(f"home: probes and metrics of the placer listen on port {port}")
        yield port
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        await server.stop()


class MonitoringServer:
    """The server. `start` it, and `stop` it at the end."""

    def __init__(self, report: PlacerReport, certificate: TlsKeyPair) -> None:
        self._report = report
        self._health = {it.path: it.handler for it in healthz.probe_routes(report.checks)}
        self._access = TokenAccess(
            report.home,
            Attributes("nonResourceAttributes", {"verb": "get", "path": _METRICS}),
            needed=f"get {_METRICS} in the home cluster; a ClusterRole with nonResourceURLs there "
            "can allow it",
            unauthenticated="the caller is not authenticated; send a bearer token of the home "
            "cluster",
        )
        self._https = HttpsServer(
            self._respond, server_context(certificate, client_ca=""), max_header=MAX_TOKEN
        )
        self.start = self._https.start

    def use(self, certificate: TlsKeyPair) -> None:
        """Presents this certificate to new connections. Raises CertificateError."""
        self._https.context = server_context(certificate, client_ca="")

    async def stop(self) -> None:
        await self._https.stop()
        await self._access.close()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except HttpError as error:
            return text_response(error.status, f"{error.message}\n", error.headers)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        segments, query = split_target(request.raw_path)
        path = f"/{'/'.join(segments)}"
        handle = self._health.get(path)
        if handle is None:
            await self._access.check(_token(request))
        if request.method != "GET":
            raise HttpError(405, "use GET", headers={"Allow": "GET"})
        if handle is not None:
            return await handle(RoutedRequest(request, ANONYMOUS, {}, query))
        if path != _METRICS:
            raise HttpError(404, f"use {_METRICS}, /livez or /readyz")
        with self._https.connections.admitted(request):
            return self._metrics()

    def _metrics(self) -> web.Response:
        from bridge.observability import metric_exposition
        from bridge.placement.placer_families import PlacerCollector

        body = metric_exposition.render(PlacerCollector(self._report))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _token(request: web.BaseRequest) -> str | None:
    try:
        return bearer_token(request.headers)
    except InvalidCredentialError:
        return None
