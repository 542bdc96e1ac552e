"""The state of home and its remotes, kept up to date while the dashboard runs.

- Home's Nodes, and the pods of each virtual node, are watched; bridges are queried every
  `POLL_SECONDS` while a page is open, and sampled once per `history.INTERVAL` in any case.
- Each remote has tasks of its own: one that hangs, fails or sends nonsense delays no other, and its
  view has the cause.
- Each view of a remote has the revision of its last change, so that readers get only what is new.
- Memory is bounded by the number of remotes and pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from bridge.clusters.connection import git_version
from bridge.dashboard.history import INTERVAL, History, Sample
from bridge.dashboard.pod_row import slim_pod
from bridge.dashboard.pod_table import PodTable
from bridge.node import node_object
from bridge.status import fleet_view, node_pod_summary, status_client
from bridge.status.status_endpoint import strip_credentials
from bridge.status.status_tree import printable
from sync.base import clock
from sync.cache.informer import Informer
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import NODES, PODS
from sync.kube.client import KubeClient
from translators.capacity import pod_requests
from translators.object_accessors import Object, name_of

#: Seconds between two queries of a bridge while a page is open; after a failure.
POLL_SECONDS, RETRY_SECONDS = 3.0, 10.0
#: Seconds that the first sample waits at most until all pods are listed.
FIRST_SECONDS = 10.0
#: Longest metrics of a bridge that are parsed, in bytes.
MAX_METRICS = 4 * 1024 * 1024


@dataclass(slots=True)
class _Remote:
    """One virtual node."""

    node: Object
    pods: Informer
    task: asyncio.Task[None] | None = None
    answer: Object | str = "not queried yet"
    """The bridge's answer, or why there is none."""
    counters: tuple[float, Counters] | None = None
    """The last ones, and the time when they were read."""
    view: Object | None = None
    revision: int = 0


