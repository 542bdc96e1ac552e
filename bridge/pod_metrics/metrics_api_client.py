"""Reads pod usage from the remote's metrics API (``metrics.k8s.io``), for remotes that do not let
the bridge query their kubelets.

`MetricsApiSource` sends one request for all pods of this home, or with prepared namespaces one for
each; concurrent callers, and callers for another path a moment later, share it. The answer is
parsed in a thread.

The API reports the CPU that a container used per second over a window that ended at a timestamp;
`RateIntegrator` makes a counter of it by adding up rate times the time since the previous sample.
The closer the samples, the more exact the counter. It starts with the bridge's first request, which
is reported as the container's start time, so that readers who compare two samples see a counter
reset: metrics-server then waits for the next sample instead of computing a negative rate.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bridge.kubelet.pod_lookup import PodDirectory
from bridge.net.single_flight_cache import SingleFlightCache
from bridge.pod_metrics.kubelet_scraper import TOTAL_TIMEOUT
from bridge.pod_metrics.node_usage import (
    MAX_BYTES,
    MAX_MILLISECONDS,
    MIN_BYTES,
    MIN_SECONDS,
    PodUsage,
)
from bridge.pod_metrics.stats_summary_builder import cpu_stats, memory_stats, timestamp
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import POD_METRICS
from sync.kube.client import KubeClient
from translators import quantity
from translators.object_accessors import Object, name_of, namespace_of
from translators.ownership_labels import Origin, home_selector
from translators.pod_metrics.exposition import Families, RemotePodName, format_sample, new_family
from translators.remote_shapes import wrong_part
from translators.timestamps import parse_time
from translators.virtual_node_identity import Identity

log = logging.getLogger(__name__)

#: Seconds for which an answer serves all paths.
CACHE_SECONDS = 1.0
#: Limits of a sample: CPU seconds per second, and the seconds of a window.
MAX_CORES, MAX_WINDOW = 1e6, 86_400.0
#: The families of a kubelet that metrics-server and people use
#: (pkg/kubelet/metrics/collectors/resource_metrics.go).
_FAMILIES = (
    ("container_cpu_usage_seconds_total", "counter", "CPU time, added up from rates"),
    ("container_memory_working_set_bytes", "gauge", "Working set"),
    ("container_start_time_seconds", "gauge", "Since when CPU time is added up"),
    ("pod_cpu_usage_seconds_total", "counter", "CPU time, added up from rates"),
    ("pod_memory_working_set_bytes", "gauge", "Working set"),
)
#: The key of a whole pod, in the place of a container's name.
_WHOLE_POD = ""
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
#: Characters of a duration: twice what Go writes. The pattern takes quadratic time.
_MAX_DURATION = 64
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")


class MetricsApiSource:
    """Queries the remote's metrics API, in the ``namespaces`` or in all. Call `close` at the
    end."""

    def __init__(
        self,
        remote: KubeClient,
        directory: PodDirectory,
        identity: Identity,
        *,
        namespaces: Collection[str] = (),
    ) -> None:
        self._remote = remote
        self._namespaces = namespaces
        self._directory = directory
        self._identity = identity
        self._integrator = RateIntegrator()
        self._cache: SingleFlightCache[str, list[PodCounters] | None]
        self._cache = SingleFlightCache(lambda _: CACHE_SECONDS)

    async def close(self) -> None:
        await self._cache.close()

    async def fetch(self) -> list[PodCounters] | None:
        """The usage of this node's pods; None if the API does not answer in time."""
        return await self._cache.get("", self._fetch)

    async def _fetch(self) -> list[PodCounters] | None:
        try:
            async with asyncio.timeout(TOTAL_TIMEOUT):
                lists = await asyncio.gather(*map(self._list, self._namespaces or (None,)))
        except (KubeError, TimeoutError) as error:
            log.debug("remote: the metrics API does not answer: %s", error)
            return None
        items = [item for items in lists for item in items]
        pods = {
            RemotePodName(it.namespace, it.name): it.home for it in self._directory.scheduled_pods()
        }
        return await asyncio.to_thread(self._integrator.add, items, pods)

    async def _list(self, namespace: str | None) -> list[Object]:
        """The PodMetrics of one namespace, or of all. Raises KubeError."""
        query = {"labelSelector": home_selector(self._identity)}
        path = POD_METRICS.path(namespace=namespace)
        items = (await self._remote.request("GET", path, query=query)).get("items")
        return items if isinstance(items, list) else []


