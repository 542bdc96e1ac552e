"""The live stream: everything at first, then changes alone; and remotes that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from bridge.dashboard import fleet_watch, live_stream
from bridge.dashboard.fleet_watch import FleetWatch, watch_fleet
from bridge.dashboard.live_stream import Position, build_update
from bridge.dashboard.loopback_server import loopback_server
from bridge.status import status_client
from sync.kube.api_resources import NODES, PODS
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.dashboard import example_fleet
from tests.fakeapi import FakeApi, Fault, credentials_for

SOON = 15.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens intervals."""
    monkeypatch.setattr(live_stream, "MIN_INTERVAL", 0.01)
    monkeypatch.setattr(fleet_watch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(fleet_watch, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(fleet_watch, "INTERVAL", 0.05)
    monkeypatch.setattr(status_client, "TIMEOUT_SECONDS", 1.0)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """Home with four remotes and 40 pods."""
    async with FakeApi() as server:
        example_fleet.put_fleet(server, remotes=4, pods=40)
        yield server


async def _malformed(request: web.Request) -> web.Response:
    if request.path.endswith("/metrics"):
        return web.Response(body=b"\xff\x00bridge_{{{ nan\n")
    return web.json_response({"bridge": {"clusters": 7, "queues": "x", "errors": 1}})


@pytest.fixture
async def home(api: FakeApi) -> AsyncIterator[KubeClient]:
    """A user's client of home."""
    async with KubeClient(credentials_for(api, "home")) as client:
        yield client


class Page:
    """A page's view of the fleet, from the events of a stream."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.remotes: dict[str, Any] = {}
        self.home: dict[str, Any] = {}
        self.samples = 0
        self.updates: list[dict[str, Any]] = []
        self.last_id = ""

    def apply(self, update: dict[str, Any]) -> None:
        self.updates.append(update)
        self.home = update.get("home", self.home)
        self.remotes |= {it["name"]: it for it in update.get("remotes", ())}
        self.samples += len(update.get("history", {}).get("times", ()))
        changes = update.get("pods", {"rows": [], "removed": []})
        if changes.get("reset"):
            self.pods.clear()
        for uid in changes["removed"]:
            self.pods.pop(uid, None)
        self.pods |= {it["uid"]: it for it in changes["rows"]}

    async def follow(self, url: str, until: Any) -> None:
        """Reads the stream until the condition is true."""
        headers = {"Last-Event-ID": self.last_id} if self.last_id else {}
        async with (
            asyncio.timeout(SOON),
            aiohttp.ClientSession() as session,
            session.get(f"{url}api/v1/live", headers=headers) as answer,
        ):
            assert answer.content_type == "text/event-stream"
            async for line in _lines(answer):
                if line.startswith(b"id: "):
                    self.last_id = line[4:].decode()
                elif line.startswith(b"data: "):
                    self.apply(orjson.loads(line[6:]))
                    if until():
                        return


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


async def test_page_gets_everything_and_then_changes(api: FakeApi, home: KubeClient) -> None:
    page = Page()
    async with loopback_server(home, None, ref=KubeconfigRef()) as url:
        await page.follow(
            url,
            lambda: (
                len(page.pods) == 40
                and len(page.remotes) == 4
                and all(it["versions"]["remote"] for it in page.remotes.values())
            ),
        )
        assert page.home["nodes"] == 3
        assert page.home["order"] == ["berlin-a", "berlin-b", "osaka-lab", "gpu-hall"]
        assert page.remotes["osaka-lab"]["cost"] == 0.03
        assert page.remotes["osaka-lab"]["pods"]["total"] > 0
        stored = api.find(NODES, "berlin-a")
        assert stored is not None

        # A page that reconnects gets what it missed.
        page.updates.clear()
        one = next(iter(page.pods.values()))
        api.remove(PODS, one["name"], one["namespace"])
        api.put(example_fleet.pod(99, "berlin-b"))
        await page.follow(url, lambda: one["uid"] not in page.pods and len(page.pods) == 40)
        changed = [it["pods"] for it in page.updates if "pods" in it]
        assert not any(it["reset"] for it in changed)
        assert sum(len(it["rows"]) for it in changed) <= 3

        # A position of another process is none.
        page.updates.clear()
        page.last_id = "other.1.1.1"
        await page.follow(url, lambda: page.updates)
        assert page.updates[0]["pods"]["reset"]
        assert len(page.updates[0]["pods"]["rows"]) == 40


async def test_removed_remote_leaves_with_its_pods(api: FakeApi, home: KubeClient) -> None:
    page = Page()
    async with loopback_server(home, None, ref=KubeconfigRef()) as url:
        await page.follow(url, lambda: len(page.pods) == 40 and page.samples)
        api.remove(NODES, "berlin-a")
        await page.follow(
            url,
            lambda: (
                "berlin-a" not in page.home["order"]
                and all(it["node"] != "berlin-a" for it in page.pods.values())
            ),
        )
    assert page.pods


async def test_one_node_can_be_shown_alone(api: FakeApi, home: KubeClient) -> None:
    page = Page()
    async with loopback_server(home, "osaka-lab", ref=KubeconfigRef()) as url:
        await page.follow(url, lambda: page.pods and page.remotes)
    assert list(page.remotes) == ["osaka-lab"]
    assert {it["node"] for it in page.pods.values()} == {"osaka-lab"}


async def _unreachable(_: web.Request) -> web.Response:
    return web.Response(status=503, text="no route")


async def _silent(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError("the client waits for a minute")


async def test_failing_remote_does_not_affect_the_others() -> None:
    page = Page()

    def is_complete() -> bool:
        if len(page.remotes) < 4 or len(page.pods) < 40:
            return False
        health = {name: str(it["health"]) for name, it in page.remotes.items()}
        return (
            "'good'" in health["osaka-lab"]
            and "503" in health["berlin-a"]
            and "malformed" in health["berlin-b"]
            and "no answer" in health["gpu-hall"]
        )

    async with FakeApi() as api:
        # The first route that matches serves.
        api.route("GET", "/api/v1/nodes/berlin-a/proxy/*", _unreachable)
        api.route("GET", "/api/v1/nodes/berlin-b/proxy/*", _malformed)
        api.route("GET", "/api/v1/nodes/gpu-hall/proxy/*", _silent)
        example_fleet.put_fleet(api, remotes=4, pods=40)
        async with (
            KubeClient(credentials_for(api, "home")) as home,
            loopback_server(home, None, ref=KubeconfigRef()) as url,
        ):
            await page.follow(url, is_complete)
    assert page.remotes["berlin-a"]["pods"]["total"] > 0


def _nested(levels: int) -> Any:
    return [_nested(levels - 1)] if levels else 0


@pytest.mark.parametrize(
    "answer",
    [
        *("text", 7, ["list"], {"lagSeconds": "soon", "errors": {}}),
        *({"started": _nested(254)}, {"errors": [{"message": _nested(300)}]}, {"errors": [7]}),
    ],
)
async def test_answer_of_any_shape_is_a_problem_of_its_remote(answer: object) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.json_response({"bridge": answer})

    page = Page()
    async with FakeApi() as api:
        api.route("GET", "/api/v1/nodes/berlin-b/proxy/*", answers)
        example_fleet.put_fleet(api, remotes=2, pods=10)
        async with (
            KubeClient(credentials_for(api, "home")) as home,
            loopback_server(home, None, ref=KubeconfigRef()) as url,
        ):
            await page.follow(
                url,
                lambda: (
                    page.samples > 2
                    and "malformed" in str(page.remotes.get("berlin-b"))
                    and "'good'" in str(page.remotes.get("berlin-a"))
                ),
            )


async def test_answer_of_any_shape_does_not_end_the_samples() -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.json_response({"bridge": "text"})

    async with FakeApi() as api:
        api.route("GET", "/api/v1/nodes/*/proxy/*", answers)
        example_fleet.put_fleet(api, remotes=1, pods=1)
        async with (
            KubeClient(credentials_for(api, "home")) as home,
            asyncio.timeout(SOON),
            watch_fleet(home, None) as watch,
        ):
            with watch.reading() as changed:
                while watch.history.revision < 5:
                    changed.clear()
                    await changed.wait()


async def test_forbidden_home_is_shown(api: FakeApi, home: KubeClient) -> None:
    api.fail(Fault("GET", "/api/v1/nodes*", code=403, message="nodes: you may not"))
    page = Page()
    async with loopback_server(home, None, ref=KubeconfigRef()) as url:
        await page.follow(url, lambda: "you may not" in page.home.get("error", ""))


async def test_stream_ends_after_its_time(
    home: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "STREAM_SECONDS", 0.5)
    page = Page()
    async with loopback_server(home, None, ref=KubeconfigRef()) as url:
        await page.follow(url, lambda: False)
    assert page.updates


async def test_samples_have_rates(api: FakeApi, home: KubeClient) -> None:
    async with asyncio.timeout(SOON), watch_fleet(home, None) as watch:
        with watch.reading() as changed:
            while not _is_sampled(watch):
                changed.clear()
                await changed.wait()


def _is_sampled(watch: FleetWatch) -> bool:
    found = watch.history.since(0)["remotes"].get("osaka-lab", ())
    return any(it[0] and it[1] is not None and it[2] is not None for it in found)


def test_position_is_read_back() -> None:
    position = Position("epoch", 1, 2, 3)
    assert Position.parse(str(position), "epoch") == position
    malformed = ("", "epoch", "epoch.1.2", "epoch.1.2.x", "epoch.-1.2.3", "other.1.2.3", "é.².2.3")
    for text in (*malformed, f"epoch.{5000 * '1'}.2.3"):
        assert Position.parse(text, "epoch") == Position("epoch")


async def test_update_without_a_change_is_empty(home: KubeClient, api: FakeApi) -> None:
    async with asyncio.timeout(SOON), watch_fleet(home, None) as watch:
        seen = Position("x")
        with watch.reading() as changed:
            while len(watch.pods) < 40:
                changed.clear()
                await changed.wait()
                _, seen = build_update(watch, seen)
        _, seen = build_update(watch, seen)
        assert build_update(watch, seen) == ({}, seen)
