"""Resident memory of a bridge with and without each measure of `bridge.base.memory_savings`.

The bridge runs as a process between two simulated API servers with TLS, so no cluster is needed,
and without storage. It is measured idle, and after pods were created and deleted. Each round
measures all variants.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sync.kube.api_resources import PODS, Object
from tests.bridge.join_process import join_process
from tests.bridge.two_clusters import Clusters, clusters
from tests.fakeapi import Authority, FakeApi
from tests.objects import pod
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE

#: Seconds until an idle bridge has settled, and after the last pod of a burst: two checks of
#: `memory.release_memory`.
IDLE_SECONDS, RELEASE_SECONDS = 3.0, 35.0
#: Maximum seconds for the creation and the deletion of all pods.
BURST_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Variant:
    """A bridge without one measure: Python code that disables it, and when memory is measured."""

    code: str
    after_burst: bool = False


_NO_RESTART = (
    "from bridge.base import memory_savings\nmemory_savings.restart_with = lambda argument: None\n"
)
_NO_CHILD = (
    "from bridge.base import memory_savings\n"
    "async def run_module(*_):\n    return None\n"
    "memory_savings.run_module = run_module\n"
)
_NO_RELEASE = (
    "import asyncio\nfrom bridge.base import memory_savings\n"
    "async def release_memory():\n    await asyncio.get_running_loop().create_future()\n"
    "memory_savings.release_memory = release_memory\n"
)
#: Imports of a join at once, of what it otherwise imports when it is needed.
_IMPORT = "from bridge.base import memory_savings\nmemory_savings.import_aiohttp()\nimport "
WITHOUT: Mapping[str, Variant] = {
    "restart_with": Variant(_NO_RESTART),
    "run_module": Variant(_NO_CHILD),
    "import_aiohttp": Variant(
        "from bridge.base import memory_savings\nmemory_savings.import_aiohttp = lambda: None\n"
    ),
    "late prometheus_client": Variant(f"{_IMPORT}prometheus_client\n"),
    "late controllers of storage": Variant(
        f"{_IMPORT}sync.storage.pvc_controller, sync.storage.volume_controller\n"
    ),
    "version as a constant": Variant(f"{_IMPORT}importlib.metadata\n"),
    "release_memory": Variant(_NO_RELEASE, after_burst=True),
}


def measure(*, rounds: int, pods: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The figures as JSON: megabytes resident, medians of the rounds."""
    found: dict[str, list[float]] = {}

    def take(name: str, code: str, *, after_burst: bool) -> None:
        megabytes = asyncio.run(_resident(code, pods if after_burst else 0)) / 1e6
        found.setdefault(name, []).append(megabytes)
        say(f"{name}: {megabytes:.1f} MB")

    for _ in range(rounds):
        take("idle", "", after_burst=False)
        take("after burst", "", after_burst=True)
        for name, variant in WITHOUT.items():
            take(f"without {name}", variant.code, after_burst=variant.after_burst)
    medians = {name: statistics.median(values) for name, values in found.items()}
    measures = {}
    for name, variant in WITHOUT.items():
        with_it = medians["after burst" if variant.after_burst else "idle"]
        without_it = medians[f"without {name}"]
        measures[name] = {
            "with_mb": round(with_it, 1),
            "without_mb": round(without_it, 1),
            "saved_mb": round(without_it - with_it, 1),
        }
    return {"benchmark": "memory", "rounds": rounds, "pods": pods, "measures": measures}


async def _resident(code: str, pods: int) -> int:
    """Bytes resident of a bridge that runs ``code`` first: idle, or after a burst of pods."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority(folder)
        tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
        async with FakeApi(tls=tls) as home, FakeApi(tls=tls) as remote:
            both = clusters(home, remote, folder)
            async with join_process(both, extra=code, options=["--storage", "none"]) as process:
                await process.wait_for_output("is registered")
                if pods:
                    await _burst(both, pods)
                    await asyncio.sleep(RELEASE_SECONDS)
                else:
                    await asyncio.sleep(IDLE_SECONDS)
                resident = process.resident_bytes()
                await process.stop()
                return resident


async def _burst(both: Clusters, pods: int) -> None:
    """Creates pods on the node, waits until all are in the remote, and deletes them."""
    names = [f"pod-{number}" for number in range(pods)]
    async with asyncio.timeout(BURST_TIMEOUT):
        for name in names:
            both.home.put(_large_pod(name))
            await asyncio.sleep(0)  # the simulated API servers share this event loop
        await _wait_for_remote_pods(both, pods)
        for name in names:
            both.home.remove(PODS, name, "default")
            await asyncio.sleep(0)
        await _wait_for_remote_pods(both, 0)


def _large_pod(name: str) -> Object:
    """A pod with as many Python objects as some ten ordinary ones, so that few requests suffice."""
    made = pod(name, node=NODE)
    [container] = made["spec"]["containers"]
    made["spec"]["containers"] = [
        {
            **container,
            "name": f"main-{number}",
            "env": [
                {"name": f"NAME_{key}", "value": f"{name}-{number}-{key}"} for key in range(10)
            ],
        }
        for number in range(30)
    ]
    return made


async def _wait_for_remote_pods(both: Clusters, count: int) -> None:
    while len(both.remote.objects(PODS, REMOTE_NAMESPACE)) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