class FleetWatch:
    """Created by `watch_fleet`."""

    def __init__(
        self, home: KubeClient, name: str | None, group: asyncio.TaskGroup, history: History
    ) -> None:
        self._home, self._group = home, group
        self._is_whole = name is None
        fields = f"metadata.name={name}" if name is not None else ""
        self._nodes = Informer(home, NODES, fields=fields)
        self._nodes.on_change(self._node_changed)
        self._nodes.on_state(lambda _: self._changed())
        self._remotes: dict[str, _Remote] = {}
        self._stale: set[str] = set()
        self._readers: set[asyncio.Event] = set()
        self._is_read = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._version = ""
        self._home_view: tuple[int, Object] = (0, {})
        self._revision = 0
        self.pods = PodTable(self._changed)
        self.history = history

    async def start(self) -> None:
        """Starts the tasks."""
        for run, name in ((self._nodes.run(), "watch-nodes"), (self._sample(), "sample-bridges")):
            self._tasks.append(self._group.create_task(run, name=name))

    def stop(self) -> None:
        """Cancels all tasks."""
        for task in (*self._tasks, *(it.task for it in self._remotes.values())):
            if task is not None:
                task.cancel()

    @contextmanager
    def reading(self) -> Iterator[asyncio.Event]:
        """An event that is set at each change while the block runs; the reader clears it."""
        changed = asyncio.Event()
        self._readers.add(changed)
        self._is_read.set()
        try:
            yield changed
        finally:
            self._readers.discard(changed)
            if not self._readers:
                self._is_read.clear()

    def names(self) -> list[str]:
        """The remotes in the order of the page."""
        views = [self._remotes[it].view or {} for it in self._remotes]
        return [it["name"] for it in sorted((it for it in views if it), key=fleet_view.tier_key)]

    def views_since(self, revision: int) -> tuple[int, list[Object]]:
        """The latest revision, and the views that changed after ``revision``."""
        self._refresh()
        found = [it.view for it in self._remotes.values() if it.view and it.revision > revision]
        return self._revision, found

    def home_since(self, revision: int) -> Object | None:
        """The view of home, if it changed after ``revision``."""
        at, view = self._home_view
        return view if at > revision else None

    # -- views -----------------------------------------------------------------------------

    def _refresh(self) -> None:
        while self._stale:
            remote = self._remotes.get(self._stale.pop())
            if remote is None:
                continue
            view = _printable(self._build(remote))
            if view != remote.view:
                self._revision += 1
                remote.view, remote.revision = view, self._revision
        home = self._view_home()
        if home != self._home_view[1]:
            self._revision += 1
            self._home_view = self._revision, home

    def _build(self, remote: _Remote) -> Object:
        """The view of a remote. One whose bridge sends malformed data has that as its problem."""
        try:
            return fleet_view.build_remote(self._status(remote))
        except (AttributeError, KeyError, TypeError, ValueError):
            remote.answer = "its answer is malformed; is it of another version?"
            return fleet_view.build_remote(self._status(remote))

    def _status(self, remote: _Remote) -> Object:
        informer, name = remote.pods, name_of(remote.node)
        if informer.synced.is_set():
            status = node_pod_summary.summarize_node(remote.node, self.pods.counts(name))
        else:
            status = node_pod_summary.summarize_node(remote.node, None)
            status["podsUnknown"] = f"home: {informer.error or 'not listed yet'}"
        if isinstance(remote.answer, str):
            return {**status, "volumes": None, "bridge": None, "bridgeUnknown": remote.answer}
        return {**status, **remote.answer}

    def _view_home(self) -> Object:
        own = [it for it in self._nodes.store if not node_object.is_virtual_node(it)]
        total: dict[str, int] = {}
        for node in own:
            resources = (node.get("status") or {}).get("allocatable")
            for name, amount in _amounts(resources).items():
                total[name] = total.get(name, 0) + amount
        error = self._nodes.error
        return {
            "context": printable(self._home.credentials.context),
            "server": printable(strip_credentials(self._home.endpoint.server)),
            "version": self._version,
            "nodes": len(own) if self._is_whole else None,
            "cpu": total.get("cpu", 0) / 1000,
            "memory": total.get("memory", 0),
            "remotes": len(self._remotes),
            "error": printable(str(error)) if error is not None else "",
            "order": self.names(),
        }

    # -- changes ---------------------------------------------------------------------------

    def _changed(self) -> None:
        for it in self._readers:
            it.set()

    def _touch(self, name: str) -> None:
        self._stale.add(name)
        self._changed()

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        if new is not None and node_object.is_virtual_node(new):
            remote = self._remotes.get(name)
            if remote is None:
                remote = self._remotes[name] = _Remote(new, self._watch_pods(name))
                run = self._follow(name, remote)
                remote.task = self._group.create_task(run, name=f"follow-{name}")
            remote.node = new
            self._touch(name)
        elif (gone := self._remotes.pop(name, None)) is not None:
            if gone.task is not None:
                gone.task.cancel()
            self.pods.remove_node(name)
            self.history.keep_only(self._remotes)
        self._changed()

    def _watch_pods(self, name: str) -> Informer:
        informer = Informer(self._home, PODS, fields=f"spec.nodeName={name}", slim=slim_pod)

        def pod_changed(old: Object | None, new: Object | None) -> None:
            self.pods.update(old, new)
            self._stale.add(name)

        informer.on_change(pod_changed)
        informer.on_synced(lambda: self._touch(name))
        informer.on_state(lambda _: self._touch(name))
        return informer

    async def _follow(self, name: str, remote: _Remote) -> None:
        """Watches the pods of one remote and queries its bridge, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(remote.pods.run(), name=f"watch-pods-{name}")
            while True:
                answer = await status_client.fetch_bridge_status(self._home, name)
                if answer != remote.answer:
                    remote.answer = answer
                    self._touch(name)
                await asyncio.sleep(RETRY_SECONDS if isinstance(answer, str) else POLL_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL):
                        await self._is_read.wait()

    # -- samples ---------------------------------------------------------------------------

    async def _sample(self) -> None:
        """Samples all remotes once per interval, until cancelled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                await self._nodes.synced.wait()
                for it in list(self._remotes.values()):
                    await it.pods.synced.wait()
        while True:
            remotes = dict(self._remotes)
            await self._read_version()
            samples = await asyncio.gather(*(self._sample_one(*it) for it in remotes.items()))
            self.history.add(time.time(), dict(zip(remotes, samples, strict=True)))
            if self._nodes.synced.is_set():
                self.history.keep_only(self._remotes)
            self._changed()
            await asyncio.sleep(INTERVAL)

    async def _read_version(self) -> None:
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(status_client.TIMEOUT_SECONDS):
                answer = await self._home.request("GET", "/version")
                self._version = printable(git_version(answer))

    async def _sample_one(self, name: str, remote: _Remote) -> Sample:
        before, now = remote.counters, await self._read_counters(name)
        remote.counters = None if now is None else (clock.now(), now)
        started: float | None = None
        errors: float | None = None
        relay: float | None = None
        if before is not None and remote.counters is not None:
            (start, old), (end, new) = before, remote.counters
            started = rate(old.started, new.started, end - start)
            errors = rate(old.errors, new.errors, end - start)
            relay = rate(old.relayed, new.relayed, end - start)
        is_listed = remote.pods.synced.is_set()
        pods = float(self.pods.counts(name).phases.total()) if is_listed else None
        answer = remote.answer
        lag = None if isinstance(answer, str) else _lag(answer)
        return pods, lag, started, errors, relay

    async def _read_counters(self, name: str) -> Counters | None:
        path = f"{NODES.path(name, subresource='proxy')}/metrics"
        try:
            async with asyncio.timeout(status_client.TIMEOUT_SECONDS):
                body = await self._home.read(
                    path, timeout=status_client.TIMEOUT_SECONDS, limit=MAX_METRICS
                )
        except (KubeError, TimeoutError):
            return None
        return read_counters(body.decode(errors="replace"))


