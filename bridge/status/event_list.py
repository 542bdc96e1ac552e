"""Lists and follows the Events of virtual nodes and their pods, including the remote's.

- All Events are read from home, where the bridge mirrors the remote's Events of pods
  (`sync.mirror.event_mirror`). Home's kubeconfig is enough.
- An Event belongs to a node if it is about the Node, about a pod that is bound to it, or names the
  node as its source; the last also covers deleted pods.
- Events are sorted by the time of their last occurrence, oldest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import cachetools

from bridge.base.command_error import PreflightError
from bridge.status import status_client, status_tree
from sync.cache.informer import Informer
from sync.kube.api_resources import EVENTS, PODS
from sync.kube.client import KubeClient
from translators.derived_names import label_value
from translators.mirror.event import involved_uid
from translators.object_accessors import Object, metadata, name_of, uid_of
from translators.ownership_labels import LABEL_NODE
from translators.timestamps import parse_time

#: Pods not yet known to belong to a node whose Events are buffered.
MAX_PENDING_PODS = 1000
#: Sorts Events without a time first.
_NEVER = datetime.min.replace(tzinfo=UTC)
TABLE_HEAD = ("last seen", "type", "reason", "node", "object", "from", "message")


class NodeMatcher:
    """Finds the virtual node that an Event belongs to, by node names and pod UIDs."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._by_label = {label_value(name): name for name in nodes}
        self._by_uid: dict[str, str] = {}

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Records the node of a pod of home; deleted pods are remembered."""
        pod = new or old or {}
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        if node in self._by_label.values():
            self._by_uid[uid_of(pod)] = node

    def node_of(self, event: Object) -> str | None:
        """The virtual node whose Event, or whose pod's Event, this is; None for others."""
        about = event.get("involvedObject") or {}
        if about.get("kind") == "Node":
            return str(about["name"]) if about.get("name") in self._by_label.values() else None
        if (known := self._by_uid.get(str(about.get("uid") or ""))) is not None:
            return known
        mirrored = (metadata(event).get("labels") or {}).get(LABEL_NODE)
        if mirrored in self._by_label:
            return self._by_label[mirrored]
        source = event.get("source") or {}
        host = str(source.get("host") or event.get("reportingInstance") or "")
        return host if host in self._by_label.values() else None


def event_record(event: Object, node: str) -> Object:
    """The Event as `bridge events -o json` prints it."""
    about = event.get("involvedObject") or {}
    series = event.get("series") or {}
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent") or ""
    mirrored = LABEL_NODE in (metadata(event).get("labels") or {})
    last = (
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata(event).get("creationTimestamp")
        or ""
    )
    return {
        "node": node,
        "namespace": str(about.get("namespace") or ""),
        "kind": str(about.get("kind") or ""),
        "name": str(about.get("name") or ""),
        "type": str(event.get("type") or "Normal"),
        "reason": str(event.get("reason") or ""),
        "message": str(event.get("message") or ""),
        "count": int(series.get("count") or event.get("count") or 1),
        "first": event.get("firstTimestamp") or event.get("eventTime") or last,
        "last": last,
        "component": str(source),
        "cluster": "remote" if mirrored else "home",
    }


async def list_events(home: KubeClient, *, node: str | None, namespace: str | None) -> list[Object]:
    """All Events, oldest first. Raises PreflightError and KubeError."""
    nodes = [name_of(it) for it in await status_client.list_nodes(home, node)]
    matcher = NodeMatcher(nodes)
    for name in nodes:
        pods = await home.list(
            PODS, namespace=namespace, fields=f"spec.nodeName={name}", slim=_slim_pod
        )
        for pod in pods.items:
            matcher.pod_changed(None, pod)
    found: list[Object] = []

    def take(event: Object) -> Object:
        if (its := matcher.node_of(event)) is not None:
            found.append(event_record(event, its))
        return {}

    for kind, where in _kinds_and_namespaces(namespace):
        await home.list(EVENTS, namespace=where, fields=f"involvedObject.kind={kind}", slim=take)
    return sorted(found, key=_sort_key)


async def follow(
    home: KubeClient,
    *,
    node: str | None,
    namespace: str | None,
    stop: asyncio.Event,
    show: Callable[[list[Object]], None],
) -> None:
    """Passes all existing Events, and then each new one, to ``show`` until ``stop``. Raises
    PreflightError and KubeError."""
    nodes = [name_of(it) for it in await status_client.list_nodes(home, node)]
    if not nodes:
        raise PreflightError("home has no virtual nodes; `bridge join` creates one")
    await _Following(home, nodes, namespace).run(stop, show)


