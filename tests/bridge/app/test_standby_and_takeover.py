"""Replicas of one node: one serves the node, the others stand by and take over."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from bridge.base.command_error import PreflightError
from bridge.election import election_lease
from bridge.election.elector import NodeLeft
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.node.join_record import recorded_network
from bridge.node.lease_namespace import NAMESPACE
from sync.base.exception_summary import first_leaf
from sync.kube.api_resources import CONFIG_MAPS, LEASES, NODES, PODS, Object
from tests.bridge.running_join import (
    SOON,
    RunningJoin,
    kubelet_api_client,
    running_join,
    start_join,
)
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.objects import config_map, node
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness

#: Seconds, of several renewals of the Lease.
LONG = 5.0
LEASE = election_lease.election_lease_name(NODE)

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def harness(two: Clusters) -> EngineHarness:
    """Creates pods and simulates the remote's kubelet."""
    return EngineHarness(two.home, two.remote)


def holder(two: Clusters) -> str:
    return election_lease.parse_lease(two.home.get(LEASES, LEASE, NAMESPACE)).holder


def port(two: Clusters) -> int:
    """The address of the kubelet API in the Node's status."""
    found: int = two.home.get(NODES, NODE)["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    return found


def written(two: Clusters) -> list[str]:
    """All writes since the log was cleared, except of Leases and the Node."""
    return [
        f"{it.method} {it.path}"
        for it in two.writes()
        if "/leases" not in it.path and not it.path.startswith("/api/v1/nodes")
    ]


async def answer(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as response:
        return response.status, await response.text()


async def standby(two: Clusters) -> RunningJoin:
    """Starts a second join, which stands by."""
    run = start_join(two.settings)
    await run.wait_for_report("standing by")
    return run


async def test_standby_reports_the_holder_and_writes_nothing(
    two: Clusters, harness: EngineHarness
) -> None:
    async with running_join(two) as first:
        second = await standby(two)
        line = next(line for line in second.reports if "standing by" in line)
        assert "(pid " in line
        assert " at 127.0.0.1; standing by" in line
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        two.home.clear_log()
        two.remote.clear_log()
        harness.report_running("web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Running")
        await asyncio.sleep(LONG)
        path = PODS.path("web", namespace="default", subresource="status")
        assert written(two) == [f"PATCH {path}"]
        assert port(two) == first.port
        await second.end()
        # The standby held no Lease that it could release.
        assert holder(two)


async def test_standby_is_healthy_and_answers_503_about_pods(two: Clusters) -> None:
    async with running_join(two):
        second = await standby(two)
        async with kubelet_api_client(second) as session:
            assert (await answer(session, "/healthz"))[0] == 200
            assert f'bridge_leader{{node="{NODE}"}} 0.0' in (await answer(session, "/metrics"))[1]
            for path in ("/pods", "/containerLogs/default/web/main", "/stats/summary"):
                code, text = await answer(session, path)
                assert code == 503, path
                assert f"stands by for node {NODE}; it is served by" in text
        await second.end()


async def test_failed_standby_does_not_disturb_the_others(two: Clusters) -> None:
    async with running_join(two):
        second = await standby(two)
        second.task.cancel()
        await asyncio.gather(second.task, return_exceptions=True)
        before = holder(two)
        await asyncio.sleep(LONG)
        assert holder(two) == before


async def test_outage_of_home_during_the_registration_does_not_end_the_join(
    two: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted = two.home.faults.add(Fault("POST", "*/kube-node-lease/leases", delay=60))
    run = start_join(two.settings)
    await two.home.until(lambda: interrupted.hits)
    outage = two.home.faults.add(Fault(times=None, code=503))
    await two.home.until(lambda: run.task.done() or caplog.text.count("cannot register it") > 2)
    two.home.faults.lift(outage)
    await run.wait_for_report("is registered")
    await run.end()


async def test_standby_takes_over_at_once_and_writes_only_changes(
    two: Clusters, harness: EngineHarness
) -> None:
    """Long before the Lease would expire."""
    async with running_join(two) as first:
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Running")
        second = await standby(two)
        await asyncio.sleep(LONG)
        two.home.clear_log()
        two.remote.clear_log()
        await first.end()
    async with asyncio.timeout(election_lease.LEASE_SECONDS / 2):
        await second.wait_for_report("is registered")
    await two.home.until(lambda: port(two) == second.port)
    async with kubelet_api_client(second) as session:
        code, text = await answer(session, "/pods")
        assert (code, '"web"' in text) == (200, True)
        text = (await answer(session, "/metrics"))[1]
        assert f'bridge_leader{{node="{NODE}"}} 1.0' in text
        assert f'bridge_leader_transitions_total{{node="{NODE}"}} 1.0' in text
    await asyncio.sleep(LONG)
    assert written(two) == []
    harness.pod("db")
    await two.remote.until(lambda: harness.remote_pod("db"))
    await second.end()
    assert holder(two) == ""


async def test_addresses_of_homes_nodes_are_read_at_the_takeover(
    two: Clusters, harness: EngineHarness
) -> None:
    """Home got the node while the replica stood by; no pod of the remote can have its address."""
    async with running_join(two) as first:
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web", podIP="203.0.113.7", podIPs=[{"ip": "203.0.113.7"}])
        await two.home.until(lambda: harness.status("web").get("podIP") == "203.0.113.7")
        second = await standby(two)
        address = {"type": "InternalIP", "address": "203.0.113.7"}
        two.home.put({**node("late"), "status": {"addresses": [address]}})
        await first.end()
    await second.wait_for_report("is registered")
    await two.home.until(lambda: "podIP" not in harness.status("web"))
    await second.end()


async def test_account_that_may_not_list_homes_nodes_needs_no_ranges(
    two: Clusters, harness: EngineHarness
) -> None:
    ranges = ("nodes", "servicecidrs")

    def authorize(spec: Object) -> bool:
        attributes = spec["resourceAttributes"]
        lists_all = attributes["verb"] == "list" and not attributes.get("name")
        return not lists_all or attributes["resource"] not in ranges

    two.home.api.authorize = authorize
    address = {"type": "InternalIP", "address": "203.0.113.7"}
    two.home.put({**node("worker"), "status": {"addresses": [address]}})
    async with running_join(two):
        harness.pod("web")
        await two.remote.until(lambda: harness.remote_pod("web"))
        harness.report_running("web", podIP="203.0.113.7", podIPs=[{"ip": "203.0.113.7"}])
        await two.home.until(lambda: harness.status("web").get("podIP") == "203.0.113.7")


async def test_successor_has_the_last_writes_of_its_predecessor(
    two: Clusters, harness: EngineHarness
) -> None:
    """A pod that has terminated does not run again, although the successor's own watches have not
    delivered its last state."""
    async with running_join(two) as first:
        others = {*two.home.open_watches(PODS), *two.remote.open_watches(PODS)}
        second = await standby(two)
        slow = two.remote.fail(Fault("POST", "*/pods", delay=0.3))
        harness.pod("web", restartPolicy="Never")
        await two.remote.until(lambda: slow.hits)
        await asyncio.sleep(LONG)
        for watch in {*two.home.open_watches(PODS), *two.remote.open_watches(PODS)} - others:
            watch.passes = lambda _: False
        await two.remote.until(
            lambda: (pod := harness.remote_pod("web")) and not pod["spec"].get("schedulingGates")
        )
        harness.report_terminated("Succeeded", "web")
        await two.home.until(lambda: harness.status("web").get("phase") == "Succeeded")
        two.remote.remove(PODS, "web", REMOTE_NAMESPACE)
        await asyncio.sleep(LONG)
        two.remote.clear_log()
        await first.end()
        await second.wait_for_report("is registered")
        await asyncio.sleep(LONG)
        assert two.remote.writes(PODS.path(namespace=REMOTE_NAMESPACE)) == []
        assert harness.status("web")["phase"] == "Succeeded"
        await second.end()


async def test_successor_survives_a_short_failure_of_home(two: Clusters) -> None:
    async with running_join(two) as first:
        second = await standby(two)
        refused = two.home.fail(Fault("*", "/api/v1/nodes*", code=500, times=3, watch=False))
        await first.end()
        await second.wait_for_report("is registered")
        assert refused.hits == 3
        await second.end()


async def test_successor_follows_the_network_mode_that_the_leader_recorded(two: Clusters) -> None:
    """The second replica starts before the first has registered the Node, and probes itself."""
    async with running_join(two) as first:
        two.home.fail(Fault("GET", NODES.path(NODE), code=404, reason="NotFound"))
        second = start_join(two.but(network="auto"))
        await second.wait_for_report("pod networks: none (not probed")
        await second.wait_for_report("standing by")
        await first.end()
        await second.wait_for_report("another replica recorded pod networks: flat (configured)")
        await second.wait_for_report("is registered")
        node = two.home.get(NODES, NODE)
        assert str(recorded_network(node)) == "pod networks: flat (configured)"
        await second.end()


async def test_replica_without_the_lease_writes_nothing_until_it_holds_it_again(
    two: Clusters, harness: EngineHarness
) -> None:
    async with running_join(two) as run:
        theirs = {"holderIdentity": "third_1", "leaseDurationSeconds": 60}
        two.home.update(LEASES, LEASE, {"spec": theirs}, NAMESPACE)
        await run.wait_for_report("is held by")
        two.home.clear_log()
        two.remote.clear_log()
        harness.pod("web")
        await asyncio.sleep(LONG)
        assert two.writes() == []
        async with kubelet_api_client(run) as session:
            assert (await answer(session, "/pods"))[0] == 503
        two.home.update(LEASES, LEASE, {"spec": {"holderIdentity": None}}, NAMESPACE)
        await two.remote.until(lambda: harness.remote_pod("web"))
        assert sum("is registered" in line for line in run.reports) == 2
        async with kubelet_api_client(run) as session:
            assert (await answer(session, "/pods"))[0] == 200


async def test_cut_to_home_stops_writes_to_the_remote_and_restarts_no_pod(
    two: Clusters, harness: EngineHarness
) -> None:
    two.home.put(config_map("conf", data={"k": "v"}))
    async with running_join(two) as run:
        harness.pod("web", uses=["cm/conf"])
        await two.remote.until(lambda: harness.remote_pod("web"))
        two.home.pause()
        await asyncio.sleep(election_lease.RENEW_DEADLINE + 0.3)
        two.remote.clear_log()
        two.remote.remove(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)
        await asyncio.sleep(LONG)
        assert two.remote.writes() == []
        two.home.resume()
        await two.remote.until(lambda: harness.config_map("conf"))
        assert sum("is registered" in line for line in run.reports) == 1


def leaving(two: Clusters, *, force: bool) -> LeaveSettings:
    return LeaveSettings(NODE, two.settings.home, None, force=force)


async def test_leave_of_a_served_node_fails_and_names_the_bridge(two: Clusters) -> None:
    async with running_join(two):
        with pytest.raises(PreflightError, match=r"serves node .* \(pid \d+\) at 127") as caught:
            await leave(leaving(two, force=False), notify=lambda _: None, confirm=lambda _: True)
        assert "--force" in str(caught.value)


async def test_forced_leave_ends_all_replicas_and_the_node_stays_deleted(
    two: Clusters, harness: EngineHarness
) -> None:
    messages: list[str] = []
    first = start_join(two.settings)
    await first.wait_for_report("is registered")
    second = await standby(two)
    harness.pod("web")
    await two.remote.until(lambda: harness.remote_pod("web"))
    async with asyncio.timeout(2 * SOON):
        assert await leave(leaving(two, force=True), notify=messages.append, confirm=lambda _: True)
    for run in (first, second):
        with pytest.raises((ExceptionGroup, NodeLeft)) as caught:
            await asyncio.wait_for(run.task, SOON)
        assert "bridge leave" in str(first_leaf(caught.value))
    assert any("has lost the lease" in line for line in messages)
    for kind, name, namespace in ((NODES, NODE, ""), (LEASES, LEASE, NAMESPACE)):
        assert two.home.find(kind, name, namespace) is None
    assert harness.remote_pod("web") is None


async def test_failed_leave_releases_the_lease(two: Clusters) -> None:
    async with running_join(two):
        pass
    two.home.fail(Fault("DELETE", "/api/v1/nodes/*", code=500, times=None))
    with pytest.raises(PreflightError):
        await leave(leaving(two, force=False), notify=lambda _: None, confirm=lambda _: True)
    record = election_lease.parse_lease(two.home.get(LEASES, LEASE, NAMESPACE))
    assert (record.holder, record.leaving) == ("", False)
