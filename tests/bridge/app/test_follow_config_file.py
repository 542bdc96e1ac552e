"""A process follows its configuration file: real joins between fake API servers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from bridge.app import run_several_joins
from bridge.cli import fleet_actions, run_config_file
from bridge.fleet import config_file_source, supervisor
from bridge.fleet.config_file_source import ConfigFileSource, followed
from bridge.fleet.desired_state import DesiredState
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.status import status_endpoint
from sync.kube.api_resources import LEASES, NAMESPACES, NODES, PERSISTENT_VOLUMES, PODS
from sync.runtime.log_fields import NODE
from tests import objects
from tests.bridge.running_join import SOON
from tests.bridge.two_clusters import CANARY, Clusters, put_worker
from tests.fakeapi import FakeApi
from tests.fakeapi.hostile_server import HostileServer, endless, head
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.server import CLOSED_PORT
from translators.object_accessors import Object, uid_of
from translators.virtual_node_identity import home_id_from_uid

pytestmark = [pytest.mark.usefixtures("soon"), pytest.mark.timeout(120)]

#: Seconds for twenty parallel joins.
LONG = 60.0


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at often, and failed joins are started again soon."""
    monkeypatch.setattr(config_file_source, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 0.05)
    monkeypatch.setattr(supervisor, "RETRY_CAP", 0.5)
    monkeypatch.setattr(status_endpoint, "CACHE_SECONDS", 0.0)


