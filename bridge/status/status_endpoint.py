"""``/bridge/v1/status``: a running bridge's view of its node and of itself, as JSON.

The answer is built on request from state that the bridge holds anyway, and cached for
`CACHE_SECONDS`, so that concurrent clients cost as much as one. The only request to a cluster is
for its version, once per `VERSION_SECONDS`. The answer contains no credentials: server addresses
are reduced to scheme, host, port and path.

A standby replica answers with its own state only. Authorization is the same as for ``/metrics``.
docs/reference/status.md lists the fields.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson
from aiohttp import web

from bridge.base.version import version
from bridge.clusters.connection import git_version
from bridge.election.elector import LeaderElector
from bridge.kubelet.routing import Route, RoutedRequest
from bridge.kubelet.stream_limits import ActiveStreams
from bridge.net.single_flight_cache import SingleFlightCache
from bridge.observability.recent_errors import RecentErrors
from bridge.status import dashboard_page, node_pod_summary
from sync.base import clock
from sync.cache.informer import Informer
from sync.engine.engine import Engine
from sync.kube.api_errors import KubeError
from sync.kube.client import KubeClient
from sync.runtime.workqueue import WorkQueue
from sync.storage.pvc_controller import PvcController
from translators import quantity
from translators.object_accessors import Object
from translators.timestamps import format_time

#: The HTML page is at ``/bridge/``.
STATUS_PATH = "/bridge/v1/status"
#: Seconds for which an answer is cached.
CACHE_SECONDS = 1.0
#: Seconds for which a cluster's version is cached, and the timeout of reading it.
VERSION_SECONDS, VERSION_TIMEOUT = 60.0, 1.0
#: Pods that are counted before the event loop runs other tasks: about 2 ms of work.
PODS_PER_BATCH = 100
#: Longest error in an answer, in characters.
MAX_ERROR_LENGTH = 500


class StatusEndpoint:
    """Serves the status of a bridge, and of its node once `attach` was called. Call `close` at the
    end."""

    def __init__(
        self,
        node_name: str,
        *,
        home: KubeClient,
        remote: KubeClient,
        election: LeaderElector,
        streams: Callable[[], ActiveStreams],
        recent: RecentErrors,
    ) -> None:
        self._node_name = node_name
        self._clients = (home, remote)
        self._election = election
        self._streams = streams
        self._recent = recent
        self._engine: Engine | None = None
        self._node: Informer | None = None
        self._since = format_time(datetime.now(UTC))
        self._started = clock.now()
        self._answers: SingleFlightCache[str, Object] = SingleFlightCache(lambda _: CACHE_SECONDS)
        self._versions: SingleFlightCache[str, str] = SingleFlightCache(lambda _: VERSION_SECONDS)
        # The last version read from each cluster, for when it is unreachable.
        self._last_versions: dict[str, str] = {}

    @property
    def routes(self) -> list[Route]:
        """The routes that the kubelet API serves."""
        get = frozenset({"GET"})
        return [
            Route(STATUS_PATH, get, self._serve, is_node_independent=True),
            Route("/bridge", get, self._page, is_node_independent=True),
        ]

    def attach(self, engine: Engine, node: Informer | None) -> None:
        """Adds the node's state to the answers. ``node`` is the informer of the Node, if it is
        registered."""
        self._engine, self._node = engine, node

    async def close(self) -> None:
        """Cancels requests in progress."""
        await self._answers.close()
        await self._versions.close()

    async def status(self) -> Object:
        """The node's status, with the bridge's as the field ``bridge``."""
        return await self._answers.get("status", self._build)

    async def _serve(self, _: RoutedRequest) -> web.StreamResponse:
        return web.Response(
            body=orjson.dumps(await self.status()),
            content_type="application/json",
            headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
        )

    async def _page(self, call: RoutedRequest) -> web.StreamResponse:
        if not call.request.path.endswith("/"):
            return dashboard_page.redirect_to_folder()
        return dashboard_page.response(await self.status())

    # -- the answer ------------------------------------------------------------------------

    async def _build(self) -> Object:
        return {**await self._build_node(), "bridge": await self._build_bridge()}

    async def _build_node(self) -> Object:
        nodes = [] if self._node is None else list(self._node.store)
        if self._engine is None or not nodes:
            return {"name": self._node_name, "ready": None, "volumes": None}
        pods = node_pod_summary.PodCounts()
        for count, pod in enumerate(list(self._engine.home_pods.store), start=1):
            pods.add(pod)
            if count % PODS_PER_BATCH == 0:
                await asyncio.sleep(0)
        node = node_pod_summary.summarize_node(nodes[0], pods)
        return {**node, "volumes": await self._build_volumes(self._engine)}

    async def _build_volumes(self, engine: Engine) -> Object | None:
        claims = engine.find_optional(PvcController)
        if claims is None or not claims.storage.remote_claims.synced.is_set():
            return None  # Every volume would seem to be missing.
        summary = await claims.summarize_volumes()
        return {
            "total": summary.total,
            "capacity": quantity.format_quantity(summary.capacity, binary=True),
            "pending": claims.pending_claims(),
            "missing": len(summary.missing),
            "missingVolumes": [
                {"name": it.name, "claim": it.claim, "message": it.problem}
                for it in summary.missing[: node_pod_summary.MAX_NAMED]
            ],
        }

    async def _build_bridge(self) -> Object:
        engine = self._engine
        queues = (
            []
            if engine is None
            else [_summarize_queue(it.name, it.queue) for it in engine.controllers]
        )
        informers = [] if engine is None else engine.watches
        watches = [*informers, *([self._node] if self._node is not None else [])]
        failing = {it.client.side: str(it.error) for it in watches if it.error is not None}
        versions = await asyncio.gather(
            *(self._version(it, away=it.side in failing) for it in self._clients)
        )
        return {
            "version": version(),
            "role": "leader" if self._election.is_leader else "standby",
            "standby": self._election.standby_reason,
            "started": self._since,
            "uptimeSeconds": round(clock.now() - self._started),
            "lagSeconds": max((it["oldestSeconds"] for it in queues), default=0.0),
            "clusters": {
                client.side: {
                    "server": strip_credentials(client.endpoint.server),
                    "version": its,
                    "watched": client.side not in failing,
                    "error": failing.get(client.side, "")[:MAX_ERROR_LENGTH],
                }
                for client, its in zip(self._clients, versions, strict=True)
            },
            "queues": queues,
            "watches": _summarize_watches(watches),
            "streams": dict(self._streams().counts),
            "errors": self._recent.as_list(),
        }

    async def _version(self, client: KubeClient, *, away: bool) -> str:
        """The cluster's version, the last one read if it does not answer; "" if none was read."""

        async def read() -> str:
            answer = await client.request(
                "GET", "/version", timeout=VERSION_TIMEOUT, retry_on_throttle=False
            )
            return git_version(answer)

        if not away:
            with contextlib.suppress(KubeError):  # The watches report the cause.
                self._last_versions[client.side] = await self._versions.get(client.side, read)
        return self._last_versions.get(client.side, "")


