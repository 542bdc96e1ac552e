"""The whole engine: bursts, faults at random, and secrets that stay secret."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest

from sync.kube.resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, SECRETS, Object
from sync.mirror.copy_controller import CopyController
from sync.namespaces.namespace_mapping import NamespaceMappingError
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.world import IDENTITY, THERE, World
from translators.identity import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    origin_of,
)


async def test_burst_of_pods_with_broken_watches_and_restarts_converges(
    world: World,
) -> None:
    rng = random.Random(11)
    world.home.put(config_map("conf", data={"k": "v"}))
    await world.start()
    names = [f"p{number:03}" for number in range(100)]
    for at, name in enumerate(names):
        world.pod(name, uses=["cm/conf"], restartPolicy=rng.choice(["Always", "Never"]))
        if at % 20 == 10:
            api = rng.choice([world.home, world.remote])
            await api.stop()
            await asyncio.sleep(0.005)
            await api.start()
        elif at % 7 == 0:
            rng.choice([world.home, world.remote]).break_watches()
        elif at % 9 == 0:
            drop = Fault("POST", "*/pods", drop=rng.choice(["before", "after"]))
            world.remote.fail(drop)
        elif at % 10 == 3:
            world.remote.expire_watches(PODS)
        for pod in world.remote.objects(PODS):
            if rng.random() < 0.2 and not pod["spec"].get("schedulingGates"):
                world.runs(pod["metadata"]["name"])
        await asyncio.sleep(0)
    await world.settle()
    remote = {pod["metadata"]["name"]: pod for pod in world.remote.objects(PODS)}
    failed = {name for name in names if world.status(name).get("reason") == "RemotePodLost"}
    assert failed == set()
    assert set(remote) == set(names)
    for name in names:
        world.runs(name)
    await world.settle()
    for name in names:
        home = world.home_pod(name)
        origin = origin_of(remote[name])
        assert origin is not None
        assert origin.uid == home["metadata"]["uid"]
        assert home["status"]["phase"] == "Running"
    world.clear_logs()
    for name in names:
        world.home.delete(PODS, name, "default")
        world.remote.break_watches() if rng.random() < 0.1 else None
    await world.settle()
    for name in names:
        world.remote.remove(PODS, name, THERE)
    await world.settle()
    assert world.home.objects(PODS) == []
    assert world.config_map() is None


async def test_a_pod_costs_few_requests(world: World) -> None:
    """Of a pod that comes, runs and goes: one create, three statuses, two deletions."""
    await world.start()
    world.pod("first")
    await world.settle()
    world.clear_logs()
    for number in range(10):
        world.pod(f"p{number}")
    await world.settle()
    for number in range(10):
        world.runs(f"p{number}")
    await world.settle()
    for number in range(10):
        world.home.delete(PODS, f"p{number}", "default")
    await world.settle()
    for number in range(10):
        world.remote.remove(PODS, f"p{number}", THERE)
    await world.settle()
    counts: dict[tuple[str, str], int] = {}
    for side, api in (("home", world.home), ("remote", world.remote)):
        for entry in api.log:
            if not entry.watch:
                counts[side, entry.method] = counts.get((side, entry.method), 0) + 1
    assert counts[("remote", "POST")] == 10
    assert counts[("remote", "DELETE")] == counts[("home", "DELETE")] == 10
    assert counts[("home", "PATCH")] <= 30
    assert ("home", "GET") not in counts
    assert counts.get(("remote", "GET"), 0) == 0


async def test_nothing_is_written_before_every_cache_is_synced(world: World) -> None:
    await world.start_running()
    await world.stop()
    world.clear_logs()
    for path in ("/api/v1/pods", "/api/v1/configmaps", "/api/v1/namespaces", "/api/v1/nodes"):
        slow = world.remote.fail(Fault("GET", path, code=500, times=4))
        await world.start(settle=False)
        await world.remote.until(lambda slow=slow: slow.hits == 4)  # type: ignore[misc]
        await world.settle()
        assert world.writes() == []
        await world.stop()
    refused = world.home.fail(Fault("GET", "/api/v1/pods", code=403, times=4))
    await world.start(settle=False)
    await world.home.until(lambda: refused.hits == 4)
    await world.settle()
    assert world.writes() == []


async def test_changed_namespace_mapping_is_rejected_while_pods_run(
    world: World,
) -> None:
    """Looked for where they are not, all pods would be started a second time."""
    await world.start_running()
    await world.stop()
    world.clear_logs()

    world.identity = replace(IDENTITY, home_name="other")
    await world.start(settle=False)
    with pytest.raises(NamespaceMappingError, match=f"{THERE}.*default-other"):
        await world.engine.synced()
    with pytest.raises(ExceptionGroup) as ended:
        await world.ended()
    assert ended.group_contains(NamespaceMappingError)
    assert world.writes() == []


def _copied(world: World, namespace: str, *, labelled: bool) -> None:
    """A tenant of the remote copies the bridge's pod into a namespace of their own, and perhaps the
    namespace's labels and annotations too."""
    ours = world.remote.get(NAMESPACES, THERE)["metadata"]
    meta = {key: ours[key] for key in ("labels", "annotations")} if labelled else {}
    copy = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, **meta}}
    world.remote.put(copy)
    pod = world.remote.get(PODS, "a", THERE)
    kept = {key: pod["metadata"][key] for key in ("name", "labels", "annotations")}
    world.remote.put({**pod, "metadata": {**kept, "namespace": namespace}})


