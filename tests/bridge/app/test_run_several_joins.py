"""Several joins in one process, which fail independently."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from bridge.app import join_lifecycle, run_several_joins
from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings, Part
from bridge.election.elector import NodeLeft
from bridge.fleet import supervisor
from bridge.fleet.desired_state import FixedSource
from bridge.fleet.fleet_report import FleetMember, Standing
from sync.kube.api_resources import NODES
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.runtime.log_fields import NODE
from tests.bridge.app.test_probe_server import ask, free_port, listens
from tests.bridge.running_join import SOON
from tests.bridge.two_clusters import Clusters

#: Seconds for three parallel joins.
LONG = 15.0

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture(autouse=True)
def restart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed joins are restarted soon."""
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(supervisor, "RETRY_CAP", 0.1)


async def never(part: Part) -> None:
    """Nothing leaves."""
    raise AssertionError(part)


def ready(two: Clusters, name: str) -> bool:
    """Whether home has a Ready Node of this name."""
    nodes = {it["metadata"]["name"]: it for it in two.home.objects(NODES)}
    conditions = nodes.get(name, {}).get("status", {}).get("conditions", [])
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


@pytest.mark.timeout(60)
async def test_joins_run_in_parallel_and_a_failed_one_is_restarted(
    two: Clusters, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = tmp_path / "late.yaml"
    parts = [
        Part("east", two.but(name="east")),
        Part("west", two.but(name="west")),
        Part("late", two.but(name="late", remote=KubeconfigRef(late))),
    ]
    messages: list[str] = []
    stop = asyncio.Event()
    running = asyncio.create_task(
        run_several_joins.run_joins(
            FixedSource(tuple(parts)),
            leave=never,
            notify=lambda text: messages.append(f"{NODE.get()}: {text}"),
            stop=stop,
        )
    )
    try:
        await two.home.until(lambda: ready(two, "east") and ready(two, "west"), timeout=LONG)
        assert not ready(two, "late")
        assert f"kubeconfig {late}: no such file" in caplog.text
        path = two.settings.remote.path
        assert path is not None
        late.write_text(path.read_text())
        await two.home.until(lambda: ready(two, "late"), timeout=LONG)
        names = ("east", "west", "late")
        lines = {
            f"{it}: home: node {it} is registered; Ctrl-C stops, workloads go on" for it in names
        }
        await two.home.until(lambda: lines <= set(messages))
        ports = {line.rpartition(":")[2] for line in messages if "kubelet API listens on" in line}
        assert len(ports) == 3
    finally:
        stop.set()
        await running


class Serves:
    """Replaces `join.serve_node`: raises the errors in ``ends``, and then waits."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ends: dict[str, list[BaseException]] = {}

    async def __call__(self, settings: JoinSettings, *_: object) -> None:
        name = str(settings.name)
        self.begun.append(name)
        assert NODE.get() == name
        if self.ends.get(name):
            raise self.ends[name].pop(0)
        await asyncio.get_running_loop().create_future()


@pytest.fixture
def serves(monkeypatch: pytest.MonkeyPatch) -> Serves:
    """Joins are simulated."""
    made = Serves()
    monkeypatch.setattr(join_lifecycle, "serve_node", made)
    return made


def parts(*names: str) -> FixedSource:
    settings = JoinSettings(KubeconfigRef(), KubeconfigRef())
    return FixedSource(tuple(Part(name, replace(settings, name=name)) for name in names))


async def test_probes_of_the_process_are_answered_for_all_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing: Standing = "starting"
    serving = asyncio.Event()

    async def serve(_: JoinSettings, __: object, ___: object, member: FleetMember) -> None:
        member.set_running(lambda: standing)
        serving.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(join_lifecycle, "serve_node", serve)
    port, stop = free_port(), asyncio.Event()
    running = asyncio.create_task(
        run_several_joins.run_joins(
            parts("osaka"), leave=never, notify=print, stop=stop, health_port=port
        )
    )
    assert await listens(port) == (200, "ok\n")
    assert await ask(port, "/readyz") == (503, "the bridge is joining osaka\n")
    standing = "ready"
    await serving.wait()
    assert await ask(port, "/readyz") == (200, "ok\n")
    stop.set()
    await running
    with pytest.raises(aiohttp.ClientConnectorError):
        await ask(port, "/livez")


async def test_error_of_a_join_is_logged_and_the_join_restarted(
    serves: Serves, caplog: pytest.LogCaptureFixture
) -> None:
    serves.ends["bad"] = [
        PreflightError("what, where, what next"),
        ExceptionGroup("", [ExceptionGroup("", [PreflightError("in a group")])]),
        ExceptionGroup("", [ValueError("canary")]),
    ]
    stop = asyncio.Event()
    running = asyncio.create_task(
        run_several_joins.run_joins(parts("good", "bad"), leave=never, notify=print, stop=stop)
    )
    async with asyncio.timeout(SOON):
        while serves.begun.count("bad") < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert serves.begun.count("good") == 1
    errors = [it.getMessage() for it in caplog.records if it.levelno == logging.ERROR]
    assert [it.partition(" (retry in")[0] for it in errors[:2]] == [
        "what, where, what next",
        "in a group",
    ]
    assert errors[2].startswith("a defect in the bridge; please report it: ValueError\n")
    assert "canary" not in caplog.text
    stop.set()
    await running


async def test_left_node_is_not_joined_again_and_the_last_one_ends_the_run(
    serves: Serves,
) -> None:
    serves.ends = {name: [ExceptionGroup("", [NodeLeft("it left")])] for name in ("a", "b")}
    with pytest.raises(NodeLeft, match="no node remains to serve"):
        async with asyncio.timeout(SOON):
            await run_several_joins.run_joins(
                parts("a", "b"), leave=never, notify=print, stop=asyncio.Event()
            )
    assert sorted(serves.begun) == ["a", "b"]