def _lag(answer: Object) -> float | None:
    bridge = answer.get("bridge")
    lag = bridge.get("lagSeconds") if isinstance(bridge, dict) else None
    return float(lag) if isinstance(lag, int | float) else None


def _amounts(resources: Any) -> dict[str, int]:
    with contextlib.suppress(ValueError):
        return pod_requests.parse_resource_list(resources)
    return {}


def _printable(value: Any) -> Any:
    """The value with all of its texts on one line, without control and direction characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): _printable(it) for key, it in value.items()}
    return [_printable(it) for it in value] if isinstance(value, list) else value


@asynccontextmanager
async def watch_fleet(
    home: KubeClient, name: str | None, *, history: History | None = None
) -> AsyncIterator[FleetWatch]:
    """Watches all remotes, or the node of this name, while the block runs; samples continue
    ``history``. Raises nothing of its own: what cannot be read is part of the views."""
    async with asyncio.TaskGroup() as group:
        found = FleetWatch(home, name, group, history or History())
        try:
            await found.start()
            yield found
        finally:
            found.stop()


_FAILURES = ('result="failure"', 'result="defect"')


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of ``/metrics`` since a bridge's start (docs/reference/metrics.md)."""

    started: float = 0.0
    errors: float = 0.0
    relayed: float = 0.0


def read_counters(text: str) -> Counters:
    """The counters in an exposition: pods that started, failed reconciles and watches, and bytes
    relayed in both directions. All other lines, also malformed ones, are skipped."""
    started = errors = relayed = 0.0
    for line in text.splitlines():
        if not line.startswith("bridge_"):
            continue
        name, labels = line.partition(" ")[0], ""
        if "{" in name or "{" in line:
            name, _, labels = line.partition("{")
        value = _value(line)
        if name == "bridge_pod_start_duration_seconds_count":
            started += value
        elif name == "bridge_watch_failures_total":
            errors += value
        elif name == "bridge_reconciles_total":
            errors += value * any(result in labels for result in _FAILURES)
        elif name in ("bridge_relay_bytes_total", "bridge_relay_back_bytes_total"):
            relayed += value
    return Counters(started, errors, relayed)


def rate(before: float, now: float, seconds: float) -> float | None:
    """The increase per second; None if the counter began again."""
    return (now - before) / seconds if now >= before and seconds > 0 else None


def _value(line: str) -> float:
    try:
        found = float(line.rpartition(" ")[2])
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0