@pytest.mark.parametrize("labelled", [False, True], ids=["own namespace", "forged namespace"])
async def test_copied_pod_in_a_tenants_namespace_does_not_block_the_start(
    world: World, labelled: bool
) -> None:
    world.identity = replace(IDENTITY, accepted_namespaces=())
    await world.start_running()
    _copied(world, "tenant", labelled=labelled)
    await world.settle()
    await world.stop()
    await world.start()
    assert world.status()["phase"] == "Running"
    world.pod("b")
    await world.settle()
    assert world.remote_pod("b")
    assert world.remote.find(PODS, "a", "tenant")


async def test_changed_namespace_mapping_is_rejected_while_pods_run_in_a_granted_namespace(
    world: World,
) -> None:
    meta: Object = {"name": THERE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await world.start_running()
    await world.stop()
    world.identity = replace(IDENTITY, namespace_template="{namespace}")
    await world.start(settle=False)
    with pytest.raises(ExceptionGroup) as ended:
        await world.ended()
    assert ended.group_contains(NamespaceMappingError)


async def test_unreachable_home_stops_nothing_in_the_remote(world: World) -> None:
    await world.start_running()
    world.clear_logs()
    await world.home.stop()
    world.runs(message="still here")
    await asyncio.sleep(0.05)
    assert world.remote.writes() == []
    await world.home.start()
    await world.settle()
    assert world.status()["message"] == "still here"


async def test_failed_keys_are_retried_when_the_cluster_is_reachable_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start()
    world.pod("first")
    await world.settle()
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_FIRST", 600.0)
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 600.0)
    await world.remote.stop()
    world.pod("late")
    queue = world.engine.pods.controller.queue
    await world.home.until(lambda: queue._later)
    await world.remote.start()
    await world.remote.until(lambda: world.remote_pod("late"))


async def test_no_secret_is_in_logs_events_or_statuses(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    canary, encoded = "cAnArY-12345", "Y0FuQXJZLTEyMzQ1"
    world.home.put(secret("key", data={"k": encoded}))
    await world.start()
    world.pod(uses=["secret/key"])
    refuse = [
        Fault("POST", "*/secrets", code=422, message="refused"),
        Fault("POST", "*/secrets", code=500, raw=f'{{"data": "{encoded}"}}'.encode()),
        Fault("POST", "*/secrets", drop="before"),
        Fault("GET", "*/secrets", raw=f"<{canary} {encoded}".encode(), watch=True),
    ]
    for fault in refuse:
        world.remote.fail(fault)
        world.home.fail(fault)
    await world.settle()
    world.remote.break_watches(SECRETS)
    world.home.break_watches(SECRETS)
    await world.settle()
    world.home.put(secret("key", data={"k": encoded, "l": encoded}))
    await world.settle()
    assert (world.secret() or {})["data"]["l"] == encoded
    said = caplog.text + str(world.home.objects(EVENTS)) + str(world.status())
    said += repr(world.engine.find(CopyController).controller) + repr(world.engine.informers)
    for word in (canary, encoded):
        assert word not in said
    assert any("secrets" in record.getMessage() for record in caplog.records)


async def test_two_homes_share_a_remote_without_touching_each_other(world: World) -> None:
    labels = {LABEL_HOME: "ffff", LABEL_NODE: world.identity.node_label}
    other = {
        ANNOTATION_HOME_NAMESPACE: "default",
        ANNOTATION_HOME_NAME: "a",
        ANNOTATION_HOME_UID: "1",
    }
    theirs = config_map("conf", "default-other", data={"k": "v"})
    theirs["metadata"] |= {"labels": labels, "annotations": other}
    before = world.remote.put(theirs)
    await world.start()
    world.pod()
    await world.settle()
    world.home.delete(PODS, "a", "default", grace_seconds=0)
    await world.settle()
    assert world.remote.get(CONFIG_MAPS, "conf", "default-other") == before


# -- standing by ---------------------------------------------------------------------------


async def churn(world: World) -> None:
    """Pods, their copies and Events come and go on both sides, as another bridge serves them."""
    for number in range(60):
        name = f"gone-{number}"
        world.home.put(config_map(name))
        world.pod(name, uses=[f"cm/{name}"])
        if number % 2:
            world.home.remove(PODS, name, "default")
            world.home.remove(CONFIG_MAPS, name, "default")
    await asyncio.sleep(0.02)


async def test_standby_queues_nothing_and_reconciles_all_at_takeover(world: World) -> None:
    """An earlier bridge left a pod without a home pod, a copy without an original, and namespaces
    that nobody needs; another pod is new."""
    world.namespace_linger = 0.0
    world.home.put(config_map("conf", data={"k": "v"}))
    await world.start()
    for name in ("stays", "orphan"):
        world.pod(name, uses=["cm/conf"])
    world.pod("last", namespace="emptied")
    await world.settle()
    for name in ("stays", "orphan"):
        world.runs(name)
    await world.settle()
    await world.stop()

    async with world.standing_by() as engine:
        for name, namespace in (("orphan", "default"), ("last", "emptied")):
            world.home.remove(PODS, name, namespace)
        world.pod("new", uses=["cm/conf"])
        await churn(world)
        await world.caught_up()
        queues = [it.queue for it in engine.controllers]
        assert sum(len(it) + it.delayed + len(it.working) for it in queues) == 0
        assert sum(it.adds for it in queues) == 0

        await world.take_over()
        kept = [f"gone-{number}" for number in range(0, 60, 2)]
        await world.remote.until(lambda: all(world.remote_pod(it) for it in [*kept, "new"]))
        await world.settle()
        assert not any(world.remote_pod(f"gone-{number}") for number in range(1, 60, 2))
        assert world.remote_pod("stays")
        orphan = world.remote_pod("orphan")
        assert orphan is None or orphan["metadata"].get("deletionTimestamp")
        assert world.config_map("gone-0")
        assert world.config_map("gone-1") is None
        await world.remote.until(lambda: world.remote.find(NAMESPACES, "emptied-h") is None)
