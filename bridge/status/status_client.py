"""Reads the status of virtual nodes with home's kubeconfig alone.

- Nodes and pods are read from home, the bridge's own state through home's API server from the
  kubelet port of its node. If the latter fails, the status contains the cause instead.
- `read_statuses` reads once. `StatusWatch` watches the Nodes and pods, so that repeated reads cost
  home no lists; bridges are queried on each read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import orjson

from bridge.base.command_error import PreflightError
from bridge.node import node_object
from bridge.status import fleet_view, node_pod_summary, status_tree
from bridge.status.status_endpoint import STATUS_PATH
from sync.cache.informer import Informer
from sync.kube.api_errors import ApiError, Forbidden, KubeError, NotFound, Unreachable
from sync.kube.api_resources import NODES, PODS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of

#: Selects the virtual nodes of all bridges.
VIRTUAL_NODE_SELECTOR = node_object.LABEL_REMOTE
#: Timeout of a bridge's answer, in seconds: home's API server may be unable to reach it.
TIMEOUT_SECONDS = 5.0
#: Bytes of a bridge's answer, which has some counts and 30 errors of 500 characters, and the levels
#: of lists and maps in it: one bridge must not disturb the readers of all.
ANSWER_LIMIT, MAX_DEPTH = 2**18, 6
#: Bridges that are queried concurrently.
MAX_CONCURRENT = 8


async def list_nodes(home: KubeClient, name: str | None) -> list[Object]:
    """The virtual node of this name, or all by name. Raises PreflightError if there is no such
    virtual node, and KubeError."""
    if name is None:
        found = await home.list(NODES, labels=VIRTUAL_NODE_SELECTOR)
        return sorted(found.items, key=name_of)
    node = await home.find(NODES, name)
    if node is None:
        others = [
            name_of(it) for it in (await home.list(NODES, labels=VIRTUAL_NODE_SELECTOR)).items
        ]
        there = f"the virtual nodes are {', '.join(others)}" if others else "there are none"
        raise PreflightError(f"home: there is no node {name}; {there}")
    if not node_object.is_virtual_node(node):
        raise PreflightError(
            f"home: node {name} is not a bridge's virtual node; use kubectl for other nodes"
        )
    return [node]


async def read_statuses(home: KubeClient, name: str | None) -> list[Object]:
    """The status of the node of this name, or of all. Raises PreflightError and KubeError."""
    found = await list_nodes(home, name)
    return await _with_bridge_status(home, [(it, await _pods(home, name_of(it))) for it in found])


async def _pods(home: KubeClient, node_name: str) -> node_pod_summary.PodCounts | str:
    """The pods of the node, or why they cannot be read."""
    counted = node_pod_summary.PodCounts()

    def count(pod: Object) -> Object:
        counted.add(pod)
        return {}

    try:
        await home.list(PODS, fields=f"spec.nodeName={node_name}", slim=count)
    except Forbidden as error:
        return f"home: {error.message}"
    return counted


async def _with_bridge_status(
    home: KubeClient, found: Iterable[tuple[Object, node_pod_summary.PodCounts | str]]
) -> list[Object]:
    semaphore = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(node: Object, pods: node_pod_summary.PodCounts | str) -> Object:
        async with semaphore:
            answer = await fetch_bridge_status(home, name_of(node))
        status = (
            {**node_pod_summary.summarize_node(node, None), "podsUnknown": pods}
            if isinstance(pods, str)
            else node_pod_summary.summarize_node(node, pods)
        )
        return _combine(status, answer)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*it), name=f"status-{name_of(it[0])}") for it in found]
    return [task.result() for task in tasks]


def _combine(status: Object, answer: Object | str) -> Object:
    """The node's status with the answer of its bridge, or why there is none. An answer that cannot
    be shown is none: it must not hide the other nodes."""
    if not isinstance(answer, str):
        found = {**status, **answer}
        try:
            status_tree.plain_text(status_tree.build_tree(found))
            status_tree.one_line(found)
            fleet_view.build_remote(found)
        except (AttributeError, LookupError, TypeError, ValueError):
            answer = "its answer is malformed; is it of another version?"
        else:
            return found
    return {**status, "volumes": None, "bridge": None, "bridgeUnknown": answer}


async def fetch_bridge_status(home: KubeClient, name: str) -> Object | str:
    """The state of the node's bridge and what it knows of volumes (`bridge` and `volumes` of its
    status), or why it cannot be read."""
    path = NODES.path(name, subresource="proxy") + STATUS_PATH
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            raw = await home.read(path, timeout=TIMEOUT_SECONDS, limit=ANSWER_LIMIT)
            answer = orjson.loads(raw)
            # A bridge of an earlier version reports no volumes.
            found = {"bridge": answer["bridge"], "volumes": answer.get("volumes")}
            return "its answer is malformed" if _is_deeper(found, MAX_DEPTH) else found
    except TimeoutError:
        return (
            f"no answer in {TIMEOUT_SECONDS:.0f} s through home's API server; is it running, and "
            "can home reach it?"
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "the server at the node's address is no bridge"
    except KubeError as error:
        return _describe_failure(error)


def _is_deeper(value: object, levels: int) -> bool:
    """Whether lists and maps are nested in more levels."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(each, levels - 1) for each in inner)


