"""The clusters of the fleet benchmark: ``python -m e2e.bench.fleet_clusters COUNT DIR PORT``.

One process has the API servers of home and of ``COUNT`` remotes, with a simulated node each, and
acts as users, schedulers and kubelets. It writes ``home.yaml``, a kubeconfig for each remote and
``bridge.yaml`` into ``DIR``, prints the port of the first remote, and then answers a command per
line of its input: a JSON object with the name of a method of `Simulation` as ``do``, and its
arguments.

API servers serve TLS, as real ones do. The first remote, `FAULTY`, is plain, and its kubeconfig has
``PORT``: that of a proxy in another process, so that its traffic delays no API server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml

from sync.kube.api_resources import NODES, PODS
from tests import objects
from tests.bridge.two_clusters import API_SLICE, put_worker
from tests.fakeapi import Authority, FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from translators.object_accessors import Object, condition_of

#: The remote that has the faults.
FAULTY = "remote-0"
#: Seconds between two looks at the pods, and the most that a command waits for nodes and for pods.
LOOK, LIMIT, POD_LIMIT = 0.002, 180.0, 30.0
_RUNNING: Object = {
    "phase": "Running",
    "hostIP": "198.51.100.1",
    "podIP": "10.9.0.1",
    "podIPs": [{"ip": "10.9.0.1"}],
    "conditions": [{"type": it, "status": "True"} for it in ("PodScheduled", "Ready")],
    "containerStatuses": [
        {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}
    ],
}


class Simulation:
    """The clusters, and what the commands do with them."""

    def __init__(self, home: FakeApi, remotes: dict[str, FakeApi]) -> None:
        self.home = home
        self.remotes = remotes
        self._pods = 0

    async def until_ready(self, count: int) -> float:
        """Waits until so many virtual nodes are Ready; the time of that."""
        async with asyncio.timeout(LIMIT):
            while sum(map(_is_ready, self.home.objects(NODES))) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return time.time()

    async def until_not_ready(self, name: str) -> float:
        """Waits until the virtual node is not Ready; the time of that."""
        async with asyncio.timeout(LIMIT):
            while _is_ready(self.home.get(NODES, name)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return time.time()

    async def requests(self) -> dict[str, int]:
        """The requests since the last call, to home and to all remotes."""
        found = {"home": len(self.home.log), "remotes": 0}
        self.home.clear_log()
        for api in self.remotes.values():
            found["remotes"] += len(api.log)
            api.clear_log()
        return found

    async def slow(self, seconds: float) -> None:
        """Delays all responses of the faulty remote from now on; 0 ends that."""
        faults = self.remotes[FAULTY].faults
        faults.lift()
        if seconds:
            faults.add(Fault(times=None, delay=seconds))

    async def pods(self, remotes: list[str], rounds: int, burst: int, pause: float) -> list[float]:
        """Creates ``burst`` pods at a time on each remote, ``rounds`` times; the seconds from each
        creation until home reports the pod as Running."""
        found: list[float] = []
        for _ in range(rounds):
            began = {remote: self._create(remote, burst) for remote in remotes}
            found += await self._run(began)
            await asyncio.sleep(pause)
        return found

    def _create(self, remote: str, count: int) -> dict[str, float]:
        created = {}
        for _ in range(count):
            self._pods += 1
            name = f"p-{self._pods}"
            self.home.put(objects.pod(name, node=remote))
            created[name] = time.monotonic()
        return created

    async def _run(self, began: dict[str, dict[str, float]]) -> list[float]:
        """Acts as the remotes' kubelets until all pods run, or `POD_LIMIT` has passed, which then
        counts as the latency of the others."""
        found, started, end = [], set[str](), time.monotonic() + POD_LIMIT
        while any(began.values()) and time.monotonic() < end:
            for remote, waiting in began.items():
                for name in list(waiting):
                    if name not in started:
                        if self._start(self.remotes[remote], name):
                            started.add(name)
                    elif self._is_running(name):
                        found.append(time.monotonic() - waiting.pop(name))
                        self.home.delete(PODS, name, "default")
            await asyncio.sleep(LOOK)
        late = [name for waiting in began.values() for name in waiting]
        for name in late:
            self.home.delete(PODS, name, "default")
        return found + [POD_LIMIT] * len(late)

    def _start(self, api: FakeApi, name: str) -> bool:
        if api.find(PODS, name, "default-h") is None:
            return False
        api.bind(name, "worker", "default-h")
        api.update(PODS, name, {"status": _RUNNING}, "default-h")
        return True

    def _is_running(self, name: str) -> bool:
        pod = self.home.find(PODS, name, "default") or {}
        return (pod.get("status") or {}).get("phase") == "Running"


def _is_ready(node: Object) -> bool:
    return condition_of(node, "Ready").get("status") == "True"


async def main(count: int, folder: Path, port: int) -> None:
    """Serves until the input ends."""
    authority = Authority(folder)
    context = authority.server_context(authority.issue("server", address="127.0.0.1"))
    ca = base64.b64encode((folder / "fake-ca.crt").read_bytes()).decode()
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(FakeApi(tls=context))
        home.put(API_SLICE)
        home.put(objects.service_account("default"))
        home.put(objects.config_map("kube-root-ca.crt", data={"ca.crt": "home's CA"}))
        remotes = {}
        for number in range(count):
            name = f"remote-{number}"
            remotes[name] = await stack.enter_async_context(
                FakeApi(tls=None if name == FAULTY else context)
            )
            put_worker(remotes[name], "worker")
        servers = {name: api.url for name, api in remotes.items()}
        servers[FAULTY] = f"http://127.0.0.1:{port}"
        for name, server in (servers | {"home": home.url}).items():
            cluster = {"certificate-authority-data": ca} if server.startswith("https") else None
            content = kubeconfig(server, user={"token": "t"}, cluster=cluster, context=name)
            write(folder / f"{name}.yaml", content)
        _write_configuration(folder, list(remotes))
        print(remotes[FAULTY].port, flush=True)
        await _answer(Simulation(home, remotes))


def _write_configuration(folder: Path, names: list[str]) -> None:
    defaults = {
        "home-kubeconfig": "home.yaml",
        "home-name": "h",
        "address": "127.0.0.1",
        "network": "flat",
        "storage": "none",
        "service-accounts": "none",
        "serving-certificate": "self-signed",
    }
    entries = [{"name": it, "kubeconfig": f"{it}.yaml", "port": 0} for it in names]
    content = yaml.safe_dump({"defaults": defaults, "remotes": entries})
    (folder / "bridge.yaml").write_text(content)


async def _answer(simulation: Simulation) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        call: dict[str, Any] = json.loads(line)
        result = await getattr(simulation, call.pop("do"))(**call)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
