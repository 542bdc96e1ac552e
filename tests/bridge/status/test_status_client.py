"""Reading statuses with home's kubeconfig, also if something does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.status import status_client, terminal_output
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.running_join import SOON, RunningJoin
from tests.bridge.status import examples
from tests.bridge.status.conftest import PROXY
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.sync.engine_harness import NODE, EngineHarness
from translators.object_accessors import Object


async def sees(
    watched: status_client.StatusWatch, condition: Callable[[list[Object]], bool]
) -> None:
    """Reads until the condition holds."""
    while True:
        if condition(await watched.read()):
            return
        await asyncio.sleep(0.01)


async def test_status_includes_node_pods_and_bridge(
    two: Clusters, home: KubeClient, bridged: RunningJoin
) -> None:
    EngineHarness(two.home, two.remote).pod("web")
    (found,) = await status_client.read_statuses(home, NODE)
    assert (found["name"], found["ready"], found["pods"]["total"]) == (NODE, True, 1)
    assert found["bridge"]["role"] == "leader"
    assert "bridgeUnknown" not in found
    assert await status_client.read_statuses(home, None)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(code=403, message="you may not"), "requires permission to get nodes/proxy"),
        (Fault(code=404), "its version does not serve its status"),
        (Fault(code=503, message="no route"), "does not reach it (503: no route)"),
        (Fault(raw=b"<html>"), "no bridge"),
        (Fault(raw=b"{}"), "no bridge"),
        (Fault(raw=b"[]"), "no bridge"),
        (Fault(raw=b'{"bridge":' + b"[" * 250 + b"]" * 250 + b"}"), "malformed"),
        (
            Fault(raw=b'{"bridge":{},"volumes":' + b'[{"a":' * 5 + b"1" + b"}]" * 5 + b"}"),
            "malformed",
        ),
        (Fault(raw=b'{"bridge":[' + b"[]," * 1_000_000 + b"0]}"), "exceeds 262144 bytes"),
        (Fault(drop="before"), "no answer"),
        (Fault(delay=10), "no answer in 0 s"),
    ],
)
async def test_unavailable_bridge_status_names_the_cause(
    two: Clusters, home: KubeClient, fault: Fault, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_client, "TIMEOUT_SECONDS", 0.2)
    two.home.put(examples.node())
    fault.path, fault.times = "*/proxy/*", None
    two.home.fail(fault)
    (found,) = await status_client.read_statuses(home, "remote")
    assert found["bridge"] is None
    assert expected in found["bridgeUnknown"]
    assert found["pods"]["total"] == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"bridge": {"version": "0.1.0"}},
        {"bridge": examples.bridge(queues=5)},
        {"bridge": examples.bridge(lagSeconds="long")},
        {"bridge": examples.bridge(errors=[{"last": 1}])},
        {"bridge": examples.bridge(clusters={"remote": []})},
        {"bridge": examples.bridge(), "volumes": {"total": 1}},
    ],
)
@pytest.mark.parametrize("node_count", [1, 2])
async def test_malformed_answer_of_a_bridge_hides_nothing_else(
    two: Clusters, home: KubeClient, answer: Object, node_count: int
) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.json_response(answer)

    two.home.route("GET", PROXY.replace(NODE, "remote") + "/*", respond)
    for name in ("remote", "other")[:node_count]:
        its = examples.node()
        its["metadata"]["name"] = name
        two.home.put(its)
    found = await status_client.read_statuses(home, None)
    assert "malformed" in found[-1]["bridgeUnknown"]
    for text in (terminal_output.render(found), terminal_output.render_table(found)):
        assert "Ready" in text


async def test_forbidden_pods_are_unknown(two: Clusters, home: KubeClient) -> None:
    two.home.put(examples.node())
    two.home.fail(Fault("GET", "/api/v1/pods", code=403, message="you may not"))
    (found,) = await status_client.read_statuses(home, None)
    assert found["pods"] is None
    assert found["podsUnknown"] == "home: you may not"
    assert found["resources"]["cpu"]["requested"] is None


async def test_only_virtual_nodes_of_bridges_are_read(two: Clusters, home: KubeClient) -> None:
    two.home.put(objects.node("real"))
    with pytest.raises(PreflightError, match="node real is not a bridge's"):
        await status_client.read_statuses(home, "real")
    with pytest.raises(PreflightError, match="no node other; there are none"):
        await status_client.read_statuses(home, "other")
    assert await status_client.read_statuses(home, None) == []
    two.home.put(examples.node())
    with pytest.raises(PreflightError, match="the virtual nodes are remote"):
        await status_client.read_statuses(home, "other")
    assert [it["name"] for it in await status_client.read_statuses(home, None)] == ["remote"]


async def test_forbidden_nodes_are_an_error(two: Clusters, home: KubeClient) -> None:
    two.home.fail(Fault("GET", "/api/v1/nodes", code=403, times=None))
    with pytest.raises(Forbidden):
        await status_client.read_statuses(home, None)


async def test_watch_signals_changes(two: Clusters, home: KubeClient, bridged: RunningJoin) -> None:
    harness = EngineHarness(two.home, two.remote)
    async with asyncio.timeout(SOON), status_client.watch_statuses(home, None) as watched:
        assert [it["name"] for it in await watched.read()] == [NODE]
        two.home.clear_log()
        watched.changed.clear()
        harness.pod("web")
        await watched.changed.wait()
        await sees(watched, lambda it: it[0]["pods"]["total"] == 1)
        two.home.put(examples.node())
        await sees(watched, lambda it: len(it) == 2)
        two.home.remove(NODES, "remote")
        await sees(watched, lambda it: len(it) == 1)


async def test_node_deleted_during_a_read_is_omitted(two: Clusters, home: KubeClient) -> None:
    for name in ("near", "remote"):
        its = examples.node()
        its["metadata"]["name"] = name
        two.home.put(its)
    two.home.fail(Fault("GET", "/api/v1/pods", delay=0.2, times=None))
    async with asyncio.timeout(SOON), status_client.watch_statuses(home, None) as watched:
        looking = asyncio.create_task(watched.read())
        await two.home.until(lambda: two.home.requests("GET", "/api/v1/pods"))
        two.home.remove(NODES, "remote")
        assert [it["name"] for it in await looking] == ["near"]


async def test_repeated_read_costs_one_request_per_bridge(two: Clusters, home: KubeClient) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"bridge": examples.bridge()})

    two.home.route("GET", PROXY.replace(NODE, "remote") + "/*", answer)
    two.home.put(examples.node())
    async with asyncio.timeout(SOON), status_client.watch_statuses(home, "remote") as watched:
        await watched.read()
        two.home.clear_log()
        found: list[Object] = await watched.read()
        assert [it["bridge"]["version"] for it in found] == ["0.1.0"]
        assert [it.path for it in two.home.requests()] == [
            "/api/v1/nodes/remote/proxy/bridge/v1/status"
        ]
    with pytest.raises(PreflightError):
        async with status_client.watch_statuses(home, "other"):
            pass
