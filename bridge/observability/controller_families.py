"""Collects the metric families that each process with clients, informers and controllers has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from bridge.observability.metric_exposition import counter, gauge, histogram
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.runtime.controller import Controller

#: Rejections by flow control, which an alert selects, start at 0.
_THROTTLED = {(method, "429"): 0 for method in ("GET", "POST", "PATCH", "DELETE")}


def up(informers: Iterable[Informer], sides: Iterable[str]) -> Iterator[Metric]:
    """Whether the watches of each side work."""
    failing = {it.client.side for it in informers if it.error is not None}
    yield gauge(
        "bridge_up{side}",
        "1 while all watches of this cluster work, else 0.",
        {side: int(side not in failing) for side in sides},
    )


def requests(clients: Sequence[KubeClient]) -> Iterator[Metric]:
    """The requests to API servers."""
    yield counter(
        "bridge_api_requests{side,method,code}",
        "Requests to API servers by method (STREAM: watches and logs) and status code.",
        {
            (client.side, *key): count
            for client in clients
            for key, count in (_THROTTLED | client.metrics.answered).items()
        },
    )
    yield histogram(
        "bridge_api_request_duration_seconds{side,method,code}",
        "Duration of requests to API servers, without streams.",
        {
            (client.side, *key): took
            for client in clients
            for key, took in client.metrics.durations.items()
        },
    )
    yield counter(
        "bridge_api_data_rejected{side,reason}",
        "Rejected data of an API server: too large (body, page, watch-event, list, memory, "
        "status), malformed, an address that no pod can have, too many Events.",
        flatten({it.side: it.limits.rejected for it in clients}),
    )
    yield gauge(
        "bridge_api_requests_limit{side}",
        "Limit of requests in flight; lower where the server pushes back.",
        {it.side: it.limiter.limit for it in clients},
    )
    yield gauge(
        "bridge_api_requests_in_flight{side}",
        "Requests in flight, without streams and the node's own.",
        {it.side: it.limiter.in_flight for it in clients},
    )
    yield gauge(
        "bridge_api_requests_waiting{side}",
        "Requests that wait because of the limit.",
        {it.side: it.limiter.waiting for it in clients},
    )


def watches(clients: Sequence[KubeClient], opened: Iterable[Informer]) -> Iterator[Metric]:
    """The watches of the clients; those that are open now are ``opened``."""
    by_side = {it.side: it.metrics for it in clients}
    yield counter(
        "bridge_watch_lists{side,resource}",
        "Full lists: at the start, and where a watch could not be resumed.",
        flatten({side: it.lists for side, it in by_side.items()}),
    )
    yield counter(
        "bridge_watches{side,resource}",
        "Watches started; servers end each after some minutes.",
        flatten({side: it.watches for side, it in by_side.items()}),
    )
    yield counter(
        "bridge_watch_failures{side,resource}",
        "Failed lists and watches.",
        flatten({side: it.watch_failures for side, it in by_side.items()}),
    )
    yield counter(
        "bridge_watch_defects{side,resource}",
        "Watch events that raised an unexpected error in the bridge.",
        {(side, name): it.defects[name] for side, it in by_side.items() for name in it.lists},
    )
    now = asyncio.get_running_loop().time()
    stale: dict[tuple[str, str], float] = {}
    for watch in opened:
        if watch.last_contact is not None:
            key = (watch.client.side, str(watch.resource))
            stale[key] = max(stale.get(key, 0.0), now - watch.last_contact)
    yield gauge(
        "bridge_watch_staleness_seconds{side,resource}",
        "Time since the last data of a resource's most silent watch.",
        stale,
    )


def work_queues(controllers: Sequence[Controller[Any]]) -> Iterator[Metric]:
    """The queues and reconciles of the controllers."""
    queues = {it.name: it.queue for it in controllers}
    unfinished = {it.name: it.unfinished_work for it in controllers}
    yield gauge(
        "workqueue_depth{name}",
        "Keys that wait for a worker.",
        {key: len(queue) for key, queue in queues.items()},
    )
    yield counter(
        "workqueue_adds{name}", "Keys added.", {key: queue.adds for key, queue in queues.items()}
    )
    yield counter(
        "workqueue_retries{name}",
        "Keys added again for a retry.",
        {key: queue.retries for key, queue in queues.items()},
    )
    yield histogram(
        "workqueue_queue_duration_seconds{name}",
        "Time that keys waited for a worker.",
        {key: queue.queue_duration for key, queue in queues.items()},
    )
    yield histogram(
        "workqueue_work_duration_seconds{name}",
        "Duration of reconciles.",
        {it.name: it.work_duration for it in controllers},
    )
    yield gauge(
        "workqueue_unfinished_work_seconds{name}",
        "Sum of the durations so far of the reconciles in progress.",
        {key: sum(seconds) for key, seconds in unfinished.items()},
    )
    yield gauge(
        "workqueue_longest_running_processor_seconds{name}",
        "Duration so far of the longest reconcile in progress.",
        {key: max(seconds, default=0.0) for key, seconds in unfinished.items()},
    )
    yield counter(
        "bridge_reconciles{name,result}",
        "Reconciles by result: success, waiting (for a condition that is no failure), failure (of "
        "a request), defect (of the bridge).",
        flatten({it.name: it.results for it in controllers}),
    )


def flatten(counters: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str], float]:
    """Nested counters with both keys as labels."""
    return {(key, inner): count for key, it in counters.items() for inner, count in it.items()}