@pytest.fixture
def port() -> Iterator[int]:
    """A port for one kubelet API: bound, so that the system gives it to no other server."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


class Process:
    """`bridge run` in this process, with its file."""

    def __init__(self, two: Clusters, folder: Path) -> None:
        self.two = two
        self.folder = folder
        self.file = folder / "bridge.yaml"
        self.messages: list[str] = []
        self.stop = asyncio.Event()
        self.defaults: dict[str, Any] = {
            "home-kubeconfig": "home.yaml",
            "kubeconfig": "remote.yaml",
            "home-name": "h",
            "address": "127.0.0.1",
            "network": "flat",
            "storage": "none",
        }

    def write(self, *remotes: Mapping[str, Any]) -> None:
        """Writes the file as an editor does, with these remotes."""
        new = self.file.with_suffix(".new")
        entries = [{"port": 0, **it} for it in remotes]
        new.write_text(yaml.safe_dump({"defaults": self.defaults, "remotes": entries}))
        new.rename(self.file)

    async def run(self) -> None:
        """Runs until `stop` is set."""
        file = followed(self.file)
        first, _ = run_config_file.read(self.file)

        async def read(ports: Mapping[str, int]) -> DesiredState:
            parts, _ = run_config_file.read(self.file, ports)
            return DesiredState(parts)

        def notify(text: str) -> None:
            self.messages.append(f"{NODE.get()}: {text}")

        await run_several_joins.run_joins(
            ConfigFileSource(file, first, read),
            leave=fleet_actions.leave_action(notify),
            notify=notify,
            stop=self.stop,
        )

    def node(self, name: str) -> Object:
        """The Node; {} if there is none."""
        return self.two.home.find(NODES, name) or {}

    def is_ready(self, name: str) -> bool:
        conditions = self.node(name).get("status", {}).get("conditions", [])
        return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)

    async def until_ready(self, *names: str) -> None:
        await self.two.home.until(lambda: all(map(self.is_ready, names)), timeout=LONG)

    def kubelet_port(self, name: str) -> int:
        found: int = self.node(name)["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        return found

    async def fleet(self, name: str) -> dict[str, Any]:
        """The fleet, as the status of this node has it."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
            session.get(
                f"https://127.0.0.1:{self.kubelet_port(name)}{status_endpoint.STATUS_PATH}",
                headers={"Authorization": "Bearer someone's"},
            ) as answer,
        ):
            found: dict[str, Any] = (await answer.json())["bridge"]["fleet"]
            return found

    async def until_fleet(
        self, via: str, condition: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        """The fleet as the node ``via`` reports it, once the condition holds."""
        async with asyncio.timeout(LONG):
            while True:
                fleet = await self.fleet(via)
                if condition(fleet):
                    return fleet
                await asyncio.sleep(0.02)

    async def until_state(self, via: str, name: str, state: str) -> str:
        """The error of the remote, once it has the state."""
        wanted = (name, state)
        fleet = await self.until_fleet(
            via, lambda it: wanted in [(one["name"], one["state"]) for one in it["remotes"]]
        )
        (error,) = [str(it["error"]) for it in fleet["remotes"] if it["name"] == name]
        return error


@contextlib.asynccontextmanager
async def running(process: Process) -> AsyncIterator[None]:
    task = asyncio.create_task(process.run())
    try:
        yield
        process.stop.set()
        async with asyncio.timeout(SOON):
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def process(two: Clusters, tmp_path: Path) -> Process:
    """A process that is not started."""
    return Process(two, tmp_path)


async def start_pod(process: Process, node: str, remote: FakeApi) -> Object:
    """A pod of the node, which runs in its remote."""
    name = f"on-{node}"
    process.two.home.put(objects.pod(name, node=node))
    await remote.until(lambda: remote.find(PODS, name, "default-h"))
    await process.two.home.until(
        lambda: process.two.home.get(PODS, name, "default").get("status", {}).get("phase")
    )
    return remote.get(PODS, name, "default-h")


def requests_of_work(api: FakeApi) -> list[str]:
    """The requests of the log, without those of Leases, and that of a status for the version."""
    return [
        f"{it.method} {it.path}"
        for it in api.log
        if "/leases/" not in it.path and it.path != "/version"
    ]


@pytest.fixture
async def west(process: Process) -> AsyncIterator[FakeApi]:
    """The API server of another remote, with ``west.yaml``."""
    async with FakeApi() as api:
        put_worker(api, "worker")
        write(process.folder / "west.yaml", kubeconfig(api.url, user={"token": CANARY}))
        yield api


async def test_change_of_one_remote_leaves_the_other_untouched(
    process: Process, west: FakeApi, port: int
) -> None:
    two = process.two
    other = {"name": "west", "kubeconfig": "west.yaml"}
    process.write({"name": "east", "port": port}, other)
    async with running(process):
        await process.until_ready("east", "west")
        east_pod = await start_pod(process, "east", two.remote)
        await start_pod(process, "west", west)
        for api in (two.home, two.remote, west):
            api.clear_log()

        process.write({"name": "east", "port": port, "labels": {"tier": "gold"}}, other)
        await two.home.until(
            lambda: process.node("east")["metadata"]["labels"].get("tier") == "gold"
        )
        await process.until_state("west", "east", "running")
        two.home.put(objects.pod("another", node="east"))
        await two.remote.until(lambda: two.remote.find(PODS, "another", "default-h"))

        assert process.kubelet_port("east") == port
        # The changed remote: its pod is the same one, and has not been written.
        assert uid_of(two.remote.get(PODS, "on-east", "default-h")) == uid_of(east_pod)
        assert not [it for it in two.remote.writes("*/pods/on-east*") if it.method != "GET"]
        assert two.home.requests("DELETE", "*/pods/*") == []
        # The other one: nothing is requested of its remote, and no watch of it is opened at home.
        assert requests_of_work(west) == []
        opened = [
            it for it in two.home.log if it.watch and "west" in it.query.get("fieldSelector", "")
        ]
        assert opened == []
        assert [
            it.path for it in two.home.writes() if "west" in it.path and "leases" not in it.path
        ] == []

        # A third one joins, the changed one is removed, and the file is then invalid.
        west.clear_log()
        process.write(other, {"name": "third"})
        await process.until_ready("third")
        await two.home.until(lambda: any("no longer has east" in it for it in process.messages))
        assert [it["name"] for it in (await process.fleet("west"))["remotes"]] == ["west", "third"]
        assert uid_of(two.remote.get(PODS, "on-east", "default-h")) == uid_of(east_pod)
        assert process.node("east")
        lease = two.home.get(LEASES, "election-east", "cluster-bridge")
        assert not lease["spec"].get("holderIdentity")
        process.file.write_text("remotes:\n- name: west\n  kubeconfig: west.yaml\n  prot: 1\n")
        invalid = await process.until_fleet("west", lambda it: it["error"])
        assert invalid["error"] == (
            f'{process.file}: remotes[0]: "prot" is not a key; did you mean port? (line 4)'
        )
        assert requests_of_work(west) == []


async def test_left_state_removes_the_node_once_no_volume_is_left(
    process: Process, west: FakeApi
) -> None:
    two = process.two
    other = {"name": "west", "kubeconfig": "west.yaml"}
    process.write({"name": "east"}, other)
    async with running(process):
        await process.until_ready("east", "west")
        await start_pod(process, "east", two.remote)
        remote_id = home_id_from_uid(uid_of(two.remote.get(NAMESPACES, "kube-system")))
        two.home.put(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "pvc-1"},
                "spec": {
                    "csi": {
                        "driver": "volumes.cluster-bridge.io",
                        "volumeHandle": f"{remote_id}/default-h/data",
                    }
                },
            }
        )
        process.write({"name": "east", "state": "left"}, other)
        refused = await process.until_state("west", "east", "retrying")
        assert "PersistentVolumes pvc-1" in refused
        assert process.node("east")
        assert two.remote.find(PODS, "on-east", "default-h")
        two.home.remove(PERSISTENT_VOLUMES, "pvc-1")
        await two.remote.until(
            lambda: (
                (two.remote.find(PODS, "on-east", "default-h") or {})
                .get("metadata", {})
                .get("deletionTimestamp", "gone")
            )
        )
        if two.remote.find(PODS, "on-east", "default-h"):
            two.remote.remove(PODS, "on-east", "default-h")  # its kubelet
        await process.until_state("west", "east", "left")
        assert not process.node("east")
        assert process.is_ready("west")
        assert any("to be removed: home:   Node east" in it for it in process.messages)