def _summarize_queue(name: str, queue: WorkQueue[Any]) -> Object:
    return {
        "name": name,
        "depth": len(queue),
        "working": len(queue.working),
        "later": queue.delayed,
        "failing": queue.failing,
        "retries": queue.retries,
        "oldestSeconds": round(queue.longest_wait, 3),
    }


def _summarize_watches(informers: Iterable[Informer]) -> list[Object]:
    """By cluster and resource. Several watches of a resource, such as one per namespace, are summed
    up; ``silentSeconds`` is the maximum."""
    now = asyncio.get_running_loop().time()
    found: dict[tuple[str, str], Object] = {}
    for informer in informers:
        side, kind = informer.client.side, str(informer.resource)
        summary = found.setdefault(
            (side, kind),
            {
                "cluster": side,
                "resource": kind,
                "watches": 0,
                "objects": 0,
                "failing": 0,
                "silentSeconds": None,
                "error": "",
            },
        )
        summary["watches"] += 1
        summary["objects"] += len(informer.store)
        if informer.last_contact is not None:
            summary["silentSeconds"] = max(
                summary["silentSeconds"] or 0, round(now - informer.last_contact)
            )
        if informer.error is not None:
            summary["failing"] += 1
            summary["error"] = str(informer.error)[:MAX_ERROR_LENGTH]
    return list(found.values())


def strip_credentials(server: str) -> str:
    """The URL without user info, query and fragment, which can contain credentials."""
    parts = urlsplit(server)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
