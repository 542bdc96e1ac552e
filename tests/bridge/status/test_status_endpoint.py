"""The status endpoint of a running bridge, over the kubelet API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.status import status_endpoint
from sync.kube.api_resources import NODES, PERSISTENT_VOLUMES, Object
from tests.bridge import malformed_versions
from tests.bridge.running_join import SOON, kubelet_api_client, running_join, start_join
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import Fault
from tests.sync.engine_harness import NODE, EngineHarness
from translators.ownership_labels import LABEL_REMOTE
from translators.storage.identifiers import DRIVER

pytestmark = pytest.mark.usefixtures("soon")

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "status.md"
_ROW = re.compile(r"^\| `([\w.\[\]*]+)` \|", re.MULTILINE)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the answer cache."""
    monkeypatch.setattr(status_endpoint, "CACHE_SECONDS", 0.0)


async def read_status(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get(status_endpoint.STATUS_PATH) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    assert CANARY not in text
    found: dict[str, Any] = json.loads(text)
    return found


async def once(
    session: aiohttp.ClientSession, condition: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """The first status for which the condition holds."""
    async with asyncio.timeout(SOON):
        while True:
            found = await read_status(session)
            if condition(found):
                return found
            await asyncio.sleep(0.01)


def fields(value: Any, path: str = "") -> set[str]:
    """The paths of all fields as in the documentation: ``queues[].depth``; ``resources.*``."""
    found = set()
    if isinstance(value, list):
        for it in value:
            found |= fields(it, f"{path}[]")
    elif isinstance(value, dict):
        for key, it in value.items():
            anyone = path in ("resources", "bridge.streams", "bridge.clusters", "pods.byPhase")
            name = f"{path}.{'*' if anyone else key}".lstrip(".")
            found |= {name} | fields(it, name)
    return found


async def test_leader_reports_its_node_and_itself(two: Clusters) -> None:
    harness = EngineHarness(two.home, two.remote)
    async with running_join(two) as run:
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Running")
        async with kubelet_api_client(run) as session:
            found = await read_status(session)
    assert found["name"] == NODE
    assert found["ready"] is True
    assert found["cordoned"] is False
    assert found["pods"]["byPhase"]["Running"] == found["pods"]["total"] == 1
    assert found["resources"]["cpu"]["capacity"] == "4"
    assert found["resources"]["pods"]["requested"] == "1"
    bridge = found["bridge"]
    assert (bridge["role"], bridge["standby"]) == ("leader", "")
    assert {it["name"] for it in bridge["queues"]} >= {"pods", "mirror"}
    assert bridge["lagSeconds"] == 0
    watched = {(it["cluster"], it["resource"]): it for it in bridge["watches"]}
    assert watched["home", "pods"]["objects"] == 1
    assert all(it["silentSeconds"] is not None for it in watched.values())
    assert all(it["failing"] == 0 for it in watched.values())
    for side in ("home", "remote"):
        assert bridge["clusters"][side]["version"].startswith("v1.")
        assert bridge["clusters"][side]["watched"]


@pytest.mark.parametrize("malformed", malformed_versions.JSON, ids=malformed_versions.IDS)
async def test_malformed_version_is_unknown(two: Clusters, malformed: bytes) -> None:
    """The bridge joins a remote that returns it."""
    raw = b'{"gitVersion":%s}' % malformed
    two.remote.fail(Fault("GET", "/version", raw=raw, times=None))
    async with running_join(two) as run, kubelet_api_client(run) as session:
        assert any(line.endswith("(context remote-context), ?") for line in run.reports)
        found = await read_status(session)
    assert found["bridge"]["clusters"]["remote"]["version"] == ""


async def test_every_field_is_documented(two: Clusters) -> None:
    documented = set(_ROW.findall(DOCUMENT.read_text()))
    harness = EngineHarness(two.home, two.remote)
    two.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    settings = two.but(storage="provision")
    async with running_join(two, settings) as run, kubelet_api_client(run) as session:
        two.home.put(_volume(two, "pvc-1"))
        await once(session, lambda it: it["volumes"]["missing"])
        harness.pod("web")
        await two.home.until(lambda: harness.status("web").get("conditions"))
        two.remote.fail(Fault(path="*/nodes", code=403))
        two.remote.break_watches()
        found = await once(session, lambda it: it["bridge"]["errors"] and it["pods"]["refusedPods"])
    found["bridge"]["streams"]["logs"] = 1
    assert fields(found) == documented - {"podsUnknown", "bridgeUnknown"}


def _volume(two: Clusters, name: str) -> Object:
    """A bound PersistentVolume of home whose PVC the remote lacks."""
    (node,) = two.home.objects(NODES)
    csi = {"driver": DRIVER, "volumeHandle": f"{node['metadata']['labels'][LABEL_REMOTE]}/a/b"}
    return PERSISTENT_VOLUMES.manifest(
        {"name": name},
        spec={
            "csi": csi,
            "capacity": {"storage": "3Gi"},
            "claimRef": {"namespace": "shop", "name": "data"},
        },
        status={"phase": "Bound"},
    )


async def test_volumes_and_their_missing_data_are_reported(two: Clusters) -> None:
    settings = two.but(storage="provision")
    async with running_join(two, settings) as run, kubelet_api_client(run) as session:
        assert (await once(session, lambda it: it["volumes"]))["volumes"]["total"] == 0
        two.home.put(_volume(two, "pvc-1"))
        two.home.put({**_volume(two, "other"), "spec": {"hostPath": {"path": "/d"}}})
        found = (await once(session, lambda it: it["volumes"]["total"]))["volumes"]
    assert (found["total"], found["capacity"], found["pending"]) == (1, "3Gi", 0)
    (missing,) = found["missingVolumes"]
    assert (missing["name"], missing["claim"]) == ("pvc-1", "shop/data")
    assert "PersistentVolumeClaim a/b does not exist" in missing["message"]


async def test_volumes_are_null_without_provisioning(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        assert (await read_status(session))["volumes"] is None


async def test_outage_is_reported_with_cause_and_last_version(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        await read_status(session)
        two.remote.fail(Fault(code=503, times=None))
        two.remote.break_watches()
        found = await once(session, lambda it: not it["bridge"]["clusters"]["remote"]["watched"])
    remote = found["bridge"]["clusters"]["remote"]
    assert remote["error"]
    assert remote["version"].startswith("v1.")
    assert any("cannot watch" in it["message"] for it in found["bridge"]["errors"])
    assert found["bridge"]["clusters"]["home"]["watched"]


async def test_standby_reports_its_role(two: Clusters) -> None:
    async with running_join(two):
        other = start_join(two.settings)
        try:
            await other.wait_for_report("standing by")
            async with kubelet_api_client(other) as session:
                found = await read_status(session)
        finally:
            await other.end()
    assert found["ready"] is None
    assert found["bridge"]["role"] == "standby"
    assert "is served by" in found["bridge"]["standby"]


async def test_status_and_page_require_permission_for_metrics(two: Clusters) -> None:
    def allowed(review: dict[str, Any]) -> bool:
        return bool(review["resourceAttributes"].get("subresource") != "metrics")

    async with running_join(two) as run, kubelet_api_client(run) as session:
        two.home.api.authorize = allowed
        for path in (status_endpoint.STATUS_PATH, "/bridge/", "/bridge"):
            async with session.get(path) as answer:
                assert answer.status == 403, path
        two.home.api.authenticate = lambda token: None
        async with (
            kubelet_api_client(run, "unknown token") as other,
            other.get("/bridge/") as answer,
        ):
            assert answer.status == 401


@pytest.mark.parametrize("server", ["https://me:secret@host:6443/a?token=b#c"])
def test_server_address_contains_no_credentials(server: str) -> None:
    assert status_endpoint.strip_credentials(server) == "https://host:6443/a"
