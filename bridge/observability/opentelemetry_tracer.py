"""Implements `sync.base.tracing.Tracer` with the OpenTelemetry SDK, which is an optional extra.

A collector that does not answer costs spans and a log line, and blocks nothing. Spans name a
failure by its type, because messages can quote request bodies.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from bridge.base.version import version
from sync.base import tracing
from sync.kube.api_errors import ApiError
from sync.runtime.log_fields import NODE

#: Seconds for exporting the last spans at the end.
FLUSH_SECONDS = 2.0


@contextmanager
def export_spans(exporter: SpanExporter | None = None) -> Iterator[None]:
    """Exports the block's spans, by default to the endpoint of the environment. At the end, exports
    the last ones within `FLUSH_SECONDS`."""
    exporter = exporter or OTLPSpanExporter()
    attributes = {"service.version": version()}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "cluster-bridge"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracing.set_tracer(_OpenTelemetryTracer(provider.get_tracer("cluster-bridge", version())))
    try:
        yield
    finally:
        tracing.set_tracer(None)
        _flush(provider, exporter)


def _flush(provider: TracerProvider, exporter: SpanExporter) -> None:
    """Exports the remaining spans; gives up on a collector that does not answer in time."""
    ending = threading.Thread(target=provider.shutdown, name="traces-end", daemon=True)
    ending.start()
    ending.join(FLUSH_SECONDS)
    if ending.is_alive():
        exporter.shutdown()  # or it would retry for another half minute


class _OpenTelemetryTracer:
    """Implements `sync.base.tracing.Tracer` with OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._current = trace.get_current_span
        self._client = trace.SpanKind.CLIENT
        self._internal = trace.SpanKind.INTERNAL
        self._error = trace.StatusCode.ERROR

    def reconcile(self, controller: str, key: object, kind: str) -> AbstractContextManager[object]:
        kind = str(getattr(getattr(key, "resource", None), "kind", kind))
        attributes = {
            "bridge.controller": controller,
            "bridge.node": NODE.get(),
            "k8s.object.kind": kind,
            "k8s.object.name": str(getattr(key, "name", key)),
            "k8s.namespace.name": str(getattr(key, "namespace", "")),
        }
        return self._span(f"reconcile {controller}", self._internal, attributes)

    def request(
        self, side: str, server: str, method: str, path: str
    ) -> AbstractContextManager[object]:
        if not self._current().is_recording():
            return nullcontext()
        attributes = {
            "bridge.cluster": side,
            "http.request.method": method,
            "server.address": server,
            "url.path": path,
        }
        return self._span(f"{method} {side}", self._client, attributes)

    @contextmanager
    def _span(
        self, name: str, kind: trace.SpanKind, attributes: Mapping[str, str]
    ) -> Iterator[None]:
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes={key: value for key, value in attributes.items() if value},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._error)
                if isinstance(error, ApiError):
                    span.set_attribute("http.response.status_code", error.code)
                raise
