"""The node's part of ``/stats/summary``, and how times and uses are written there. Pure.

The format is k8s.io/kubelet's ``pkg/apis/stats/v1alpha1``. What a virtual node has none of (file
systems, network, processes of its own) is left out, as a kubelet leaves out what it cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from bridge.pod_metrics.node_usage import NodeUsage, PodUsage
from translators.objects import Object
from translators.timestamps import format_time, parse_time


def timestamp(milliseconds: int) -> str:
    """The time, in whole seconds as the API writes it."""
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return format_time(when)


def cpu_stats(at: int, seconds: float, *, cores: float) -> Object:
    """CPUStats: what was used in all, and what is used a second; nanoseconds both."""
    return {
        "time": timestamp(at),
        "usageNanoCores": round(cores * 1e9),
        "usageCoreNanoSeconds": round(seconds * 1e9),
    }


def memory_stats(at: int, working_set: float) -> Object:
    """MemoryStats."""
    return {"time": timestamp(at), "workingSetBytes": round(working_set)}


def usages(pods: Iterable[Object]) -> Iterator[PodUsage]:
    """What these entries say of their pods; those that say nothing of their CPU are left out."""
    for pod in pods:
        cpu, memory = pod.get("cpu") or {}, pod.get("memory") or {}
        nanoseconds = cpu.get("usageCoreNanoSeconds")
        if nanoseconds is not None and "time" in cpu:
            # Whole seconds: it was taken before this one was over.
            at = round(parse_time(str(cpu["time"])).timestamp() * 1000) + 999
            used = float(memory.get("workingSetBytes") or 0)
            yield PodUsage(str(pod["podRef"]["uid"]), nanoseconds / 1e9, at, used)


def summary(pods: list[Object], *, node: str, usage: NodeUsage, since: int, now: int) -> Object:
    """The whole answer. ``since`` is when the bridge began, ``now`` stands for the time of a use
    where no pod has one; both in milliseconds since 1970."""
    cores = sum(((pod.get("cpu") or {}).get("usageNanoCores") or 0) / 1e9 for pod in pods)
    at = usage.milliseconds or now
    return {
        "node": {
            "nodeName": node,
            "startTime": timestamp(since),
            "cpu": cpu_stats(at, usage.cpu_seconds, cores=cores),
            "memory": memory_stats(at, usage.memory_bytes),
        },
        "pods": pods,
    }
