"""Counters out of rates."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.pod_metrics import rate_counters
from bridge.pod_metrics.node_usage import NOTHING_BYTES, NOTHING_SECONDS
from bridge.pod_metrics.rate_counters import Counters
from translators.identity import Origin
from translators.objects import HomeNamespace, HomeUid, Object
from translators.pod_metrics import exposition
from translators.pod_metrics.exposition import RemotePodName

WEB = Origin(HomeNamespace("shop"), "web", HomeUid("home-1"))
PODS = {RemotePodName("shop-h", "web"): WEB}
#: 2030-01-01T00:00:00Z.
START = 1893456000000


def said(second: int, cpu: str = "250m", *, name: str = "web", **fields: Any) -> Object:
    """As the metrics API says it; ``second`` of 2030 is when the window ended."""
    return {
        "metadata": {"name": name, "namespace": "shop-h"},
        "timestamp": f"2030-01-01T00:00:{second:02}Z",
        "window": "10.5s",
        "containers": [{"name": "main", "usage": {"cpu": cpu, "memory": "3Mi"}}],
        **fields,
    }


def count(counters: Counters, *items: Object) -> list[rate_counters.Pod]:
    return counters.count(items, PODS)


def seconds(pods: list[rate_counters.Pod]) -> float:
    (pod,) = pods
    return pod.containers[0].cpu_seconds


def test_use_is_rate_times_time() -> None:
    counters = Counters()
    assert seconds(count(counters, said(0))) == NOTHING_SECONDS
    assert seconds(count(counters, said(20, "500m"))) == pytest.approx(10 + NOTHING_SECONDS)
    assert seconds(count(counters, said(20, "500m"))) == pytest.approx(10 + NOTHING_SECONDS)
    assert seconds(count(counters, said(30, "0"))) == pytest.approx(10 + NOTHING_SECONDS)


def test_a_container_that_ends_takes_nothing_from_its_pod() -> None:
    counters = Counters()
    usage = {"cpu": "1", "memory": "1Mi"}
    both = [{"name": name, "usage": usage} for name in ("main", "helper")]
    count(counters, said(0, containers=both))
    (before,) = count(counters, said(10, containers=both))
    (after,) = count(counters, said(20, containers=both[:1]))
    assert before.cpu_seconds == pytest.approx(20 + NOTHING_SECONDS)
    assert after.cpu_seconds == pytest.approx(30 + NOTHING_SECONDS)


def test_a_sample_of_before_takes_nothing_back() -> None:
    counters = Counters()
    count(counters, said(10))
    assert seconds(count(counters, said(5))) == NOTHING_SECONDS


def test_a_pod_that_comes_later_is_counted_from_the_begin_of_its_first_window() -> None:
    counters = Counters()
    count(counters)
    (pod,) = count(counters, said(20, "1"))
    (container,) = pod.containers
    assert container.cpu_seconds == pytest.approx(10.5 + NOTHING_SECONDS)
    assert (container.since, pod.milliseconds) == (START + 9500, START + 20000)


def test_what_the_bridge_finds_begins_with_it_so_that_no_counter_falls() -> None:
    """metrics-server compares with what a bridge before told only where the start is earlier."""
    (pod,) = count(Counters(), said(20))
    assert pod.containers[0].since == pod.milliseconds == START + 20000


def test_a_pod_that_is_gone_is_forgotten_and_one_that_is_not_told_of_is_not() -> None:
    counters = Counters()
    count(counters, said(0))
    count(counters)
    assert seconds(count(counters, said(4, "1"))) == pytest.approx(4 + NOTHING_SECONDS)
    counters.count([], {})
    assert seconds(count(counters, said(8, "1"))) == pytest.approx(10.5 + NOTHING_SECONDS)


def test_foreign_pods_and_what_is_no_metric_are_left_out() -> None:
    odd = [
        said(0, name="foreign"),
        said(0, "much"),
        said(0, window="soon"),
        said(0, timestamp="now"),
        said(0, containers=[{"name": "main"}]),
        {"metadata": {"name": "web", "namespace": "shop-h"}},
    ]
    assert count(Counters(), *odd) == []


def test_no_container_is_told_to_use_no_memory() -> None:
    nothing = {"name": "main", "usage": {"cpu": "0", "memory": "0"}}
    (pod,) = count(Counters(), said(0, containers=[nothing]))
    assert pod.containers[0].memory_bytes == NOTHING_BYTES


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15s", 15), ("1m0.5s", 60.5), ("1h2m3s", 3723), ("250ms", 0.25), ("10µs", 1e-5), ("0s", 0)],
)
def test_durations_are_read_as_go_writes_them(text: str, expected: float) -> None:
    assert rate_counters.duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "5", "s", "1s?", "-1s", "1 s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        rate_counters.duration(text)


def test_the_text_is_what_metrics_server_reads() -> None:
    text = exposition.render_families(rate_counters.families(count(Counters(), said(1))))
    found = {family.name: family for family in text_string_to_metric_families(text)}
    labels = {"container": "main", "namespace": "shop", "pod": "web"}
    (start,) = found["container_start_time_seconds"].samples
    assert (start.labels, start.value, start.timestamp) == (labels, START / 1000 + 1, None)
    (memory,) = found["container_memory_working_set_bytes"].samples
    assert (memory.labels, memory.value) == (labels, 3 * 2**20)
    (cpu,) = found["pod_cpu_usage_seconds"].samples
    assert (cpu.labels, cpu.timestamp) == ({"namespace": "shop", "pod": "web"}, START / 1000 + 1)


def test_the_statistics_are_those_of_the_pod_and_its_containers() -> None:
    (pod,) = rate_counters.statistics(count(Counters(), said(1)))
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
