"""Counters integrated from the rates of the metrics API."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.pod_metrics.metrics_api_client import (
    PodCounters,
    RateIntegrator,
    duration,
    families,
    pod_stats,
)
from bridge.pod_metrics.node_usage import MIN_BYTES, MIN_SECONDS
from tests.translators.test_remote_shapes import WRONG, places, replaced
from translators.object_accessors import HomeNamespace, HomeUid, Object
from translators.ownership_labels import Origin
from translators.pod_metrics import exposition
from translators.pod_metrics.exposition import RemotePodName

WEB = Origin(HomeNamespace("shop"), "web", HomeUid("home-1"))
PODS = {RemotePodName("shop-h", "web"): WEB}
#: 2030-01-01T00:00:00Z.
START = 1893456000000


def pod_metrics(second: int, cpu: str = "250m", *, name: str = "web", **fields: Any) -> Object:
    """A PodMetrics whose window ended in this second of 2030."""
    return {
        "metadata": {"name": name, "namespace": "shop-h"},
        "timestamp": f"2030-01-01T00:00:{second:02}Z",
        "window": "10.5s",
        "containers": [{"name": "main", "usage": {"cpu": cpu, "memory": "3Mi"}}],
        **fields,
    }


def count(counters: RateIntegrator, *items: Object) -> list[PodCounters]:
    return counters.add(items, PODS)


def seconds(pods: list[PodCounters]) -> float:
    (pod,) = pods
    return pod.containers[0].cpu_seconds


def test_counter_adds_rate_times_time() -> None:
    counters = RateIntegrator()
    assert seconds(count(counters, pod_metrics(0))) == MIN_SECONDS
    assert seconds(count(counters, pod_metrics(20, "500m"))) == pytest.approx(10 + MIN_SECONDS)
    assert seconds(count(counters, pod_metrics(20, "500m"))) == pytest.approx(10 + MIN_SECONDS)
    assert seconds(count(counters, pod_metrics(30, "0"))) == pytest.approx(10 + MIN_SECONDS)


def test_pod_counter_keeps_the_usage_of_ended_containers() -> None:
    counters = RateIntegrator()
    usage = {"cpu": "1", "memory": "1Mi"}
    both = [{"name": name, "usage": usage} for name in ("main", "helper")]
    count(counters, pod_metrics(0, containers=both))
    (before,) = count(counters, pod_metrics(10, containers=both))
    (after,) = count(counters, pod_metrics(20, containers=both[:1]))
    assert before.cpu_seconds == pytest.approx(20 + MIN_SECONDS)
    assert after.cpu_seconds == pytest.approx(30 + MIN_SECONDS)


def test_counter_of_a_container_that_the_pod_no_longer_has_is_dropped() -> None:
    """Else an API server that reports other names each time would fill the memory."""
    counters = RateIntegrator()
    usage = {"cpu": "1", "memory": "1Mi"}
    count(counters, pod_metrics(0))
    count(counters, pod_metrics(10, "1"))
    count(counters, pod_metrics(20, containers=[{"name": "other", "usage": usage}]))
    (pod,) = count(counters, pod_metrics(40, "1"))
    (container,) = pod.containers
    assert container.cpu_seconds == pytest.approx(10.5 + MIN_SECONDS)
    assert container.since == START + 29_500
    assert pod.cpu_seconds == pytest.approx(40 + MIN_SECONDS)


def test_malformed_answer_for_a_pod_leaves_its_counters() -> None:
    counters = RateIntegrator()
    count(counters, pod_metrics(0))
    whole, half = pod_metrics(10, "1")["containers"][0], {"name": "other", "usage": {"cpu": "1"}}
    assert count(counters, pod_metrics(10, containers=[whole, half])) == []
    assert seconds(count(counters, pod_metrics(20, "1"))) == pytest.approx(20 + MIN_SECONDS)


def test_older_sample_is_ignored() -> None:
    counters = RateIntegrator()
    count(counters, pod_metrics(10))
    assert seconds(count(counters, pod_metrics(5))) == MIN_SECONDS


def test_new_pod_is_counted_from_the_start_of_its_first_window() -> None:
    counters = RateIntegrator()
    count(counters)
    (pod,) = count(counters, pod_metrics(20, "1"))
    (container,) = pod.containers
    assert container.cpu_seconds == pytest.approx(10.5 + MIN_SECONDS)
    assert (container.since, pod.milliseconds) == (START + 9500, START + 20000)


def test_existing_pod_is_counted_from_the_first_sample() -> None:
    """metrics-server compares with a previous bridge's sample only if the start time is older."""
    (pod,) = count(RateIntegrator(), pod_metrics(20))
    assert pod.containers[0].since == pod.milliseconds == START + 20000


