"""The sums of ``/stats/summary``, of pods whose values are within the limits."""

from __future__ import annotations

import orjson

from bridge.pod_metrics.node_usage import NodeUsage
from bridge.pod_metrics.stats_summary_builder import is_valid, summary, usages
from translators.object_accessors import Object


def pod_stats(number: int, *, nanoseconds: int, minute: int = 0) -> Object:
    return {
        "podRef": {"name": f"pod-{number}", "namespace": "shop", "uid": f"uid-{number}"},
        "cpu": {
            "time": f"2030-01-01T00:{minute:02}:00Z",
            "usageCoreNanoSeconds": nanoseconds,
            "usageNanoCores": 10**15 - 1,
        },
        "memory": {"workingSetBytes": 2**59, "rssBytes": 2**59},
    }


def node_stats(pods: list[Object], usage: NodeUsage) -> Object:
    """The node's part, as a client reads it."""
    assert all(map(is_valid, pods))
    found = summary(pods, node="virtual", usage=usage, since=1, now=1)
    node: Object = orjson.loads(orjson.dumps(found))["node"]
    return node


def test_sums_of_many_pods_fit_into_64_bits() -> None:
    usage = NodeUsage()
    pods = [pod_stats(number, nanoseconds=1) for number in range(10_000)]
    usage.add(usages(pods), present={}, now=1)
    found = node_stats(pods, usage)
    assert found["cpu"]["usageNanoCores"] == 2**63 - 1
    assert {found["memory"][key] for key in ("usageBytes", "rssBytes", "workingSetBytes")} == {
        2**63 - 1
    }


def test_counter_that_exceeds_64_bits_is_written_and_kept_by_the_next_bridge() -> None:
    """A kubelet of the remote reports a counter that falls and rises again."""
    usage = NodeUsage()
    for minute, seconds in enumerate((8, 1, 8, 1, 8)):
        pods = [pod_stats(1, nanoseconds=seconds * 10**18, minute=minute)]
        usage.add(usages(pods), present={"uid-1": 0}, now=minute)
    assert node_stats(pods, usage)["cpu"]["usageCoreNanoSeconds"] == 2**63 - 1
    following = NodeUsage()
    following.resume(usage.checkpoint())
    assert following.cpu_seconds >= usage.cpu_seconds > 9.3e9
    assert node_stats([], following)["cpu"]["usageCoreNanoSeconds"] == 2**63 - 1


def test_counter_at_its_limit_neither_grows_nor_remains() -> None:
    usage = NodeUsage()
    usage.resume("999999999999999.0")
    usage.add([], present={}, now=0)
    pods = [pod_stats(number, nanoseconds=10**18) for number in range(3)]
    usage.add(usages(pods), present={f"uid-{number}": 1 for number in range(3)}, now=1)
    assert usage.cpu_seconds == 1e15
    following = NodeUsage()
    following.resume(usage.checkpoint())
    assert following.cpu_seconds < 1
