"""The bridge's own metrics: they equal their documentation, and have correct values."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from sync.kube.api_resources import PODS
from tests.bridge.running_join import SOON, RunningJoin, kubelet_api_client, running_join
from tests.bridge.two_clusters import CANARY, Clusters, put_worker
from tests.fakeapi import Fault
from tests.sync.engine_harness import EngineHarness
from tests.sync.storage.storage_harness import Storage

pytestmark = pytest.mark.usefixtures("soon")

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|")
#: The suffix that Prometheus' parser removes from a counter's name.
_TOTAL = "_total"


async def metrics(session: aiohttp.ClientSession) -> dict[str, Metric]:
    async with session.get("/metrics") as answer:
        assert answer.status == 200, await answer.text()
        text = await answer.text()
    assert CANARY not in text
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(found: dict[str, Metric], sample: str, /, **labels: str) -> float:
    """The sum of the samples of this name with these labels."""
    samples = found[sample.removesuffix(_TOTAL).removesuffix("_count")].samples
    return sum(
        it.value for it in samples if it.name == sample and labels.items() <= it.labels.items()
    )


async def used(two: Clusters, run: RunningJoin) -> dict[str, Metric]:
    """The metrics of a join in which every counted event has happened once."""
    harness = EngineHarness(two.home, two.remote)

    async def line(_: web.Request) -> web.Response:
        return web.Response(text="a line\n")

    async def nothing(_: web.Request) -> web.Response:
        return web.Response(text="")

    two.remote.route("GET", "*/pods/web/log", line)
    two.remote.route("GET", "/api/v1/nodes/worker/proxy/*", nothing)
    # The start of a pod counts once the controllers run, a little after the Node is registered.
    harness.pod("first")
    await two.remote.until(lambda: harness.remote_pod("first"))
    two.home.delete(PODS, "first", "default", grace_seconds=0)
    await two.remote.until(lambda: harness.remote_pod("first") is None)
    harness.pod("web")
    await two.remote.until(lambda: harness.remote_pod("web"))
    harness.report_running("web")
    await two.home.until(lambda: harness.status("web").get("phase") == "Running")
    two.remote.break_watches()
    await two.remote.until(two.remote.open_watches)
    async with kubelet_api_client(run) as session:
        for path in ("/containerLogs/default/web/main", "/metrics/resource"):
            async with session.get(path) as answer:
                assert answer.status == 200
                await answer.read()
        return await metrics(session)


def kind(family: Metric) -> str:
    """The family's type as the documentation names it."""
    return "gauge" if family.name == "bridge_build_info" else str(family.type)


async def test_documentation_has_every_metric_with_type_and_labels(two: Clusters) -> None:
    documented = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in _ROW.findall(DOCUMENT.read_text())
    }
    async with running_join(two) as run:
        found = await used(two, run)
    exported = {}
    for name, family in found.items():
        if name.startswith(("bridge_", "workqueue_")):
            full = name + _TOTAL if family.type == "counter" else name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            exported[full] = (kind(family), labels)
    assert exported == documented
    assert {"process_cpu_seconds", "process_open_fds"} <= found.keys()


