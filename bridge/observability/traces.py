"""OpenTelemetry traces: a span for each reconcile, and within it one for each request.

Off unless `--traces` or ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``…_TRACES_ENDPOINT``) names a
collector that takes OTLP over HTTP; the variables of OpenTelemetry's SDK hold (headers, sampler,
resource). Its packages are the extra ``traces``, and are imported only when traces are on. A
collector that is away costs spans and a line in the log, and nothing else waits for it. Failures
are told by their type: messages can quote what was sent.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from bridge.base.version import version
from sync.base import tracing
from sync.kube.errors import ApiError
from sync.runtime.log_fields import NODE

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

#: What brings the packages.
EXTRA = "pip install 'cluster-bridge[traces]'"
#: By these the environment asks for traces.
VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Where a collector takes spans below its address (OTLP over HTTP).
PATH = "/v1/traces"
#: Seconds for the last spans to leave at the end.
FLUSH_SECONDS = 2.0


def is_installed() -> bool:
    """Whether the packages are there."""
    wanted = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
    try:
        return all(importlib.util.find_spec(name) is not None for name in wanted)
    except ModuleNotFoundError:
        return False


@contextmanager
def export_traces(endpoint: str) -> Iterator[None]:
    """Spans of the block go to ``endpoint``, or where the environment says; where neither asks for
    that, there are none. At the end the last ones leave, within `FLUSH_SECONDS`."""
    asked = endpoint or next((os.environ[it] for it in VARIABLES if os.environ.get(it)), "")
    if not asked or (not endpoint and os.environ.get("OTEL_TRACES_EXPORTER") == "none"):
        yield
        return
    if not is_installed():
        log.warning("no traces: their packages are not installed; %s", EXTRA)
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # Of a collector that is away there would be a line for each try.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    with spans_to(OTLPSpanExporter(endpoint=_url(endpoint) if endpoint else None)):
        yield


@contextmanager
def spans_to(exporter: SpanExporter) -> Iterator[None]:
    """Spans of the block go to this exporter."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.version": version()}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        about["service.name"] = "cluster-bridge"
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracing.set_tracer(_Spans(provider.get_tracer("cluster-bridge", version())))
    try:
        yield
    finally:
        tracing.set_tracer(None)
        _end(provider, exporter)


def _end(provider: TracerProvider, exporter: SpanExporter) -> None:
    """Sends what is left; a collector that hangs is waited for no longer, and not tried again."""
    ending = threading.Thread(target=provider.shutdown, name="traces-end", daemon=True)
    ending.start()
    ending.join(FLUSH_SECONDS)
    if ending.is_alive():
        exporter.shutdown()  # else it would try for half a minute more


def _url(endpoint: str) -> str:
    """The address itself, or the place below it that takes spans, as for the variable."""
    trimmed = endpoint.rstrip("/")
    return trimmed if trimmed.endswith(PATH) else f"{trimmed}{PATH}"


class _Spans:
    """`sync.base.tracing.Tracer`, by OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer) -> None:
        from opentelemetry import trace

        self._tracer = tracer
        self._current = trace.get_current_span
        self._client = trace.SpanKind.CLIENT
        self._error = trace.StatusCode.ERROR
        self._span = trace.use_span

    def reconcile(self, controller: str, key: object, kind: str) -> AbstractContextManager[object]:
        kind = str(getattr(getattr(key, "resource", None), "kind", kind))
        about = {
            "bridge.controller": controller,
            "bridge.node": NODE.get(),
            "k8s.object.kind": kind,
            "k8s.object.name": str(getattr(key, "name", key)),
            "k8s.namespace.name": str(getattr(key, "namespace", "")),
        }
        return self._open(
            self._tracer.start_span(f"reconcile {controller}", attributes=_said(about))
        )

    def request(
        self, side: str, server: str, method: str, path: str
    ) -> AbstractContextManager[object]:
        if not self._current().is_recording():
            return nullcontext()
        about = {
            "bridge.cluster": side,
            "http.request.method": method,
            "server.address": server,
            "url.path": path,
        }
        span = self._tracer.start_span(
            f"{method} {side}", kind=self._client, attributes=_said(about)
        )
        return self._open(span)

    @contextmanager
    def _open(self, span: trace.Span) -> Iterator[None]:
        with self._span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._error)
                if isinstance(error, ApiError):
                    span.set_attribute("http.response.status_code", error.code)
                raise


def _said(attributes: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in attributes.items() if value}
