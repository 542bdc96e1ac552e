"""`bridge placement simulate`, on a fake home."""

from __future__ import annotations

import pytest

from bridge.placement import cluster_snapshot, simulation
from bridge.placement.cluster_snapshot import Snapshot, read_snapshot
from sync.kube.api_resources import NODES, PLACEMENT_POLICIES
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from tests.sync.placement.placed_home import TIERS, Home
from translators.object_accessors import Object


def policy(**spec: object) -> Object:
    return PLACEMENT_POLICIES.manifest(
        {"name": "file"}, spec={"namespaces": ["default"], "tiers": TIERS, **spec}
    )


def deployment(replicas: int, cpu: str = "1", namespace: str = "default") -> Object:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    return {
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": replicas, "template": template},
    }


@pytest.fixture
def home(api: FakeApi) -> Home:
    """A home with room for two pods of 1 CPU: one at home, one in a cheap remote."""
    world = Home(api)
    world.node("worker", "1")
    world.remote("c", 1000)
    return world


def answers(snapshot: Snapshot, *objects: Object) -> list[Object]:
    results = simulation.simulate(snapshot, objects, "default")
    workloads: list[Object] = simulation.as_json(snapshot, results)["workloads"]
    return workloads


async def test_each_pod_takes_its_room(home: Home, client: KubeClient) -> None:
    home.policy()
    [answer] = answers(await read_snapshot(client), deployment(3))
    assert answer["placed"] == {"home": 1, "c": 1}
    assert answer["waiting"] == 1
    reasons = {it["candidate"]: it["reason"] for it in answer["candidates"]}
    assert reasons["home"].startswith("no node of home fits: requests cpu 1, 0 free")
    assert reasons["c"].startswith("no node of the remote fits")


async def test_room_that_is_about_to_be_published_is_unknown(
    home: Home, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.policy(tiers=TIERS[1:])
    home.api.remove(NODES, "c")
    home.joining("c")
    home.remote("e", 4000, cls="expensive")
    [answer] = answers(await read_snapshot(client), deployment(1))
    assert (answer["placed"], answer["waiting"]) == ({}, 1)
    outcomes = {it["candidate"]: it["outcome"] for it in answer["candidates"]}
    assert outcomes == {"home": "excluded", "c": "unknown", "e": "possible"}
    monkeypatch.setattr(cluster_snapshot, "utc_now", lambda: "2100-01-01T00:00:00Z")
    [answer] = answers(await read_snapshot(client), deployment(1))
    assert answer["placed"] == {"e": 1}, "its bridge had years to publish"


async def test_offloading_limits_the_policy(home: Home, client: KubeClient) -> None:
    home.policy()
    home.offload("remote-only")
    [answer] = answers(await read_snapshot(client), deployment(2))
    assert (answer["placed"], answer["waiting"]) == ({"c": 1}, 1)
    reasons = {it["candidate"]: it["reason"] for it in answer["candidates"]}
    assert reasons["home"] == "namespace default is offloaded remote-only (bridge offload)"


async def test_policies_of_a_file_replace_those_of_home(home: Home, client: KubeClient) -> None:
    home.policy()
    snapshot = await read_snapshot(client, [policy(tiers=TIERS[1:])])
    [answer] = answers(snapshot, deployment(1))
    assert (answer["policy"], answer["placed"]) == ("file", {"c": 1})


async def test_pods_without_policy_are_left_to_the_scheduler(
    home: Home, client: KubeClient
) -> None:
    home.policy()
    [answer] = answers(await read_snapshot(client), deployment(2, namespace="other"))
    assert answer["policy"] is None
    snapshot = await read_snapshot(client)
    text = simulation.as_text(
        simulation.as_json(
            snapshot, simulation.simulate(snapshot, [deployment(1, namespace="other")], "")
        )
    )
    assert "no PlacementPolicy is for it" in text


async def test_every_workload_counts_with_its_pods(home: Home, client: KubeClient) -> None:
    home.policy()
    template = deployment(1)["spec"]["template"]
    job = {
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": 2, "template": template},
    }
    cron = {
        "kind": "CronJob",
        "metadata": {"name": "n"},
        "spec": {"jobTemplate": {"spec": {"template": template}}},
    }
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": template["spec"]}
    listed = {"kind": "List", "items": [job, cron, pod, {"kind": "Service", "metadata": {}}]}
    found = answers(await read_snapshot(client), listed)
    assert [(it["kind"], it["pods"]) for it in found] == [("Job", 2), ("CronJob", 1), ("Pod", 1)]


async def test_nothing_is_written(home: Home, client: KubeClient) -> None:
    home.policy()
    home.api.clear_log()
    answers(await read_snapshot(client), deployment(3))
    assert not home.api.writes()


async def test_home_without_the_definition_can_be_simulated(
    api: FakeApi, client: KubeClient
) -> None:
    snapshot = await read_snapshot(client, [policy()])
    assert not snapshot.policies_defined
    [answer] = answers(snapshot, deployment(1))
    assert answer["waiting"] == 1
    assert "no schedulable node" in answer["candidates"][0]["reason"]