async def test_values_after_one_pod(two: Clusters) -> None:
    async with running_join(two) as run:
        found = await used(two, run)
    assert value(found, "bridge_pods", phase="Running") == 1
    assert value(found, "bridge_pods") == 1
    assert value(found, "bridge_up", side="home") == 1
    creates = len(two.remote.requests("POST", "*/pods"))
    api = "bridge_api_requests_total"
    assert value(found, api, side="remote", method="POST", code="201") >= creates >= 1
    assert value(found, api, method="STREAM", code="200") >= 2
    took = "bridge_api_request_duration_seconds_count"
    assert value(found, took, side="remote", method="POST") >= creates
    assert value(found, took, side="remote", method="POST", code="201") >= creates
    assert value(found, "bridge_pod_status_lag_seconds_count") >= 1
    assert value(found, "bridge_pod_start_duration_seconds_count") == 1
    assert value(found, "bridge_node_capacity", resource="cpu") == 4
    assert value(found, "bridge_node_allocatable", resource="memory") == 8 * 2**30
    assert value(found, "bridge_node_remote_nodes") == 1
    stale = [it.labels for it in found["bridge_watch_staleness_seconds"].samples]
    for side, resource in (("home", "pods"), ("remote", "nodes"), ("home", "configmaps")):
        assert {"side": side, "resource": resource} in stale
    assert 0 <= value(found, "bridge_watch_staleness_seconds", side="home", resource="pods") < SOON
    assert value(found, "workqueue_unfinished_work_seconds", name="pods") == 0
    assert value(found, "bridge_watches_total", side="remote", resource="pods") >= 1
    assert value(found, "bridge_watch_lists_total", side="home", resource="pods") == 1
    assert value(found, "workqueue_adds_total", name="pods") >= 2
    assert value(found, "workqueue_depth", name="pods") == 0
    assert value(found, "bridge_reconciles_total", name="pods", result="success") >= 2
    assert value(found, "bridge_reconciles_total", result="defect") == 0
    assert value(found, "bridge_reviews_total", kind="TokenReview", answer="asked") == 1
    remembered = "bridge_reviews_total"
    assert value(found, remembered, kind="TokenReview", answer="remembered") >= 1
    carried = "bridge_stream_bytes_total"
    assert value(found, carried, kind="logs", direction="out") == len("a line\n")
    scrapes = "bridge_scrapes_total"
    assert value(found, scrapes, path="/metrics/resource", result="complete") == 1


async def test_absurd_capacity_of_a_node_leaves_the_metrics_readable(two: Clusters) -> None:
    put_worker(two.remote, "absurd", cpu="1e308")
    async with running_join(two) as run, kubelet_api_client(run) as session:
        found = await metrics(session)
    assert value(found, "bridge_node_capacity", resource="cpu") == 1e48


async def test_unreachable_remote_is_not_up(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        await two.remote.stop()
        async with asyncio.timeout(SOON):
            found = await metrics(session)
            while value(found, "bridge_up", side="remote"):
                found = await metrics(session)
        assert value(found, "bridge_up", side="home") == 1
        assert value(found, "bridge_watch_failures_total", side="remote") > 0


async def test_series_that_alerts_select_exist_from_the_start(two: Clusters) -> None:
    """Prometheus sees no increase in a series that first appears with the value 1."""
    async with running_join(two) as run, kubelet_api_client(run) as session:
        found = await metrics(session)
    reconciles = {
        (it.labels["name"], it.labels["result"]) for it in found["bridge_reconciles"].samples
    }
    names = {name for name, _ in reconciles}
    assert {"pods", "mirror", "tokens", "events"} <= names
    assert reconciles == {
        (name, result) for name in names for result in ("success", "waiting", "failure", "defect")
    }
    for name, label in _counted():
        series = found[name.removesuffix(_TOTAL)].samples
        for key, values in label.items():
            assert values <= {it.labels[key] for it in series}, f"{name} {key}"


def _counted() -> list[tuple[str, dict[str, set[str]]]]:
    """The counters that alerts select by label, and the selected values."""
    rules = (DOCUMENT.parents[2] / "manifests" / "monitoring" / "rules.yaml").read_text()
    return [
        (name, {key: set(values.split("|"))})
        for name, key, values in re.findall(r'(bridge_\w+_total)\{(\w+)=~?"([^"]+)"\}', rules)
    ]


async def test_pending_claims_and_failed_provisioning_are_counted(two: Clusters) -> None:
    """The remote has no StorageClass."""
    storage = Storage(EngineHarness(two.home, two.remote))
    storage.home_class()
    two.home.fail(Fault("PATCH", "*/persistentvolumeclaims/data", code=409, times=None))
    settings = two.but(storage="provision")
    async with running_join(two, settings) as run, kubelet_api_client(run) as session:
        storage.claim()
        storage.claim("elsewhere", node="another")
        async with asyncio.timeout(SOON):
            found = await metrics(session)
            while not value(found, "bridge_volume_provisions_total", result="failure"):
                found = await metrics(session)
    assert value(found, "bridge_volume_claims_pending") == 1
    assert value(found, "bridge_volume_deletions_total") == 0


async def test_stream_limit_is_exposed(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        assert value(await metrics(session), "bridge_kubelet_streams_limit") == 1000