def _describe_failure(error: KubeError) -> str:
    if isinstance(error, Forbidden):
        return f"home: {error.message} (this requires permission to get nodes/proxy)"
    if isinstance(error, NotFound):
        return "its version does not serve its status"
    if isinstance(error, ApiError):
        return (
            f"home's API server does not reach it ({error.code}: {error.message}); is it running? "
            "See its log"
        )
    if isinstance(error, Unreachable):
        return f"no answer: {error.message}"
    return str(error)


class StatusWatch:
    """Watches Nodes and pods. Created by `watch_statuses`."""

    def __init__(self, home: KubeClient, name: str | None, group: asyncio.TaskGroup) -> None:
        self._home = home
        self._group = group
        fields = f"metadata.name={name}" if name is not None else ""
        self._nodes = Informer(home, NODES, labels=VIRTUAL_NODE_SELECTOR, fields=fields)
        self._watching: asyncio.Task[None] | None = None
        self._pods: dict[str, tuple[Informer, asyncio.Task[None]]] = {}
        self.changed = asyncio.Event()
        """Set at every change; the reader clears it."""
        self._nodes.on_change(self._node_changed)

    async def start(self) -> None:
        """Returns when the Nodes are listed."""
        self._watching = self._group.create_task(self._nodes.run(), name="watch-nodes")
        await self._nodes.synced.wait()

    def stop(self) -> None:
        """Stops the watches."""
        for task in (self._watching, *(task for _, task in self._pods.values())):
            if task is not None:
                task.cancel()

    async def read(self) -> list[Object]:
        """The current status of each node."""
        found = []
        for node in sorted(self._nodes.store, key=name_of):
            watching = self._pods.get(name_of(node))
            if watching is None:
                continue  # Deleted while this waited for another node's pods.
            informer, _ = watching
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await informer.synced.wait()
            counted = node_pod_summary.PodCounts()
            for pod in informer.store:
                counted.add(pod)
            known = informer.synced.is_set()
            found.append((node, counted if known else f"home: {informer.error or 'no answer'}"))
        return await _with_bridge_status(self._home, found)

    def _node_changed(self, old: Object | None, new: Object | None) -> None:
        self.changed.set()
        if new is None:
            _, task = self._pods.pop(name_of(old or {}))
            task.cancel()
        elif old is None:
            name = name_of(new)
            pods = Informer(self._home, PODS, fields=f"spec.nodeName={name}")
            pods.on_change(lambda *_: self.changed.set())
            task = self._group.create_task(pods.run(), name=f"watch-pods-{name}")
            self._pods[name] = pods, task


@asynccontextmanager
async def watch_statuses(home: KubeClient, name: str | None) -> AsyncIterator[StatusWatch]:
    """Watches the node of this name, or all, while the block runs. Raises PreflightError if the
    node does not exist, and KubeError."""
    await list_nodes(home, name)
    async with asyncio.TaskGroup() as group:
        found = StatusWatch(home, name, group)
        try:
            await found.start()
            yield found
        finally:
            found.stop()