@dataclass(frozen=True, slots=True)
class ContainerCounters:
    """The usage of one container."""

    name: str
    cpu_seconds: float
    cores: float
    """CPU seconds per second, over the last window."""
    memory_bytes: float
    since: int
    """When the counter started, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class PodCounters:
    """The usage of one pod, per container."""

    home: Origin
    milliseconds: int
    """The time of the sample, since 1970."""
    cpu_seconds: float
    """Includes containers that no longer exist."""
    containers: list[ContainerCounters]

    def usage(self) -> PodUsage:
        """The sum over the containers."""
        memory = sum(it.memory_bytes for it in self.containers)
        return PodUsage(self.home.uid, self.cpu_seconds, self.milliseconds, memory)


@dataclass(slots=True)
class _Counter:
    seconds: float
    at: int
    since: int


class RateIntegrator:
    """Adds up the rates of consecutive answers of the metrics API."""

    def __init__(self) -> None:
        # By the pod's UID and the container's name.
        self._counters: dict[str, dict[str, _Counter]] = {}
        self._started = False

    def add(
        self, items: Iterable[Object], pods: Mapping[RemotePodName, Origin]
    ) -> list[PodCounters]:
        """Adds one answer, a list of PodMetrics, and returns the counters of those in ``pods``.
        ``pods`` are all pods that exist; other counters are dropped, and so are those of containers
        that the answer for their pod does not have."""
        found = []
        for item in items:
            if wrong_part("PodMetrics", item):
                continue
            home = pods.get(RemotePodName(namespace_of(item), name_of(item)))
            if home is None:
                continue
            try:
                found.append(self._add_pod(item, home))
            except (KeyError, OverflowError, ValueError):
                continue  # not a PodMetrics of the known form
        self._started = True
        present = {home.uid for home in pods.values()}
        for uid in self._counters.keys() - present:
            del self._counters[uid]
        return found

    def _add_pod(self, item: Object, home: Origin) -> PodCounters:
        at = round(parse_time(str(item["timestamp"])).timestamp() * 1000)
        window = duration(str(item["window"]))
        if not (0 <= at < MAX_MILLISECONDS and window < MAX_WINDOW):
            raise ValueError("the time is not valid")
        used = {
            str(container["name"]): _parse_usage(container["usage"])
            for container in item.get("containers") or ()
        }
        cores = {name: usage.cores for name, usage in used.items()}
        cores[_WHOLE_POD] = sum(cores.values())
        before = self._counters.get(home.uid, {})
        counters = {
            name: self._advance(before.get(name), cores=rate, at=at, window=window)
            for name, rate in cores.items()
        }
        self._counters[home.uid] = counters
        containers = [
            ContainerCounters(
                name, counters[name].seconds, usage.cores, usage.memory_bytes, counters[name].since
            )
            for name, usage in used.items()
        ]
        return PodCounters(home, at, counters[_WHOLE_POD].seconds, containers)

    def _advance(
        self, counter: _Counter | None, *, cores: float, at: int, window: float
    ) -> _Counter:
        """The counter with the usage until ``at`` added; a new one if there is none."""
        if counter is None:
            # A previous bridge may have reported the usage of pods that existed at the start.
            back = window if self._started else 0.0
            start = MIN_SECONDS + cores * back
            return _Counter(start, at, since=at - round(back * 1000))
        if at > counter.at:
            counter.seconds += cores * (at - counter.at) / 1000
            counter.at = at
        return counter


class _Usage(NamedTuple):
    """The usage of one container in an answer."""

    cores: float
    memory_bytes: float


def _parse_usage(used: Mapping[str, str]) -> _Usage:
    """Raises KeyError, OverflowError or ValueError."""
    cores = float(quantity.parse_quantity(used["cpu"]))
    memory = max(float(quantity.parse_quantity(used["memory"])), MIN_BYTES)
    if not (0 <= cores < MAX_CORES and memory < MAX_BYTES):
        raise ValueError("the usage is not valid")
    return _Usage(cores, memory)


def families(pods: Iterable[PodCounters]) -> Families:
    """``/metrics/resource`` of these pods."""
    found = {name: new_family(name, kind, help_text) for name, kind, help_text in _FAMILIES}

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


def pod_stats(pod: PodCounters) -> Object:
    """The PodStats of ``/stats/summary``."""
    home, at, whole = pod.home, pod.milliseconds, pod.usage()
    cores = sum(it.cores for it in pod.containers)
    return {
        "podRef": {"name": home.name, "namespace": home.namespace, "uid": home.uid},
        "startTime": timestamp(min((it.since for it in pod.containers), default=at)),
        "containers": [
            {
                "name": it.name,
                "startTime": timestamp(it.since),
                "cpu": cpu_stats(at, it.cpu_seconds, cores=it.cores),
                "memory": memory_stats(at, it.memory_bytes),
            }
            for it in pod.containers
        ],
        "cpu": cpu_stats(at, whole.cpu_seconds, cores=cores),
        "memory": memory_stats(at, whole.memory_bytes),
    }


def duration(text: str) -> float:
    """Parses a duration of Go, such as ``1m0.5s``, into seconds. Raises ValueError."""
    if len(text) > _MAX_DURATION:
        raise ValueError("the text is too long: it is no duration")
    parts = list(_DURATION_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text!r} is no duration")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
