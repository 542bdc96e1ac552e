"""Resource metrics of the kubelet API, with fake kubelets in the remote."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from bridge.base.join_settings import JoinSettings, MetricsChoice
from bridge.pod_metrics import kubelet_metrics_endpoints, kubelet_scraper
from bridge.pod_metrics import metrics_api_client as api
from bridge.rbac import permissions
from bridge.rbac.permissions import required_in_remote
from sync.kube.api_resources import PODS, Object
from tests.bridge.prepared_namespaces import granting, prepared
from tests.bridge.running_join import RunningJoin, kubelet_api_client, running_join
from tests.bridge.two_clusters import Clusters, put_worker
from tests.fakeapi import Fault
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import is_deleting
from translators.pod_metrics import exposition

pytestmark = pytest.mark.usefixtures("soon")

RESOURCE = "/metrics/resource"
#: The pods of every fake kubelet: those of the tests, and an unmanaged one.
KUBELET_PODS = (("default-h", "a"), ("default-h", "b"), ("kube-system", "secret-pod"))


@dataclass
class Kubelets:
    """The remote's kubelets, behind its API server."""

    seconds: float = 10.0
    """CPU seconds that each pod has used."""
    at: int = 1000
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Node and path."""
    silent: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    garbled: bytes | None = None
    worse: Object = field(default_factory=dict)
    """Parts of the statistics of pod ``b``."""
    padding: bytes = b""
    """Comments before each text."""
    hostile: str = ""
    """Lines at the end of each text."""
    steps: list[str] = field(default_factory=list)
    """Completed steps of padded texts."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        _, node, _, path = request.path.removeprefix("/api/v1").split("/", 4)[1:]
        self.requests.append((node, "/" + path))
        if node in self.silent:
            await asyncio.sleep(60)
        if node in self.refused:
            return web.Response(status=403, text="no")
        if self.garbled is not None:
            return web.Response(body=self.garbled)
        if path == "stats/summary":
            return web.json_response(self.summary(node))
        if self.padding:
            return await self.send_padded(request, path)
        return web.Response(text=self.text(path))

    async def send_padded(self, request: web.Request, path: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.padding)
        await response.write_eof(self.text(path).encode())
        self.steps.append("sent")
        return response

    def text(self, path: str) -> str:
        name = {
            "metrics/resource": "pod_cpu_usage_seconds_total",
            "metrics/cadvisor": "container_fs_reads_total",
            "metrics/probes": "prober_probe_total",
        }[path]
        lines = [f"# TYPE {name} counter"]
        for namespace, pod in KUBELET_PODS:
            labels = f'namespace="{namespace}",pod="{pod}"'
            lines.append(f"{name}{{{labels}}} {self.seconds} {self.at}")
            if path == "metrics/resource":
                lines.append(f"pod_memory_working_set_bytes{{{labels}}} 1000 {self.at}")
        return "\n".join([*lines, f"node_cpu_usage_seconds_total 1e6 {self.at}", self.hostile])

    def summary(self, node: str) -> Object:
        time = "1970-01-01T00:00:01Z"
        cpu = {"time": time, "usageNanoCores": 5, "usageCoreNanoSeconds": 10**10}
        memory = {"time": time, "usageBytes": 1500, "workingSetBytes": 1000, "rssBytes": 0}
        refs = [{"namespace": where, "name": pod, "uid": "theirs"} for where, pod in KUBELET_PODS]
        pods = [{"podRef": ref, "cpu": cpu, "memory": memory} for ref in refs]
        pods[1] |= self.worse
        return {"node": {"nodeName": node}, "pods": pods}


