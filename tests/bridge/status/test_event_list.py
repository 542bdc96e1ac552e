"""`bridge events`: selection, order and following of Events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.status import event_list
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.running_join import SOON
from tests.bridge.status import examples
from tests.bridge.two_clusters import Clusters
from tests.fakeapi.client_config import client_config_for
from translators.object_accessors import Object

MIRRORED = {"cluster-bridge.io/node": "remote"}


@pytest.fixture
async def home(two: Clusters) -> AsyncIterator[KubeClient]:
    """A user's client of home, which has a virtual node and a real node."""
    two.home.put(examples.node())
    two.home.put(objects.node("real"))
    async with KubeClient(client_config_for(two.home, "home")) as client:
        yield client


def event(name: str, about: Object, second: int, **changes: Any) -> Object:
    """An Event about an object."""
    meta = about["metadata"]
    where = meta.get("namespace") or "default"
    moment = f"2030-01-01T00:00:{second:02}Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": where, "labels": changes.pop("labels", {})},
        "involvedObject": {
            "kind": about["kind"],
            "name": meta["name"],
            "namespace": meta.get("namespace", ""),
            "uid": meta.get("uid", ""),
        },
        "type": "Normal",
        "reason": name.capitalize(),
        "message": f"{name} was emitted",
        "source": {"component": "kubelet"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        **changes,
    }


def reasons(found: list[Object]) -> list[str]:
    return [it["reason"] for it in found]


async def test_events_of_virtual_nodes_and_their_pods_are_sorted(
    two: Clusters, home: KubeClient
) -> None:
    ours = two.home.put(objects.pod("web", "shop", node="remote"))
    other = two.home.put(objects.pod("db", "shop", node="real"))
    gone = {"kind": "Pod", "metadata": {"name": "was", "namespace": "shop", "uid": "gone"}}
    two.home.put(event("late", ours, 9, count=3, source={"component": "default-scheduler"}))
    two.home.put(event("early", ours, 1, labels=MIRRORED))
    two.home.put(event("theirs", other, 2))
    two.home.put(event("node", examples.node(), 5))
    two.home.put(event("elsewhere", objects.node("real"), 5))
    two.home.put(event("last", gone, 3, labels=MIRRORED))
    two.home.put(
        event("dropped", gone, 4, source={"component": "cluster-bridge", "host": "remote"})
    )
    new: Object = {
        "lastTimestamp": None,
        "eventTime": "2030-01-01T00:00:07.000000Z",
        "source": {},
        "reportingComponent": "controller",
        "reportingInstance": "controller-0",
        "action": "Doing",
    }
    two.home.put(event("new", ours, 0, **new))
    found = await event_list.list_events(home, node=None, namespace=None)
    assert reasons(found) == ["Early", "Last", "Dropped", "Node", "New", "Late"]
    assert found == await event_list.list_events(home, node="remote", namespace=None)
    assert reasons(await event_list.list_events(home, node=None, namespace="shop")) == [
        "Early",
        "Last",
        "Dropped",
        "New",
        "Late",
    ]
    assert await event_list.list_events(home, node=None, namespace="empty") == []
    assert found[0] == {
        "node": "remote",
        "namespace": "shop",
        "kind": "Pod",
        "name": "web",
        "type": "Normal",
        "reason": "Early",
        "message": "early was emitted",
        "count": 1,
        "first": "2030-01-01T00:00:01Z",
        "last": "2030-01-01T00:00:01Z",
        "component": "kubelet",
        "cluster": "remote",
    }
    row = event_list.table_row(found[-1], datetime(2030, 1, 1, 0, 0, 19, tzinfo=UTC))
    assert row[:4] == ["10s (x3)", "Normal", "Late", "remote"]
    assert row[4:6] == ["pod shop/web", "home default-scheduler"]


async def test_control_characters_do_not_reach_the_terminal(
    two: Clusters, home: KubeClient
) -> None:
    ours = two.home.put(objects.pod("web", "shop", node="remote"))
    two.home.put(event("bad", ours, 1, message="\x1b[2J\nall is well", lastTimestamp="no time"))
    (found,) = await event_list.list_events(home, node=None, namespace=None)
    shown = [*event_list.table_row(found, datetime.now(UTC)), event_list.one_line(found)]
    assert all(cell.isprintable() for cell in shown)
    assert found["message"] == "\x1b[2J\nall is well"


async def test_new_events_are_followed(two: Clusters, home: KubeClient) -> None:
    web = two.home.put(objects.pod("web", "shop", node="remote"))
    two.home.put(event("second", web, 2))
    two.home.put(event("first", web, 1))
    shown: list[str] = []
    came, stop = asyncio.Event(), asyncio.Event()

    def show(found: list[Object]) -> None:
        shown.extend(reasons(found))
        came.set()

    async def until(count: int) -> None:
        while len(shown) < count:
            came.clear()
            await came.wait()

    task = asyncio.create_task(
        event_list.follow(home, node=None, namespace=None, stop=stop, show=show)
    )
    async with asyncio.timeout(SOON):
        await until(2)
        later = two.home.put(objects.pod("later", "shop"))
        # Emitted before the pod is known to be on the node.
        two.home.put(event("third", later, 3))
        two.home.put(event("node", examples.node(), 4))
        await until(3)
        two.home.bind("later", "remote", "shop")
        await until(4)
        stop.set()
        await task
    assert shown == ["First", "Second", "Node", "Third"]


async def test_follow_without_virtual_nodes_is_an_error(two: Clusters, home: KubeClient) -> None:
    with pytest.raises(PreflightError, match="node real is not"):
        await event_list.list_events(home, node="real", namespace=None)
    two.home.clear_log()
    with pytest.raises(PreflightError, match="no node other"):
        await event_list.follow(
            home, node="other", namespace=None, stop=asyncio.Event(), show=lambda _: None
        )
