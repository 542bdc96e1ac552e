"""What `bridge status` finds out with home's kubeconfig alone.

- Nodes and pods come from home; what a bridge says of itself comes through home's API server, from
  the port of its node. Where that does not answer, or one may not ask, the rest is told, with why.
- `once` asks once. `Watched` keeps the Nodes and pods by watches, so that looking again costs home
  nothing; bridges are asked again at each look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import orjson

from bridge.base.errors import PreflightError
from bridge.node import node_object
from bridge.status import node_summary
from bridge.status.status_endpoint import STATUS_PATH
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import ApiError, Forbidden, KubeError, NotFound, Unreachable
from sync.kube.resources import NODES, PODS
from translators.identity import LABEL_VIRTUAL
from translators.objects import Object, name_of

#: The label selector of the virtual nodes of all bridges.
VIRTUAL_NODE_SELECTOR = f"{LABEL_VIRTUAL},{node_object.LABEL_REMOTE}"
#: Seconds for a bridge to answer: through home's API server, which may not reach it at all.
TIMEOUT_SECONDS = 5.0
#: Bridges that are asked at once.
MAX_CONCURRENT = 8


async def get_node(home: KubeClient, name: str) -> Object:
    """The virtual node of this name. Raises PreflightError where it is none of ours, and
    KubeError."""
    try:
        found = await home.get(NODES, name)
    except NotFound:
        others = [
            name_of(it) for it in (await home.list(NODES, labels=VIRTUAL_NODE_SELECTOR)).items
        ]
        there = f"the virtual nodes are {', '.join(others)}" if others else "there are none"
        raise PreflightError(f"home: there is no node {name}; {there}") from None
    if not node_summary.is_virtual_node(found):
        raise PreflightError(
            f"home: node {name} is not a bridge's virtual node; kubectl is for all others"
        )
    return found


async def list_nodes(home: KubeClient, name: str | None) -> list[Object]:
    """The virtual node of this name, or all. Raises PreflightError and KubeError."""
    if name is not None:
        return [await get_node(home, name)]
    return sorted((await home.list(NODES, labels=VIRTUAL_NODE_SELECTOR)).items, key=name_of)


async def read_statuses(home: KubeClient, name: str | None) -> list[Object]:
    """The status of the node of this name, or of all. Raises PreflightError and KubeError."""
    found = await list_nodes(home, name)
    return await _each(home, [(it, await _pods(home, name_of(it))) for it in found])


async def _pods(home: KubeClient, node_name: str) -> node_summary.PodCounts | str:
    """Those of the node, or why they are not known."""
    counted = node_summary.PodCounts()

    def count(pod: Object) -> Object:
        counted.add(pod)
        return {}

    try:
        await home.list(PODS, fields=f"spec.nodeName={node_name}", slim=count)
    except Forbidden as error:
        return f"home: {error.message}"
    return counted


async def _each(
    home: KubeClient, found: Iterable[tuple[Object, node_summary.PodCounts | str]]
) -> list[Object]:
    turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(node: Object, pods: node_summary.PodCounts | str) -> Object:
        async with turns:
            answer = await fetch_bridge_status(home, name_of(node))
        told = (
            {**node_summary.summarize_node(node, None), "podsUnknown": pods}
            if isinstance(pods, str)
            else node_summary.summarize_node(node, pods)
        )
        if isinstance(answer, str):
            return {**told, "bridge": None, "bridgeUnknown": answer}
        return {**told, "bridge": answer}

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*it), name=f"status-{name_of(it[0])}") for it in found]
    return [task.result() for task in tasks]


async def fetch_bridge_status(home: KubeClient, name: str) -> Object | str:
    """What the bridge of the node says of itself, or why it is not known."""
    path = NODES.path(name, subresource="proxy") + STATUS_PATH
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            answer = orjson.loads(await home.read(path, timeout=TIMEOUT_SECONDS))
            found: Object = answer["bridge"]
            return found
    except TimeoutError:
        return (
            f"no answer in {TIMEOUT_SECONDS:.0f} s through home's API server; is it running, and "
            "can home reach it?"
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "what answers at the node's address is no bridge"
    except KubeError as error:
        return _why(error)


def _why(error: KubeError) -> str:
    if isinstance(error, Forbidden):
        return f"home: {error.message} (it takes the right to get nodes/proxy)"
    if isinstance(error, NotFound):
        return "it is of a version that does not tell its state"
    if isinstance(error, ApiError):
        return (
            f"home does not reach it ({error.code}: {error.message}); is it running? Its log says "
            "more"
        )
    if isinstance(error, Unreachable):
        return f"no answer: {error.message}"
    return str(error)


class StatusWatch:
    """Nodes and pods, kept up to date. Use `watched`."""

    def __init__(self, home: KubeClient, name: str | None, group: asyncio.TaskGroup) -> None:
        self._home = home
        self._group = group
        fields = f"metadata.name={name}" if name is not None else ""
        self._nodes = Informer(home, NODES, labels=VIRTUAL_NODE_SELECTOR, fields=fields)
        self._watching: asyncio.Task[None] | None = None
        self._pods: dict[str, tuple[Informer, asyncio.Task[None]]] = {}
        self.changed = asyncio.Event()
        """Set at every change; to be cleared by who looks."""
        self._nodes.on_change(self._node_changed)

    async def start(self) -> None:
        """Returns when the Nodes are known."""
        self._watching = self._group.create_task(self._nodes.run(), name="watch-nodes")
        await self._nodes.synced.wait()

    def stop(self) -> None:
        """Ends the watches."""
        for task in (self._watching, *(task for _, task in self._pods.values())):
            if task is not None:
                task.cancel()

    async def read(self) -> list[Object]:
        """The status of each node, as it is now."""
        found = []
        for node in sorted(self._nodes.store, key=name_of):
            watching = self._pods.get(name_of(node))
            if watching is None:
                continue  # It has gone while another's pods were waited for.
            informer, _ = watching
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await informer.synced.wait()
            counted = node_summary.PodCounts()
            for pod in informer.store:
                counted.add(pod)
            known = informer.synced.is_set()
            found.append((node, counted if known else f"home: {informer.error or 'no answer'}"))
        return await _each(self._home, found)

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
    """Watches the node of this name, or all, while the block runs. Raises PreflightError where
    there is none of that name, and KubeError."""
    await list_nodes(home, name)
    async with asyncio.TaskGroup() as group:
        found = StatusWatch(home, name, group)
        try:
            await found.start()
            yield found
        finally:
            found.stop()
