"""Counters out of rates, for remotes whose kubelets we may not ask.

The metrics API (``metrics.k8s.io``) tells how much CPU a container used a second, over a window
that ended at a time. `Counters` adds up rate times time since the sample before, so what is counted
is as good as the samples are near to each other; it begins when the bridge was first asked. That
beginning is told as the container's start, which tells all who compare two samples that counters
began anew with the bridge: metrics-server then waits for the next sample instead of seeing a use of
less than nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.pod_metrics.node_summary import cpu_stats, memory_stats, moment
from bridge.pod_metrics.node_usage import NOTHING_BYTES, NOTHING_SECONDS, PodUsage
from translators import quantity
from translators.identity import Origin
from translators.objects import Object, name_of, namespace_of
from translators.pod_metrics.exposition import Families, RemotePodName, format_sample, new_family
from translators.timestamps import parse_time

#: Those of a kubelet that metrics-server and people look for
#: (pkg/kubelet/metrics/collectors/resource_metrics.go).
_FAMILIES = (
    ("container_cpu_usage_seconds_total", "counter", "CPU time, added up from rates"),
    ("container_memory_working_set_bytes", "gauge", "Working set"),
    ("container_start_time_seconds", "gauge", "Since when CPU time is added up"),
    ("pod_cpu_usage_seconds_total", "counter", "CPU time, added up from rates"),
    ("pod_memory_working_set_bytes", "gauge", "Working set"),
)
#: In the place of a container's name: the pod.
_WHOLE = ""
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")


@dataclass(frozen=True, slots=True)
class Container:
    """What one container uses."""

    name: str
    cpu_seconds: float
    cores: float
    """CPU seconds a second, over the last window."""
    memory_bytes: float
    since: int
    """Since when it is counted, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What one pod uses, container by container."""

    home: Origin
    milliseconds: int
    cpu_seconds: float
    """Also what containers used that are no more."""
    containers: list[Container]

    def usage(self) -> PodUsage:
        """As a whole."""
        memory = sum(it.memory_bytes for it in self.containers)
        return PodUsage(self.home.uid, self.cpu_seconds, self.milliseconds, memory)


@dataclass(slots=True)
class _Counter:
    seconds: float
    at: int
    since: int


class Counters:
    """Adds up what the metrics API says, one answer after the other."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._begun = False

    def count(self, items: Iterable[Object], pods: Mapping[RemotePodName, Origin]) -> list[Pod]:
        """Takes up an answer: PodMetrics, of which those of ``pods`` count, which are all that are
        there; what is counted for others is forgotten."""
        found = []
        for item in items:
            home = pods.get(RemotePodName(namespace_of(item), name_of(item)))
            if home is None:
                continue
            try:
                found.append(self._pod(item, home))
            except (KeyError, ValueError):
                continue  # It is no PodMetrics as we know them.
        self._begun = True
        present = {home.uid for home in pods.values()}
        for key in [key for key in self._counters if key[0] not in present]:
            del self._counters[key]
        return found

    def _pod(self, item: Object, home: Origin) -> Pod:
        at = round(parse_time(str(item["timestamp"])).timestamp() * 1000)
        window = duration(str(item["window"]))
        containers = []
        for container in item["containers"]:
            used = container["usage"]
            name = str(container["name"])
            cores = float(quantity.parse_quantity(used["cpu"]))
            memory = max(float(quantity.parse_quantity(used["memory"])), NOTHING_BYTES)
            counter = self._counter((home.uid, name), cores=cores, at=at, window=window)
            containers.append(Container(name, counter.seconds, cores, memory, counter.since))
        cores = sum(it.cores for it in containers)
        whole = self._counter((home.uid, _WHOLE), cores=cores, at=at, window=window)
        return Pod(home, at, whole.seconds, containers)

    def _counter(self, key: tuple[str, str], *, cores: float, at: int, window: float) -> _Counter:
        counter = self._counters.get(key)
        if counter is None:
            # What is there when the bridge begins may have been told of by a bridge before.
            back = window if self._begun else 0.0
            start = NOTHING_SECONDS + cores * back
            counter = _Counter(start, at, since=at - round(back * 1000))
            self._counters[key] = counter
        elif at > counter.at:
            counter.seconds += cores * (at - counter.at) / 1000
            counter.at = at
        return counter


def families(pods: Iterable[Pod]) -> Families:
    """``/metrics/resource`` of these pods."""
    found = {name: new_family(name, kind, told) for name, kind, told in _FAMILIES}

    def add(name: str, labels: Mapping[str, str], value: float, at: int | None) -> None:
        found[name].samples.append(format_sample(name, labels, value, at))

    for pod in pods:
        whole, at = {"namespace": str(pod.home.namespace), "pod": pod.home.name}, pod.milliseconds
        for each in pod.containers:
            labels = {"container": each.name, **whole}
            add("container_cpu_usage_seconds_total", labels, each.cpu_seconds, at)
            add("container_memory_working_set_bytes", labels, each.memory_bytes, at)
            add("container_start_time_seconds", labels, each.since / 1000, None)
        used = pod.usage()
        add("pod_cpu_usage_seconds_total", whole, used.cpu_seconds, at)
        add("pod_memory_working_set_bytes", whole, used.memory_bytes, at)
    return found


def statistics(pods: Iterable[Pod]) -> list[Object]:
    """The pods of ``/stats/summary``."""
    return [_statistics(pod) for pod in pods]


def _statistics(pod: Pod) -> Object:
    home, at, whole = pod.home, pod.milliseconds, pod.usage()
    cores = sum(it.cores for it in pod.containers)
    return {
        "podRef": {"name": home.name, "namespace": home.namespace, "uid": home.uid},
        "startTime": moment(min((it.since for it in pod.containers), default=at)),
        "containers": [
            {
                "name": it.name,
                "startTime": moment(it.since),
                "cpu": cpu_stats(at, it.cpu_seconds, cores=it.cores),
                "memory": memory_stats(at, it.memory_bytes),
            }
            for it in pod.containers
        ],
        "cpu": cpu_stats(at, whole.cpu_seconds, cores=cores),
        "memory": memory_stats(at, whole.memory_bytes),
    }


def duration(text: str) -> float:
    """Seconds of a duration as Go writes it, such as ``1m0.5s``. Raises ValueError."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
