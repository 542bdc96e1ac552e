"""The Events of virtual nodes and of their pods, with what the remote's clusters said of these.

- All that is asked is home: the bridge tells there what the remote says of a pod
  (`sync.mirror.events`). So nothing but home's kubeconfig is needed.
- An Event counts that is about one of our Nodes, about a pod which is bound to one now, or that
  says itself that it comes from one: so the last words of a pod that is gone are among them.
- Sorted by when they were said last, the oldest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import cachetools

from bridge.base.errors import PreflightError
from bridge.status import status_client, tree
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.resources import EVENTS, PODS
from translators.identity import LABEL_NODE
from translators.mirror.event import involved_uid
from translators.names import label_value
from translators.objects import Object, metadata, name_of, uid_of
from translators.timestamps import parse_time

#: Pods of which it is not known yet whether they are ours, whose Events are kept.
UNDECIDED = 1000
TABLE_HEAD = ("last seen", "type", "reason", "node", "object", "from", "message")


class NodeMatcher:
    """Knows which Events are about our nodes: by the names of these, and by their pods."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._by_label = {label_value(name): name for name in nodes}
        self._by_uid: dict[str, str] = {}

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod of home came, changed or went; those that are gone are remembered."""
        pod = new or old or {}
        node = str((pod.get("spec") or {}).get("nodeName") or "")
        if node in self._by_label.values():
            self._by_uid[uid_of(pod)] = node

    def node_of(self, event: Object) -> str | None:
        """The virtual node that the Event is about, itself or one of its pods."""
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
    """One Event, as it is shown."""
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
    """All of these, the oldest first. Raises PreflightError and KubeError."""
    nodes = [name_of(it) for it in await status_client.list_nodes(home, node)]
    ours = NodeMatcher(nodes)
    for name in nodes:
        pods = await home.list(PODS, namespace=namespace, fields=f"spec.nodeName={name}", slim=_pod)
        for pod in pods.items:
            ours.pod_changed(None, pod)
    found: list[Object] = []

    def take(event: Object) -> Object:
        if (its := ours.node_of(event)) is not None:
            found.append(event_record(event, its))
        return {}

    for kind, where in _places(namespace):
        await home.list(EVENTS, namespace=where, fields=f"involvedObject.kind={kind}", slim=take)
    return sorted(found, key=_order)


async def follow(
    home: KubeClient,
    *,
    node: str | None,
    namespace: str | None,
    stop: asyncio.Event,
    show: Callable[[list[Object]], None],
) -> None:
    """Gives ``show`` all that there are, and then each one that is said, until ``stop``. Raises
    PreflightError and KubeError."""
    nodes = [name_of(it) for it in await status_client.list_nodes(home, node)]
    if not nodes:
        raise PreflightError("home has no virtual nodes; bridge join makes one")
    await _Following(home, nodes, namespace).run(stop, show)


class _Following:
    """What is said from now on. Nodes that come later are not among it."""

    def __init__(self, home: KubeClient, nodes: list[str], namespace: str | None) -> None:
        self._ours = NodeMatcher(nodes)
        self._said: asyncio.Queue[Object] = asyncio.Queue()
        # By the pod's UID: about pods that may become ours, since their watch may be behind.
        self._undecided: cachetools.LRUCache[str, list[Object]] = cachetools.LRUCache(UNDECIDED)
        self._pods = [
            Informer(home, PODS, namespace=namespace, fields=f"spec.nodeName={name}", slim=_pod)
            for name in nodes
        ]
        self._events = [
            Informer(home, EVENTS, namespace=where, fields=f"involvedObject.kind={kind}")
            for kind, where in _places(namespace)
        ]
        for it in self._pods:
            it.on_change(self._pod_changed)
        for it in self._events:
            it.on_change(self._event_changed)

    async def run(self, stop: asyncio.Event, show: Callable[[list[Object]], None]) -> None:
        """Until ``stop``."""
        tasks: list[asyncio.Task[Any]] = []
        async with asyncio.TaskGroup() as group:
            try:
                for several in (self._pods, self._events):
                    names = [f"watch-{it.resource}-{at}" for at, it in enumerate(several)]
                    tasks += [
                        group.create_task(it.run(), name=name)
                        for it, name in zip(several, names, strict=True)
                    ]
                    for it in several:
                        await it.synced.wait()
                tasks.append(group.create_task(self._show(show), name="show-events"))
                await stop.wait()
            finally:
                for task in tasks:
                    task.cancel()

    async def _show(self, show: Callable[[list[Object]], None]) -> None:
        """What has come at once is shown in order."""
        while True:
            batch = [await self._said.get()]
            while not self._said.empty():
                batch.append(self._said.get_nowait())
            found = [event_record(it, node) for it in batch if (node := self._ours.node_of(it))]
            if found:
                show(sorted(found, key=_order))

    def _pod_changed(self, old: Object | None, new: Object | None) -> None:
        self._ours.pod_changed(old, new)
        for event in self._undecided.pop(uid_of(new or old or {}), ()):
            self._said.put_nowait(event)

    def _event_changed(self, _: Object | None, new: Object | None) -> None:
        if new is None:
            return
        if self._ours.node_of(new) is None:
            self._undecided.setdefault(involved_uid(new), []).append(new)
        else:
            self._said.put_nowait(new)


def _places(namespace: str | None) -> list[tuple[str, str | None]]:
    """The kinds of objects, and where Events about them are."""
    return [("Pod", namespace)] + ([("Node", "default")] if namespace is None else [])


def table_row(event: Object, now: datetime) -> list[str]:
    """The cells of a table, under `HEAD`."""
    where = f"{event['namespace']}/" if event["namespace"] else ""
    times = f" (x{event['count']})" if event["count"] > 1 else ""
    cells = (
        _age(str(event["last"]), now) + times,
        event["type"],
        event["reason"],
        event["node"],
        f"{str(event['kind']).lower()} {where}{event['name']}",
        f"{event['cluster']} {event['component']}".rstrip(),
        event["message"],
    )
    return [tree.printable(it) for it in cells]


def one_line(event: Object) -> str:
    """One that has just been said, with the time of day in UTC."""
    at = _order(event)[0].strftime("%H:%M:%S")
    return " ".join([at, *table_row(event, datetime.now(UTC))[1:]])


def _age(moment: str, now: datetime) -> str:
    try:
        said = parse_time(moment)
    except ValueError:
        return "?"
    return tree.format_age((now - said).total_seconds()) if said.tzinfo else "?"


def _order(event: Object) -> tuple[datetime, str, str]:
    try:
        last = parse_time(str(event["last"]))
    except ValueError:
        last = datetime.min.replace(tzinfo=UTC)
    last = last if last.tzinfo else last.replace(tzinfo=UTC)
    return last, str(event["name"]), str(event["reason"])


def _pod(pod: Object) -> Object:
    """What is kept of a pod."""
    meta = {key: metadata(pod).get(key) for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"metadata": meta, "spec": {"nodeName": (pod.get("spec") or {}).get("nodeName")}}