@pytest.fixture
def there(two: Clusters) -> Kubelets:
    """The kubelets of the nodes ``worker`` and ``another``."""
    found = Kubelets()
    two.remote.route("GET", "/api/v1/nodes/*/proxy/*", found)
    put_worker(two.remote, "another")
    return found


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a new one."""
    for module in (kubelet_metrics_endpoints, api):
        monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)


@asynccontextmanager
async def running(
    two: Clusters,
    *nodes: str,
    metrics: MetricsChoice = "auto",
    settings: JoinSettings | None = None,
) -> AsyncIterator[tuple[EngineHarness, RunningJoin, aiohttp.ClientSession]]:
    """A join with pods ``a``, ``b``, … on these nodes of the remote."""
    harness = EngineHarness(two.home, two.remote)

    def runs(name: str) -> bool:
        return harness.status(name).get("phase") == "Running"

    async with (
        running_join(two, settings or two.but(metrics=metrics)) as run,
        kubelet_api_client(run) as session,
    ):
        for name, node in zip("ab", nodes, strict=False):
            harness.pod(name)
            await two.remote.until(partial(harness.remote_pod, name))
            two.remote.bind(name, node, REMOTE_NAMESPACE)
            harness.report_running(name)
            await two.home.until(partial(runs, name))
        yield harness, run, session


async def read(session: aiohttp.ClientSession, path: str = RESOURCE) -> str:
    async with session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


async def refused(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as answer:
        return answer.status, await answer.text()


def value(text: str, name: str) -> float:
    """The value of a family with one sample."""
    samples = [sample for it in text_string_to_metric_families(text) for sample in it.samples]
    return float(next(sample.value for sample in samples if sample.name == name))


async def test_every_path_has_only_pods_of_this_node(two: Clusters, there: Kubelets) -> None:
    async with running(two, "worker", "another") as (_, __, session):
        for path in (RESOURCE, "/metrics/cadvisor", "/metrics/probes", "/stats/summary"):
            text = await read(session, path)
            assert "secret-pod" not in text
            assert "default-h" not in text
            if path == "/stats/summary":
                continue
            labels = [
                it.labels
                for family in text_string_to_metric_families(text)
                for it in family.samples
            ]
            named = {(it["namespace"], it["pod"]) for it in labels if "pod" in it}
            assert named == {("default", "a"), ("default", "b")}


async def test_hostile_kubelet_keeps_no_scraper_from_the_metrics_of_others(
    two: Clusters, there: Kubelets
) -> None:
    node = "node_cpu_usage_seconds_total"
    labels = 'namespace="default-h",pod="a"'
    hostile = [f"# TYPE {node} histogram", f"{node}{{{labels}}} 1e9", f"x{{{labels}}} one"]
    there.hostile = "\n".join([*hostile, "# TYPE x fast", ""])
    async with running(two, "worker", "another") as (_, __, session):
        text = await read(session)
    families = list(text_string_to_metric_families(text))
    assert {"x"}.isdisjoint(family.name for family in families)
    assert f"# TYPE {node} counter" in text
    assert text.count(node + "{") == 0
    assert value(text, node) < 1e6
    assert 'pod="b"' in text


async def test_pod_samples_come_from_its_own_node_only(two: Clusters, there: Kubelets) -> None:
    """Each fake kubelet has both pods; a node that is lost may still run one that is elsewhere."""
    async with running(two, "worker", "another") as (_, __, session):
        text = await read(session)
    assert text.count('pod_cpu_usage_seconds_total{namespace="default",pod="a"}') == 1
    assert sorted(there.requests) == [("another", RESOURCE), ("worker", RESOURCE)]


async def test_only_nodes_with_own_pods_are_queried_and_only_on_request(
    two: Clusters, there: Kubelets
) -> None:
    async with running(two, "another") as (_, __, session):
        assert there.requests == []
        await read(session)
        assert there.requests == [("another", RESOURCE)]


async def test_concurrent_and_close_requests_share_one_scrape(
    two: Clusters, there: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_metrics_endpoints, "CACHE_SECONDS", 60.0)
    async with running(two, "worker") as (_, __, session):
        answers = await asyncio.gather(*(read(session) for _ in range(4)))
        answers.append(await read(session))
    assert len(set(answers)) == 1
    assert len(there.requests) == 1


async def test_node_usage_is_the_sum_and_its_counter_grows(two: Clusters, there: Kubelets) -> None:
    async with running(two, "worker", "another") as (harness, _, session):
        first = value(await read(session), "node_cpu_usage_seconds_total")
        there.seconds, there.at = 12.5, 2000
        text = await read(session)
        assert value(text, "node_cpu_usage_seconds_total") == pytest.approx(first + 5)
        assert value(text, "node_memory_working_set_bytes") == 2000
        two.home.remove(PODS, "a", "default")
        await two.remote.until(lambda: is_deleting(harness.remote_pod("a") or {}))
        there.seconds, there.at = 13.5, 3000
        text = await read(session)
        assert 'pod="a"' not in text
        assert value(text, "node_cpu_usage_seconds_total") == pytest.approx(first + 6)
        assert value(text, "node_memory_working_set_bytes") == 1000


async def test_node_counter_continues_with_the_next_bridge(two: Clusters, there: Kubelets) -> None:
    async with running(two, "worker") as (_, __, session):
        await read(session)
        there.seconds, there.at = 15.0, 2000
        before = value(await read(session), "node_cpu_usage_seconds_total")
    async with running_join(two) as run, kubelet_api_client(run) as session:
        after = value(await read(session), "node_cpu_usage_seconds_total")
        assert after >= before >= 5
        there.seconds, there.at = 16.0, 3000
        again = value(await read(session), "node_cpu_usage_seconds_total")
    assert again == pytest.approx(after + 1)


async def test_silent_kubelet_costs_its_own_pods_and_sets_scrape_error(
    two: Clusters, there: Kubelets
) -> None:
    there.silent = {"worker"}
    async with running(two, "worker", "another") as (_, __, session):
        text = await read(session)
        assert 'pod="b"' in text
        assert 'pod="a"' not in text
        assert value(text, "resource_scrape_error") == 1
        there.silent = set()
        text = await read(session)
        assert 'pod="a"' in text
        assert value(text, "resource_scrape_error") == 0


async def test_scrape_has_a_total_timeout(
    two: Clusters, there: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_scraper, "TOTAL_TIMEOUT", 0.2)
    there.silent = {"worker", "another"}
    async with running(two, "worker", "another") as (_, __, session):
        async with asyncio.timeout(7):
            text = await read(session)
            assert value(text, "resource_scrape_error") == 1
            assert "node_" not in text
            status, sentence = await refused(session, "/metrics/cadvisor")
    assert (status, "no kubelet of the remote answers" in sentence) == (503, True)


@pytest.mark.parametrize("garbled", [b"\xff\xfe{", b"[]", b"{"])
async def test_malformed_response_counts_as_no_answer(
    two: Clusters, there: Kubelets, garbled: bytes
) -> None:
    there.garbled = garbled
    async with running(two, "worker") as (_, __, session):
        assert (await refused(session, "/stats/summary"))[0] == 503


async def test_large_response_is_parsed_before_the_next_is_read(
    two: Clusters, there: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets keep some MiB of those that wait."""
    parse = exposition.relabel_metrics

    def parse_and_note(text: str, pods: Any) -> Any:
        try:
            return parse(text, pods)
        finally:
            there.steps.append("parsed")

    monkeypatch.setattr(exposition, "relabel_metrics", parse_and_note)
    there.padding = (b"#" + b" " * 1022 + b"\n") * (24 * 1024)
    async with running(two, "worker", "another") as (_, __, session):
        text = await read(session, "/metrics/cadvisor")
    assert 'pod="a"' in text
    assert 'pod="b"' in text
    assert there.steps == ["sent", "parsed"] * 2


