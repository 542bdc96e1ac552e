"""The endpoints ``/metrics/resource``, ``/stats/summary``, ``/metrics/cadvisor``,
``/metrics/probes`` and ``/metrics/slis``.

A response is built on request and cached for `CACHE_SECONDS`: concurrent clients, such as replicas
of a metrics-server, cost one round of requests to the remote.

- ``/metrics/resource`` and ``/stats/summary`` use the `MetricsSource`; without one they are 404.
- ``/metrics/cadvisor`` and ``/metrics/probes`` require kubelets as the source, and
  ``/metrics/slis`` has none. Without a source these return 200 and an exposition with a comment
  instead of samples: scrape configurations for kubelets query every node for all of them and report
  a target that returns an error as down.
- ``/metrics/resource`` always succeeds: if some kubelets do not answer, with the others' samples
  and ``resource_scrape_error 1``; if none does, with that alone, like a kubelet. The others are 503
  if no kubelet answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson
from aiohttp import web

from bridge.base.join_settings import MetricsSource
from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.pod_lookup import PodDirectory, ScheduledPod
from bridge.kubelet.routing import Route, RoutedRequest
from bridge.net.single_flight_cache import SingleFlightCache
from bridge.pod_metrics import metrics_api_client
from bridge.pod_metrics.kubelet_scraper import KubeletScraper, ScrapeResult, kept_limit
from bridge.pod_metrics.metrics_api_client import MetricsApiSource
from bridge.pod_metrics.node_usage import NodeUsage, PodUsage
from bridge.pod_metrics.stats_summary_builder import is_valid, summary, usages
from sync.kube.client import KubeClient
from sync.kube.response_limits import decoded_size
from translators.object_accessors import Object, uid_of
from translators.ownership_labels import Origin
from translators.pod_metrics import exposition, stats_summary
from translators.pod_metrics.exposition import Families, RemotePodName, Sample
from translators.storage.identifiers import claim_names
from translators.virtual_node_identity import Identity

#: Seconds: shorter than any scrape interval, longer than the skew between replicas that scrape
#: together.
CACHE_SECONDS = 3.0

_CPU, _MEMORY = "pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"

#: Bytes that a line takes in memory beside its text.
_LINE_SIZE = 64

T = TypeVar("T")


class _ResourceMetrics(NamedTuple):
    """``/metrics/resource`` of one kubelet."""

    families: Families
    usage: list[PodUsage]


class PodMetricsEndpoints:
    """The endpoints of one virtual node. ``namespaces``: those in which the metrics API may be
    listed; () for all. Call `close` at the end."""

    def __init__(
        self,
        remote: KubeClient,
        directory: PodDirectory,
        identity: Identity,
        source: MetricsSource,
        *,
        namespaces: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.usage = NodeUsage()
        self.scrapes: Counter[tuple[str, ...]] = Counter()
        """Responses built, by path and result: complete, or partial if a kubelet (or the metrics
        API) did not answer."""
        self._directory = directory
        self._node_name = identity.node
        self._source = source
        self._clock = clock
        self._started = round(clock() * 1000)
        self._kubelets = KubeletScraper(remote)
        self._api = MetricsApiSource(remote, directory, identity, namespaces=namespaces)
        self._cache: SingleFlightCache[str, bytes] = SingleFlightCache(lambda _: CACHE_SECONDS)

    async def close(self) -> None:
        await self._cache.close()
        await self._api.close()

    @property
    def routes(self) -> list[Route]:
        get, both = frozenset({"GET"}), frozenset({"GET", "POST"})
        return [
            Route("/metrics/resource", get, self._resource),
            Route("/metrics/slis", get, _slis, is_node_independent=True),
            Route("/metrics/cadvisor", get, partial(self._forwarded, "/metrics/cadvisor")),
            Route("/metrics/probes", get, partial(self._forwarded, "/metrics/probes")),
            Route("/stats/summary", both, self._summary),
        ]

    # -- handlers ----------------------------------------------------------------------------

    async def _resource(self, _: RoutedRequest) -> web.StreamResponse:
        return _text(await self._cached("/metrics/resource", self._build_resource))

    async def _summary(self, call: RoutedRequest) -> web.StreamResponse:
        short = call.request.query.getall("only_cpu_and_memory", []) == ["true"]
        path = "/stats/summary"
        build = partial(self._build_summary, short=short)
        body = await self._cached(f"{path}?short" if short else path, build)
        return web.Response(body=body, content_type="application/json")

    async def _forwarded(self, path: str, _: RoutedRequest) -> web.StreamResponse:
        if self._source != "kubelets":
            return _empty(
                "the bridge does not query the remote's kubelets; join with --metrics kubelets"
            )
        return _text(await self._cached(path, partial(self._build_text, path)))

    async def _cached(self, key: str, build: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        if self._source == "none":
            raise HttpError(404, "this bridge serves no resource metrics; join with --metrics")
        return await self._cache.get(key, build)

    # -- responses, from kubelets or the metrics API -----------------------------------------

    async def _build_resource(self) -> bytes:
        path = "/metrics/resource"
        pods = self._directory.scheduled_pods()
        present, now = _scheduled_times(pods), round(self._clock() * 1000)
        if self._source == "kubelets":
            scraped = await self._kubelets.scrape(path, pods, _parse_resource)
            parts = [part.families for part in scraped.parts]
            self.usage.add(
                (it for part in scraped.parts for it in part.usage), present=present, now=now
            )
            failed = scraped.failed > 0
        else:
            counters = await self._api.fetch()
            failed = counters is None
            parts = [] if counters is None else [metrics_api_client.families(counters)]
            self.usage.add((pod.usage() for pod in counters or ()), present=present, now=now)
        self._count_scrape(path, failed=failed)
        own: Families = {}
        if parts or not failed:
            own |= _one_sample(
                "node_cpu_usage_seconds_total",
                "counter",
                "CPU time that the pods of the node have used",
                self.usage.cpu_seconds,
                self.usage.milliseconds,
            )
            own |= _one_sample(
                "node_memory_working_set_bytes",
                "gauge",
                "Working set of the pods of the node",
                self.usage.memory_bytes,
                self.usage.milliseconds,
            )
        silent = "1 if a kubelet of the remote was silent"
        for name in ("resource_scrape_error", "scrape_error"):
            own |= _one_sample(name, "gauge", silent, int(failed))
        for families in parts:  # kubelets add nothing to these families
            for name in own:
                families.pop(name, None)
        parts.append(own)
        return await asyncio.to_thread(_render, parts)

    async def _build_summary(self, *, short: bool) -> bytes:
        path = "/stats/summary"
        pods, now = self._directory.scheduled_pods(), round(self._clock() * 1000)
        if self._source == "kubelets":
            query = {"only_cpu_and_memory": "true"} if short else None
            scraped = await self._kubelets.scrape(path, pods, _parse_summary, query=query)
            self._check_answered(path, scraped)
            found = [stats for part in scraped.parts for stats in part]
            claims = {uid_of(it): claim_names(it) for it in self._directory.home_pods()}
            stats_summary.rename_claims(found, claims)
        else:
            counters = await self._api.fetch()
            self._count_scrape(path, failed=counters is None)
            if counters is None:
                raise HttpError(503, "the remote's metrics API does not answer")
            found = [metrics_api_client.pod_stats(pod) for pod in counters]
        self.usage.add(usages(found), present=_scheduled_times(pods), now=now)
        whole = summary(found, node=self._node_name, usage=self.usage, since=self._started, now=now)
        return await asyncio.to_thread(orjson.dumps, whole)

    async def _build_text(self, path: str) -> bytes:
        pods = self._directory.scheduled_pods()
        scraped = await self._kubelets.scrape(path, pods, _parse_families)
        self._check_answered(path, scraped)
        return await asyncio.to_thread(_render, scraped.parts)

    def _check_answered(self, path: str, scraped: ScrapeResult[T]) -> None:
        """Counts the scrape. Raises HttpError if no kubelet answered."""
        self._count_scrape(path, failed=scraped.failed > 0)
        if scraped.failed and not scraped.parts:
            raise HttpError(503, "no kubelet of the remote answers; see the bridge's log")

    def _count_scrape(self, path: str, *, failed: bool) -> None:
        self.scrapes[path, "partial" if failed else "complete"] += 1


# -- parsing, in threads -----------------------------------------------------------------


def _parse_families(body: bytes, pods: Mapping[RemotePodName, Origin]) -> tuple[Families, int]:
    families = exposition.relabel_metrics(body.decode(), pods)
    lines = [line for family in families.values() for line in family.samples]
    return families, sum(map(len, lines)) + _LINE_SIZE * len(lines)


def _parse_resource(
    body: bytes, pods: Mapping[RemotePodName, Origin]
) -> tuple[_ResourceMetrics, int]:
    families, size = _parse_families(body, pods)
    uids = {(str(home.namespace), home.name): str(home.uid) for home in pods.values()}
    memory = {_pod_key(it.labels): it.value for it in _samples(families, _MEMORY)}
    usage = []
    for sample in _samples(families, _CPU):
        if sample.timestamp_ms is not None:
            pod = _pod_key(sample.labels)
            usage.append(
                PodUsage(uids[pod], sample.value, sample.timestamp_ms, memory.get(pod, 0.0))
            )
    return _ResourceMetrics(families, usage), size


def _parse_summary(body: bytes, pods: Mapping[RemotePodName, Origin]) -> tuple[list[Object], int]:
    if decoded_size(body) > kept_limit():
        raise ValueError(f"the response needs more than {kept_limit()} bytes in memory")
    answer = orjson.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("the response is not a stats summary")  # noqa: TRY004  # the contract
    found = [pod for pod in stats_summary.relabel_stats(answer, pods) if is_valid(pod)]
    return found, decoded_size(orjson.dumps(found))


def _samples(families: Families, name: str) -> Iterator[Sample]:
    return exposition.parse_samples(families.get(name, exposition.Family()))


def _scheduled_times(pods: Iterable[ScheduledPod]) -> dict[str, int]:
    return {pod.home.uid: pod.since for pod in pods}


def _pod_key(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels["namespace"], labels["pod"]


def _render(parts: list[Families]) -> bytes:
    return exposition.render_families(exposition.merge_families(parts)).encode()


def _one_sample(
    name: str, kind: str, help_text: str, value: float, at: int | None = None
) -> Families:
    family = exposition.new_family(name, kind, help_text)
    family.samples.append(exposition.format_sample(name, {}, value, at))
    return {name: family}


async def _slis(_: RoutedRequest) -> web.StreamResponse:
    return _empty("a virtual node has no component SLIs; /readyz?verbose has the bridge's checks")


def _empty(reason: str) -> web.Response:
    """An exposition with a comment and no samples."""
    return _text(f"# {reason}\n".encode())


def _text(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": exposition.CONTENT_TYPE})
