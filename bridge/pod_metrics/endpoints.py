"""``/metrics/resource``, ``/stats/summary``, ``/metrics/cadvisor``, ``/metrics/probes`` and
``/metrics/slis``.

An answer is put together when somebody asks, and remembered for `REMEMBERED` seconds: those who
ask at the same time, as replicas of a metrics-server do, cost one round of questions. Where it
comes from is `MetricsSource`. ``/metrics/cadvisor`` and ``/metrics/probes`` have a source where
kubelets are asked, and ``/metrics/slis`` has none: without one the answer is 200 with an exposition
that has no sample and a comment with the reason, since a scrape configuration for kubelets asks
every node for all of these, and reports a target that refuses as down. ``/metrics/resource`` and
``/stats/summary`` are 404 where there is no source.

``/metrics/resource`` is always answered: where kubelets were silent, with what the others said and
``resource_scrape_error 1``; where all were, with that alone, as a kubelet does. The others are 503
when nobody answered at all.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson
from aiohttp import web

from bridge.base.settings import MetricsSource
from bridge.kubelet.pod_directory import PodDirectory, ScheduledPod
from bridge.kubelet.routing import Route, RoutedRequest
from bridge.net.error_responses import HttpError
from bridge.net.single_flight import SingleFlightCache
from bridge.pod_metrics import metrics_api
from bridge.pod_metrics.kubelet_scraper import KubeletScraper, ScrapeResult
from bridge.pod_metrics.metrics_api import MetricsApiSource
from bridge.pod_metrics.node_summary import summary, usages
from bridge.pod_metrics.node_usage import NodeUsage, PodUsage
from sync.kube.client import KubeClient
from translators.identity import Identity, Origin
from translators.objects import Object
from translators.pod_metrics import exposition, stats_summary
from translators.pod_metrics.exposition import Families, RemotePodName, Sample

#: Seconds: shorter than any interval at which metrics are gathered, longer than replicas that do
#: it together are apart.
CACHE_SECONDS = 3.0

_CPU, _MEMORY = "pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes"
_NODE = (
    ("node_cpu_usage_seconds_total", "counter", "CPU time that the pods of the node have used"),
    ("node_memory_working_set_bytes", "gauge", "Working set of the pods of the node"),
)
_ERRORS = ("resource_scrape_error", "scrape_error")

T = TypeVar("T")


class _ResourceMetrics(NamedTuple):
    """What one kubelet says in ``/metrics/resource``."""

    families: Families
    usage: list[PodUsage]


class PodMetricsEndpoints:
    """Answers for one virtual node. RoutedRequest `close` at the end."""

    def __init__(
        self,
        remote: KubeClient,
        directory: PodDirectory,
        identity: Identity,
        source: MetricsSource,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.usage = NodeUsage()
        self.scrapes: Counter[tuple[str, ...]] = Counter()
        """How many answers were put together, by path and result: complete, or partial where a
        kubelet (or the metrics API) was silent."""
        self._directory = directory
        self._node_name = identity.node
        self._source = source
        self._clock = clock
        self._since = round(clock() * 1000)
        self._kubelets = KubeletScraper(remote)
        self._api = MetricsApiSource(remote, directory, identity)
        self._answers: SingleFlightCache[str, bytes] = SingleFlightCache(lambda _: CACHE_SECONDS)

    async def close(self) -> None:
        """Ends the questions that are under way."""
        await self._answers.close()
        await self._api.close()

    @property
    def routes(self) -> list[Route]:
        """What the kubelet API is to serve."""
        get, both = frozenset({"GET"}), frozenset({"GET", "POST"})
        return [
            Route("/metrics/resource", get, self._resource),
            Route("/metrics/slis", get, _slis, is_node_independent=True),
            Route("/metrics/cadvisor", get, partial(self._passed_on, "/metrics/cadvisor")),
            Route("/metrics/probes", get, partial(self._passed_on, "/metrics/probes")),
            Route("/stats/summary", both, self._summary),
        ]

    # -- the paths ---------------------------------------------------------------------------

    async def _resource(self, _: RoutedRequest) -> web.StreamResponse:
        return _text(await self._answer("/metrics/resource", self._ask_resource))

    async def _summary(self, call: RoutedRequest) -> web.StreamResponse:
        short = call.request.query.getall("only_cpu_and_memory", []) == ["true"]
        path = "/stats/summary"
        ask = partial(self._ask_summary, short=short)
        body = await self._answer(f"{path}?short" if short else path, ask)
        return web.Response(body=body, content_type="application/json")

    async def _passed_on(self, path: str, _: RoutedRequest) -> web.StreamResponse:
        if self._source != "kubelets":
            return _empty("the remote's kubelets are not asked; join with --metrics kubelets")
        return _text(await self._answer(path, partial(self._ask_text, path)))

    async def _answer(self, key: str, ask: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        if self._source == "none":
            raise HttpError(404, "this bridge does not tell what pods use; join with --metrics")
        return await self._answers.get(key, ask)

    # -- from kubelets, or from the metrics API ----------------------------------------------

    async def _ask_resource(self) -> bytes:
        path = "/metrics/resource"
        pods = self._directory.scheduled_pods()
        present, now = _present(pods), round(self._clock() * 1000)
        if self._source == "kubelets":
            told = await self._kubelets.scrape(path, pods, _read_resource)
            parts = [part.families for part in told.parts]
            self.usage.add(
                (it for part in told.parts for it in part.usage), present=present, now=now
            )
            failed = told.failed > 0
        else:
            counted = await self._api.fetch()
            failed = counted is None
            parts = [] if counted is None else [metrics_api.families(counted)]
            self.usage.add((pod.usage() for pod in counted or ()), present=present, now=now)
        self._scraped(path, failed=failed)
        if parts or not failed:
            parts.append(self._node())
        return await asyncio.to_thread(_rendered, [*parts, _errors(failed)])

    async def _ask_summary(self, *, short: bool) -> bytes:
        path = "/stats/summary"
        pods, now = self._directory.scheduled_pods(), round(self._clock() * 1000)
        if self._source == "kubelets":
            query = {"only_cpu_and_memory": "true"} if short else None
            told = await self._kubelets.scrape(path, pods, _read_summary, query=query)
            self._some(path, told)
            found = [stats for part in told.parts for stats in part]
        else:
            counted = await self._api.fetch()
            self._scraped(path, failed=counted is None)
            if counted is None:
                raise HttpError(503, "the remote's metrics API does not answer")
            found = metrics_api.pod_stats(counted)
        self.usage.add(usages(found), present=_present(pods), now=now)
        whole = summary(
            found,
            node=self._node_name,
            usage=self.usage,
            since=self._since,
            now=now,
        )
        return await asyncio.to_thread(orjson.dumps, whole)

    async def _ask_text(self, path: str) -> bytes:
        told = await self._kubelets.scrape(path, self._directory.scheduled_pods(), _read_families)
        self._some(path, told)
        return await asyncio.to_thread(_rendered, told.parts)

    # -- what is added -----------------------------------------------------------------------

    def _node(self) -> Families:
        found = {}
        for (name, kind, told), value in zip(
            _NODE, (self.usage.cpu_seconds, self.usage.memory_bytes), strict=True
        ):
            found[name] = exposition.new_family(name, kind, told)
            found[name].samples.append(
                exposition.format_sample(name, {}, value, self.usage.milliseconds)
            )
        return found

    def _some(self, path: str, told: ScrapeResult[T]) -> None:
        """Raises Refusal where nobody answered who was asked."""
        self._scraped(path, failed=told.failed > 0)
        if told.failed and not told.parts:
            raise HttpError(503, "no kubelet of the remote answers; the bridge's log says why")

    def _scraped(self, path: str, *, failed: bool) -> None:
        self.scrapes[path, "partial" if failed else "complete"] += 1


# -- reading, in threads -------------------------------------------------------------------


def _read_families(body: bytes, pods: Mapping[RemotePodName, Origin]) -> Families:
    return exposition.relabel_metrics(body.decode(), pods)


def _read_resource(body: bytes, pods: Mapping[RemotePodName, Origin]) -> _ResourceMetrics:
    families = _read_families(body, pods)
    uids = {(str(home.namespace), home.name): str(home.uid) for home in pods.values()}
    memory = {_pod(it.labels): it.value for it in _samples(families, _MEMORY)}
    usage = [
        PodUsage(uids[_pod(it.labels)], it.value, it.timestamp_ms, memory.get(_pod(it.labels), 0.0))
        for it in _samples(families, _CPU)
        if it.timestamp_ms is not None
    ]
    return _ResourceMetrics(families, usage)


def _read_summary(body: bytes, pods: Mapping[RemotePodName, Origin]) -> list[Object]:
    answer = orjson.loads(body)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no summary of statistics")  # noqa: TRY004  # the contract
    return stats_summary.relabel_stats(answer, pods)


def _samples(families: Families, name: str) -> Iterator[Sample]:
    return exposition.parse_samples(families.get(name, exposition.Family()))


def _present(pods: Iterable[ScheduledPod]) -> dict[str, int]:
    return {pod.home.uid: pod.since for pod in pods}


def _pod(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels["namespace"], labels["pod"]


def _rendered(parts: list[Families]) -> bytes:
    return exposition.render_families(exposition.merge_families(parts)).encode()


def _errors(failed: bool) -> Families:
    found = {}
    for name in _ERRORS:
        found[name] = exposition.new_family(
            name, "gauge", "1 if a kubelet of the remote was silent"
        )
        found[name].samples.append(exposition.format_sample(name, {}, int(failed)))
    return found


async def _slis(_: RoutedRequest) -> web.StreamResponse:
    return _empty("a virtual node has no component SLIs; /readyz?verbose has the bridge's checks")


def _empty(reason: str) -> web.Response:
    """An exposition without samples."""
    return _text(f"# {reason}\n".encode())


def _text(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": exposition.CONTENT_TYPE})
