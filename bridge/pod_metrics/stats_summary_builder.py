"""Builds ``/stats/summary`` (k8s.io/kubelet's ``pkg/apis/stats/v1alpha1``). Pure.

Values are integers of 64 bits: a sum of more is written as the largest one (`MAX_INTEGER`).

Fields that a virtual node lacks (file systems, network, system processes) are omitted, as a kubelet
omits what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import orjson

from bridge.pod_metrics.node_usage import MAX_BYTES, NodeUsage, PodUsage
from translators.object_accessors import Object
from translators.timestamps import format_time, parse_time

#: A million cores.
MAX_NANO_CORES = 1e15
#: The largest value that every reader of JSON and orjson take.
MAX_INTEGER = 2**63 - 1
#: Fields that a kubelet always has for its node besides the working set; the monitor of Kubernetes'
#: own end-to-end tests ends if one is missing.
_MEMORY = ("usageBytes", "rssBytes")


def timestamp(milliseconds: int) -> str:
    """The time, in whole seconds as the API writes it."""
    return format_time(datetime.fromtimestamp(milliseconds / 1000, UTC))


def cpu_stats(at: int, seconds: float, *, cores: float) -> Object:
    """CPUStats: cumulative usage and usage per second, both in nanoseconds."""
    return {
        "time": timestamp(at),
        "usageNanoCores": _integer(cores * 1e9),
        "usageCoreNanoSeconds": _integer(seconds * 1e9),
    }


def memory_stats(at: int, working_set: float) -> Object:
    return {"time": timestamp(at), "workingSetBytes": _integer(working_set)}


def usages(pods: Iterable[Object]) -> Iterator[PodUsage]:
    """The usage in these PodStats, without pods that have no CPU usage."""
    for pod in pods:
        cpu = pod.get("cpu") or {}
        nanoseconds = cpu.get("usageCoreNanoSeconds")
        if nanoseconds is not None and "time" in cpu:
            # Whole seconds: it was taken before this one was over.
            at = round(parse_time(str(cpu["time"])).timestamp() * 1000) + 999
            used = _memory(pod, "workingSetBytes")
            yield PodUsage(str(pod["podRef"]["uid"]), nanoseconds / 1e9, at, used)


def is_valid(pod: Object) -> bool:
    """Whether these PodStats can be added up and written."""
    try:
        orjson.dumps(pod)  # limits the depth
        cores = (pod.get("cpu") or {}).get("usageNanoCores") or 0
        return (
            0 <= cores < MAX_NANO_CORES
            and all(0 <= _memory(pod, name) < MAX_BYTES for name in _MEMORY)
            and all(usage.is_valid for usage in usages([pod]))
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return False


def _integer(value: float) -> int:
    return round(min(value, MAX_INTEGER))


def _memory(pod: Object, name: str) -> float:
    """A value of the pod's memory; its working set where the value is not known."""
    memory = pod.get("memory") or {}
    known = memory.get(name)
    return float((memory.get("workingSetBytes") or 0) if known is None else known)


def summary(pods: list[Object], *, node: str, usage: NodeUsage, since: int, now: int) -> Object:
    """The whole response. ``since`` is the bridge's start; ``now`` is the time of the node's usage
    if no pod has a sample. Both in milliseconds since 1970."""
    cores = sum(((pod.get("cpu") or {}).get("usageNanoCores") or 0) / 1e9 for pod in pods)
    at = usage.milliseconds or now
    memory = {name: _integer(sum(_memory(pod, name) for pod in pods)) for name in _MEMORY}
    return {
        "node": {
            "nodeName": node,
            "startTime": timestamp(since),
            "cpu": cpu_stats(at, usage.cpu_seconds, cores=cores),
            "memory": memory_stats(at, usage.memory_bytes) | memory,
        },
        "pods": pods,
    }