async def test_node_that_a_command_removes_stays_removed_until_its_entry_changes(
    process: Process, west: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    two = process.two
    other = {"name": "west", "kubeconfig": "west.yaml"}
    process.write({"name": "east"}, other)
    async with running(process):
        await process.until_ready("east", "west")
        settings = LeaveSettings("east", two.settings.home, two.settings.remote, force=True)
        assert await leave(settings, notify=print, confirm=lambda _: True)
        assert "has left" in await process.until_state("west", "east", "left")
        assert "node east has left" in caplog.text
        process.write({"name": "east", "labels": {"tier": "gold"}}, other)
        await process.until_ready("east")


async def test_one_dead_and_one_hostile_remote_of_twenty_cost_the_others_nothing(
    process: Process,
) -> None:
    two, folder = process.two, process.folder
    healthy = [f"node-{index}" for index in range(17)]
    async with AsyncExitStack() as stack:
        hostile = await stack.enter_async_context(HostileServer(head(), endless(b"x" * 2**12)))
        silent = await stack.enter_async_context(FakeApi())
        silent.pause()
        servers = {
            "hostile": hostile.url,
            "silent": silent.url,
            "dead": f"http://127.0.0.1:{CLOSED_PORT}",
        }
        for name, url in servers.items():
            write(folder / f"{name}.yaml", kubeconfig(url, user={"token": CANARY}))
        broken = [{"name": name, "kubeconfig": f"{name}.yaml"} for name in servers]
        process.write(*broken, *({"name": name} for name in healthy))
        async with running(process):
            await process.until_ready(*healthy)
            dead = await process.until_state("node-0", "dead", "retrying")
            assert "remote: " in dead
            assert await process.until_state("node-0", "hostile", "retrying")
            for name in healthy[:3]:
                two.home.put(objects.pod(f"on-{name}", node=name))
            await two.remote.until(
                lambda: all(two.remote.find(PODS, f"on-{it}", "default-h") for it in healthy[:3])
            )
            two.home.clear_log()
            # The dead one is repaired, and joins without a change of the file.
            write(folder / "dead.yaml", kubeconfig(two.remote.url, user={"token": CANARY}))
            await process.until_ready("dead")
            # The others are removed while they hang.
            process.write(
                {"name": "dead", "kubeconfig": "dead.yaml"}, *({"name": it} for it in healthy)
            )
            fleet = await process.until_fleet("node-0", lambda it: len(it["remotes"]) == 18)
            assert {it["state"] for it in fleet["remotes"]} == {"running"}
            watched = {
                it.query["fieldSelector"].rpartition("=")[2]
                for it in two.home.log
                if it.watch and it.query.get("fieldSelector", "").startswith("spec.nodeName=")
            }
            assert watched == {"dead"}
            silent.resume()