class _Following:
    """Watches the Events of a fixed set of nodes."""

    def __init__(self, home: KubeClient, nodes: list[str], namespace: str | None) -> None:
        self._matcher = NodeMatcher(nodes)
        self._queue: asyncio.Queue[Object] = asyncio.Queue()
        # By pod UID: Events that arrived before the watch of pods delivered their pod.
        self._pending: cachetools.LRUCache[str, list[Object]] = cachetools.LRUCache(
            MAX_PENDING_PODS
        )
        self._pods = [
            Informer(
                home, PODS, namespace=namespace, fields=f"spec.nodeName={name}", slim=_slim_pod
            )
            for name in nodes
        ]
        self._events = [
            Informer(home, EVENTS, namespace=where, fields=f"involvedObject.kind={kind}")
            for kind, where in _kinds_and_namespaces(namespace)
        ]
        for it in self._pods:
            it.on_change(self._pod_changed)
        for it in self._events:
            it.on_change(self._event_changed)

    async def run(self, stop: asyncio.Event, show: Callable[[list[Object]], None]) -> None:
        """Shows Events until ``stop``."""
        tasks: list[asyncio.Task[Any]] = []
        async with asyncio.TaskGroup() as group:
            try:
                for informers in (self._pods, self._events):
                    names = [f"watch-{it.resource}-{at}" for at, it in enumerate(informers)]
                    tasks += [
                        group.create_task(it.run(), name=name)
                        for it, name in zip(informers, names, strict=True)
                    ]
                    for it in informers:
                        await it.synced.wait()
                tasks.append(group.create_task(self._show(show), name="show-events"))
                await stop.wait()
            finally:
                for task in tasks:
                    task.cancel()

    async def _show(self, show: Callable[[list[Object]], None]) -> None:
        """Shows Events that arrived together in order."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            found = [event_record(it, node) for it in batch if (node := self._matcher.node_of(it))]
            if found:
                show(sorted(found, key=_sort_key))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        self._matcher.pod_changed(old, new)
        for event in self._pending.pop(uid_of(new or old or {}), ()):
            self._queue.put_nowait(event)

    def _event_changed(self, _: Object | None, new: Object | None) -> None:
        if new is None:
            return
        if self._matcher.node_of(new) is None:
            self._pending.setdefault(involved_uid(new), []).append(new)
        else:
            self._queue.put_nowait(new)


def _kinds_and_namespaces(namespace: str | None) -> list[tuple[str, str | None]]:
    """The kinds of involved objects, with the namespace of their Events."""
    return [("Pod", namespace)] + ([("Node", "default")] if namespace is None else [])


def table_row(event: Object, now: datetime) -> list[str]:
    """The cells of a table row under `TABLE_HEAD`."""
    where = f"{event['namespace']}/" if event["namespace"] else ""
    times = f" (x{event['count']})" if event["count"] > 1 else ""
    last = _last_seen(event)
    age = "?" if last == _NEVER else status_tree.format_age((now - last).total_seconds())
    cells = (
        age + times,
        event["type"],
        event["reason"],
        event["node"],
        f"{str(event['kind']).lower()} {where}{event['name']}",
        f"{event['cluster']} {event['component']}".rstrip(),
        event["message"],
    )
    return [status_tree.printable(it) for it in cells]


def one_line(event: Object) -> str:
    """A new Event on one line, with the time of day in UTC."""
    at = _last_seen(event).strftime("%H:%M:%S")
    return " ".join([at, *table_row(event, datetime.now(UTC))[1:]])


def _last_seen(event: Object) -> datetime:
    """The time of the last occurrence; `_NEVER` if the Event has no valid one."""
    try:
        return parse_time(str(event["last"]))
    except ValueError:
        return _NEVER


def _sort_key(event: Object) -> tuple[datetime, str, str]:
    return _last_seen(event), str(event["name"]), str(event["reason"])


def _slim_pod(pod: Object) -> Object:
    """The fields of a pod that are kept."""
    meta = {key: metadata(pod).get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"metadata": meta, "spec": {"nodeName": (pod.get("spec") or {}).get("nodeName")}}
