"""Traces of reconciles, exported when they are enabled."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bridge.observability import opentelemetry_tracer, trace_exporter
from sync.base import tracing
from tests.bridge.running_join import SOON, running_join
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import Fault
from tests.objects import secret
from tests.sync.engine_harness import NODE, EngineHarness

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes the environment variables that enable traces."""
    for name in (*trace_exporter.ENDPOINT_VARIABLES, "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    level = logging.getLogger("opentelemetry").level
    before = set(threading.enumerate())
    yield
    logging.getLogger("opentelemetry").setLevel(level)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("Otel", "traces-end")):
            thread.join(SOON)
            assert not thread.is_alive(), "nothing is sent when the block is over"


async def one_pod(two: Clusters) -> None:
    """A join in which a pod with a Secret runs after one failure."""
    harness = EngineHarness(two.home, two.remote)
    two.home.put(secret("key", data={"password": CANARY}))
    two.remote.fail(Fault("POST", "*/pods", code=500))
    source = {"name": "main", "image": "i", "envFrom": [{"secretRef": {"name": "key"}}]}
    async with running_join(two):
        harness.pod("web", containers=[source])
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Running")


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_reconcile_span_has_request_spans(two: Clusters) -> None:
    exporter = InMemorySpanExporter()
    with opentelemetry_tracer.export_spans(exporter):
        await one_pod(two)
    assert tracing.get_tracer() is None
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    posts = [it for it in spans if attributes(it).get("url.path", "").__str__().endswith("/pods")]
    failed, made = sorted(
        (it for it in posts if it.name == "POST remote"), key=lambda it: it.start_time or 0
    )
    assert attributes(failed)["http.response.status_code"] == 500
    assert (failed.status.is_ok, made.status.is_ok) == (False, True)
    for span in (failed, made):
        assert span.parent is not None
        parent = by_id[span.parent.span_id]
        assert parent.name == "reconcile pods"
        assert (
            attributes(parent).items()
            >= {
                "bridge.node": NODE,
                "bridge.controller": "pods",
                "k8s.object.kind": "Pod",
                "k8s.object.name": "web",
                "k8s.namespace.name": "default",
            }.items()
        )
    roots = {span.name.split()[0] for span in spans if span.parent is None}
    assert roots == {"reconcile"}, "lists and renewals of leases are no traces"
    kinds = {attributes(it)["k8s.object.kind"] for it in spans if it.name == "reconcile mirror"}
    assert "Secret" in kinds
    for span in spans:
        assert CANARY not in span.to_json()
        assert not span.events


async def test_collector_receives_spans_over_otlp(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        got.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/v1/traces", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{host}:{port}")
        sending = trace_exporter.export_traces()
        sending.__enter__()
        await one_pod(two)
        # The exporter's shutdown waits for the collector, which runs in this loop.
        await asyncio.to_thread(sending.__exit__, None, None, None)
    finally:
        await runner.cleanup()
    resources = [it for request in got for it in request.resource_spans]
    (service,) = {
        pair.value.string_value
        for it in resources
        for pair in it.resource.attributes
        if pair.key == "service.name"
    }
    assert service == "cluster-bridge"
    names = {span.name for it in resources for scope in it.scope_spans for span in scope.spans}
    assert {"reconcile pods", "reconcile mirror", "POST remote", "PATCH home"} <= names


async def test_unreachable_collector_blocks_nothing(
    two: Clusters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opentelemetry_tracer, "FLUSH_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections without a response
        port = silent.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        with trace_exporter.export_traces():
            await one_pod(two)
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 5
    assert CANARY not in caplog.text


def test_traces_are_disabled_by_default() -> None:
    with trace_exporter.export_traces():
        assert tracing.get_tracer() is None


@pytest.mark.parametrize("variable", trace_exporter.ENDPOINT_VARIABLES)
def test_environment_enables_traces(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with trace_exporter.export_traces():
        assert tracing.get_tracer() is not None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with trace_exporter.export_traces():
        assert tracing.get_tracer() is None


def test_missing_packages_are_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(trace_exporter.ENDPOINT_VARIABLES[0], "http://127.0.0.1:9")
    monkeypatch.setattr(trace_exporter, "is_installed", lambda: False)
    with trace_exporter.export_traces():
        assert tracing.get_tracer() is None
    assert "pip install 'cluster-bridge[traces]'" in caplog.text