def test_counters_of_deleted_pods_are_dropped_and_of_missing_samples_kept() -> None:
    counters = RateIntegrator()
    count(counters, pod_metrics(0))
    count(counters)
    assert seconds(count(counters, pod_metrics(4, "1"))) == pytest.approx(4 + MIN_SECONDS)
    counters.add([], {})
    assert seconds(count(counters, pod_metrics(8, "1"))) == pytest.approx(10.5 + MIN_SECONDS)


def test_unmanaged_pods_and_malformed_items_are_skipped() -> None:
    odd = [
        pod_metrics(0, name="unmanaged"),
        pod_metrics(0, "much"),
        pod_metrics(0, "1e30"),
        pod_metrics(0, "-1"),
        pod_metrics(0, window="soon"),
        pod_metrics(0, window="9" * 400 + "s"),
        pod_metrics(0, window="999999h"),
        pod_metrics(0, window="0" * 64 + "1s"),
        pod_metrics(0, timestamp="9999-12-31T23:59:59Z"),
        pod_metrics(0, timestamp="now"),
        pod_metrics(0, containers=[{"name": "main"}]),
        {"metadata": {"name": "web", "namespace": "shop-h"}},
    ]
    assert count(RateIntegrator(), *odd) == []


def test_memory_is_never_reported_as_zero() -> None:
    nothing = {"name": "main", "usage": {"cpu": "0", "memory": "0"}}
    (pod,) = count(RateIntegrator(), pod_metrics(0, containers=[nothing]))
    assert pod.containers[0].memory_bytes == MIN_BYTES


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15s", 15), ("1m0.5s", 60.5), ("1h2m3s", 3723), ("250ms", 0.25), ("10µs", 1e-5), ("0s", 0)],
)
def test_duration_parses_go_durations(text: str, expected: float) -> None:
    assert duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "5", "s", "1s?", "-1s", "1 s", "1s" * 33])
def test_duration_rejects_malformed_text(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration(text)


def test_exposition_has_the_families_of_metrics_server() -> None:
    text = exposition.render_families(families(count(RateIntegrator(), pod_metrics(1))))
    found = {family.name: family for family in text_string_to_metric_families(text)}
    labels = {"container": "main", "namespace": "shop", "pod": "web"}
    (start,) = found["container_start_time_seconds"].samples
    assert (start.labels, start.value, start.timestamp) == (labels, START / 1000 + 1, None)
    (memory,) = found["container_memory_working_set_bytes"].samples
    assert (memory.labels, memory.value) == (labels, 3 * 2**20)
    (cpu,) = found["pod_cpu_usage_seconds"].samples
    assert (cpu.labels, cpu.timestamp) == ({"namespace": "shop", "pod": "web"}, START / 1000 + 1)


def test_pod_stats_cover_the_pod_and_its_containers() -> None:
    (pod,) = map(pod_stats, count(RateIntegrator(), pod_metrics(1)))
    time = "2030-01-01T00:00:01Z"
    cpu = {"time": time, "usageNanoCores": 250_000_000, "usageCoreNanoSeconds": 1_000_000}
    memory = {"time": time, "workingSetBytes": 3 * 2**20}
    assert pod == {
        "podRef": {"name": "web", "namespace": "shop", "uid": "home-1"},
        "startTime": time,
        "containers": [{"name": "main", "startTime": time, "cpu": cpu, "memory": memory}],
        "cpu": cpu,
        "memory": memory,
    }


def test_pod_stats_fit_into_64_bits() -> None:
    """Each value is within its limits, and their products and sums are not."""
    usage = {"cpu": "999999", "memory": str(2**60 - 1000)}
    containers = [{"name": str(number), "usage": usage} for number in range(10_000)]
    counters = RateIntegrator()
    count(counters, pod_metrics(0, containers=containers))
    later = pod_metrics(0, containers=containers, timestamp="2999-01-01T00:00:00Z")
    (pod,) = map(pod_stats, count(counters, later))
    found = orjson.loads(orjson.dumps(pod))
    assert found["cpu"]["usageNanoCores"] == 2**63 - 1
    assert found["cpu"]["usageCoreNanoSeconds"] == 2**63 - 1
    assert found["memory"]["workingSetBytes"] == 2**63 - 1
    assert found["containers"][0]["cpu"]["usageCoreNanoSeconds"] == 2**63 - 1


def test_wrong_types_in_any_part_are_left_out() -> None:
    whole = pod_metrics(0)
    for path in places(whole):
        for value in WRONG:
            count(RateIntegrator(), replaced(whole, path, value))
    assert count(RateIntegrator(), *WRONG) == []