async def test_metrics_of_all_kubelets_are_bounded(
    two: Clusters, there: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet beyond the limit counts as one that does not answer, until there is memory."""
    monkeypatch.setattr(kubelet_scraper, "kept_limit", lambda: 400)  # one kubelet's, not two
    async with running(two, "worker", "another") as (_, __, session):
        text = await read(session)
        assert value(text, "resource_scrape_error") == 1
        assert ('pod="a"' in text) != ('pod="b"' in text)
        await asyncio.sleep(kubelet_scraper.KEPT_SECONDS + 1)
        assert 'pod="' in await read(session)


async def test_summary_of_many_values_is_not_decoded(
    two: Clusters, there: Kubelets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_metrics_endpoints, "kept_limit", lambda: 2**20)
    there.garbled = b'{"pods":[' + b"[]," * 5300 + b"0]}"
    async with running(two, "worker") as (_, __, session):
        assert (await refused(session, "/stats/summary"))[0] == 503


async def test_missing_permission_is_logged_once(
    two: Clusters, there: Kubelets, caplog: pytest.LogCaptureFixture
) -> None:
    there.refused = {"worker"}
    async with running(two, "worker") as (_, __, session):
        for _ in range(3):
            assert value(await read(session), "resource_scrape_error") == 1
    warned = [it for it in caplog.records if "cannot get metrics of the pods" in it.message]
    assert [it.levelname for it in warned][:1] == ["WARNING"]
    assert sum(it.levelname == "WARNING" for it in warned) == 1


async def test_summary_is_that_of_the_virtual_node(two: Clusters, there: Kubelets) -> None:
    async with running(two, "worker") as (harness, _, session):
        async with session.post("/stats/summary") as answer:
            found = await answer.json()
        async with session.get("/stats/summary?only_cpu_and_memory=true") as answer:
            short = await answer.json()
        uid = harness.home_pod("a")["metadata"]["uid"]
    assert found["node"]["nodeName"] == NODE
    memory = {"time": TIME, "usageBytes": 1500, "workingSetBytes": 1000, "rssBytes": 0}
    assert found["node"]["memory"] == memory
    assert found["node"]["cpu"]["usageNanoCores"] == 5
    assert found.keys() == {"node", "pods"}
    (pod,) = found["pods"]
    assert pod["podRef"] == {"namespace": "default", "name": "a", "uid": uid}
    assert short["pods"] == found["pods"]
    assert [query for query in queries(two) if "stats" in query[0]] == [
        ("/api/v1/nodes/worker/proxy/stats/summary", {}),
        ("/api/v1/nodes/worker/proxy/stats/summary", {"only_cpu_and_memory": "true"}),
    ]


TIME = "1970-01-01T00:00:01Z"
DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "worse",
    [
        {"cpu": [1]},
        {"cpu": {"time": "soon", "usageCoreNanoSeconds": 1}},
        {"cpu": {"time": "9999-12-31T23:59:59Z", "usageCoreNanoSeconds": 1}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": "1"}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": 1e300}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": 18 * 10**18}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": 1, "usageNanoCores": [1]}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": 1, "usageNanoCores": 1e300}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": 1}, "memory": {"workingSetBytes": [1]}},
        {"cpu": {"time": TIME, "usageCoreNanoSeconds": 1}, "memory": {"workingSetBytes": -1}},
        {"memory": {"rssBytes": [1]}},
        {"memory": {"usageBytes": 1e300}},
        {"more": DEEP},
    ],
)
async def test_malformed_statistics_of_a_pod_cost_that_pod_alone(
    two: Clusters, there: Kubelets, worse: Object
) -> None:
    there.worse = worse
    async with running(two, "worker", "worker") as (_, __, session):
        found = json.loads(await read(session, "/stats/summary"))
    assert [pod["podRef"]["name"] for pod in found["pods"]] == ["a"]
    assert found["node"]["memory"]["workingSetBytes"] == 1000


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e300])
async def test_malformed_samples_do_not_remain_in_the_node_usage(
    two: Clusters, there: Kubelets, seconds: float
) -> None:
    async with running(two, "worker") as (_, __, session):
        await read(session)
        there.seconds, there.at = seconds, 2000
        await read(session)
        there.seconds, there.at = 12.0, 3000
        assert value(await read(session), "node_cpu_usage_seconds_total") == pytest.approx(2, 0.01)
        there.at = 10**20
        await read(session)
        await read(session, "/stats/summary")


def queries(two: Clusters) -> list[tuple[str, dict[str, str]]]:
    """The requests to the remote's kubelets."""
    found = two.remote.requests("GET", "*/proxy/*")
    return [(entry.path, dict(entry.query)) for entry in found]


def metrics_api(two: Clusters, *namespaces: str, cpu: str = "250m") -> None:
    """A remote without the right to ask kubelets, and with a metrics API, of all namespaces or of
    these."""
    two.remote.api.authorize = lambda spec: spec["resourceAttributes"].get("subresource") != "proxy"

    async def found(_: web.Request) -> web.Response:
        return web.json_response({"kind": "APIResourceList"})

    async def pods(request: web.Request) -> web.Response:
        usage = {"cpu": cpu, "memory": "2Mi"}
        items = [
            {
                "metadata": {"namespace": namespace, "name": name},
                "timestamp": "2030-01-01T00:00:00Z",
                "window": "15s",
                "containers": [{"name": "main", "usage": usage}],
            }
            for namespace, name in KUBELET_PODS
            if not namespaces or f"/namespaces/{namespace}/" in request.path
        ]
        return web.json_response({"kind": "PodMetricsList", "items": items})

    two.remote.route("GET", "/apis/metrics.k8s.io/v1beta1", found)
    for it in namespaces or ("",):
        where = f"namespaces/{it}/" if it else ""
        two.remote.route("GET", f"/apis/metrics.k8s.io/v1beta1/{where}pods", pods)


async def is_empty(session: aiohttp.ClientSession, path: str) -> bool:
    """Whether a scrape succeeds without a sample: Prometheus takes any refusal for a target that is
    down."""
    async with session.get(path) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        lines = (await answer.text()).splitlines()
    return all(line.startswith("#") for line in lines)


async def test_all_scrape_paths_of_kubelets_are_served(two: Clusters, there: Kubelets) -> None:
    """Those of kube-prometheus' ServiceMonitor for kubelets."""
    async with running(two, "worker") as (_, __, session):
        for path in ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/slis"):
            async with session.get(path) as answer:
                assert answer.status == 200, path
        assert await is_empty(session, "/metrics/slis")
    assert "/metrics/slis" not in {path for _, path in there.requests}


async def test_without_kubelet_permission_the_metrics_api_is_used(
    two: Clusters, there: Kubelets
) -> None:
    metrics_api(two)
    async with running(two, "worker") as (_, run, session):
        text = await read(session)
        assert value(text, "container_memory_working_set_bytes") == 2 * 2**20
        assert value(text, "resource_scrape_error") == 0
        summary = await read(session, "/stats/summary")
        assert '"usageNanoCores":250000000' in summary
        memory = json.loads(summary)["node"]["memory"]
        assert memory["usageBytes"] == memory["rssBytes"] == memory["workingSetBytes"] == 2 * 2**20
        for body in (text, summary):
            assert "secret-pod" not in body
        assert await is_empty(session, "/metrics/cadvisor")
        assert await is_empty(session, "/metrics/probes")
        assert any("its metrics API serves" in line for line in run.reports)
    assert there.requests == []


async def test_metrics_api_is_used_by_prepared_namespace(two: Clusters, there: Kubelets) -> None:
    settings = prepared(two, "another", REMOTE_NAMESPACE, metrics="api")
    metrics_api(two, REMOTE_NAMESPACE, "another")
    granted = permissions.in_namespaces(
        permissions.REMOTE_METRICS["api"], settings.remote_namespaces
    )
    two.remote.api.authorize = granting((*required_in_remote(settings), *granted))
    async with running(two, "worker", settings=settings) as (_, __, session):
        text = await read(session)
        assert value(text, "container_memory_working_set_bytes") == 2 * 2**20
    lists = {it.path for it in two.remote.requests("GET", "*/metrics.k8s.io/v1beta1/*pods")}
    prefix = "/apis/metrics.k8s.io/v1beta1/namespaces"
    assert lists == {f"{prefix}/another/pods", f"{prefix}/{REMOTE_NAMESPACE}/pods"}


async def test_failed_metrics_api_is_a_scrape_error(two: Clusters, there: Kubelets) -> None:
    metrics_api(two)
    async with running(two, "worker") as (_, __, session):
        two.remote.fail(Fault("GET", "*/metrics.k8s.io/v1beta1/pods", code=503, times=None))
        assert value(await read(session), "resource_scrape_error") == 1
        assert (await refused(session, "/stats/summary"))[0] == 503


async def test_without_permissions_join_warns_and_paths_are_not_found(
    two: Clusters, there: Kubelets
) -> None:
    two.remote.api.authorize = lambda spec: (
        spec["resourceAttributes"].get("subresource") != "proxy"
        and spec["resourceAttributes"]["group"] != "metrics.k8s.io"
    )
    async with running(two, "worker") as (_, run, session):
        assert (await refused(session, RESOURCE))[0] == 404
        (line,) = [line for line in run.reports if "no resource metrics" in line]
        assert "grant get nodes/proxy (exact), or list pods.metrics.k8s.io" in line
    assert there.requests == []


async def test_metrics_none_requires_no_permission(two: Clusters, there: Kubelets) -> None:
    async with running(two, "worker", metrics="none") as (_, __, session):
        assert (await refused(session, RESOURCE))[0] == 404
        for path in ("/metrics/cadvisor", "/metrics/probes", "/metrics/slis"):
            assert await is_empty(session, path)
    reviews = [entry.body["spec"]["resourceAttributes"] for entry in two.remote.log if entry.review]
    assert not any(it.get("subresource") == "proxy" for it in reviews)
