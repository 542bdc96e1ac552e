"""The whole engine: bursts, faults at random, and secrets that stay secret."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest

from sync.base.background_task import background_task
from sync.kube.api_resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, SECRETS, Object
from sync.mirror.copy_controller import CopyController
from sync.namespaces.remote_namespace_creation import NamespaceMappingError
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import IDENTITY, REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    origin_of,
)


async def test_burst_of_pods_with_broken_watches_and_restarts_converges(
    harness: EngineHarness,
) -> None:
    rng = random.Random(11)
    harness.home.put(config_map("conf", data={"k": "v"}))
    await harness.start()
    names = [f"p{number:03}" for number in range(100)]
    for at, name in enumerate(names):
        harness.pod(name, uses=["cm/conf"], restartPolicy=rng.choice(["Always", "Never"]))
        if at % 20 == 10:
            api = rng.choice([harness.home, harness.remote])
            await api.stop()
            await asyncio.sleep(0.005)
            await api.start()
        elif at % 7 == 0:
            rng.choice([harness.home, harness.remote]).break_watches()
        elif at % 9 == 0:
            drop = Fault("POST", "*/pods", drop=rng.choice(["before", "after"]))
            harness.remote.fail(drop)
        elif at % 10 == 3:
            harness.remote.expire_watches(PODS)
        for pod in harness.remote.objects(PODS):
            if rng.random() < 0.2 and not pod["spec"].get("schedulingGates"):
                harness.report_running(pod["metadata"]["name"])
        await asyncio.sleep(0)
    await harness.settle()
    remote = {pod["metadata"]["name"]: pod for pod in harness.remote.objects(PODS)}
    failed = {name for name in names if harness.status(name).get("reason") == "RemotePodLost"}
    assert failed == set()
    assert set(remote) == set(names)
    for name in names:
        harness.report_running(name)
    await harness.settle()
    for name in names:
        home = harness.home_pod(name)
        origin = origin_of(remote[name])
        assert origin is not None
        assert origin.uid == home["metadata"]["uid"]
        assert home["status"]["phase"] == "Running"
    harness.clear_logs()
    for name in names:
        harness.home.delete(PODS, name, "default")
        harness.remote.break_watches() if rng.random() < 0.1 else None
    await harness.settle()
    for name in names:
        harness.remote.remove(PODS, name, REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.home.objects(PODS) == []
    assert harness.config_map() is None


async def test_a_pod_costs_few_requests(harness: EngineHarness) -> None:
    """Of a pod that comes, runs and goes: one create, three statuses, two deletions."""
    await harness.start()
    harness.pod("first")
    await harness.settle()
    harness.clear_logs()
    for number in range(10):
        harness.pod(f"p{number}")
    await harness.settle()
    for number in range(10):
        harness.report_running(f"p{number}")
    await harness.settle()
    for number in range(10):
        harness.home.delete(PODS, f"p{number}", "default")
    await harness.settle()
    for number in range(10):
        harness.remote.remove(PODS, f"p{number}", REMOTE_NAMESPACE)
    await harness.settle()
    counts: dict[tuple[str, str], int] = {}
    for side, api in (("home", harness.home), ("remote", harness.remote)):
        for entry in api.log:
            if not entry.watch:
                counts[side, entry.method] = counts.get((side, entry.method), 0) + 1
    assert counts[("remote", "POST")] == 10
    assert counts[("remote", "DELETE")] == counts[("home", "DELETE")] == 10
    assert counts[("home", "PATCH")] <= 30
    assert ("home", "GET") not in counts
    assert counts.get(("remote", "GET"), 0) == 0


async def test_nothing_is_written_before_every_cache_is_synced(harness: EngineHarness) -> None:
    async def was_hit(fault: Fault, times: int) -> None:
        await harness.remote.until(lambda: fault.hits == times)

    await harness.start_running()
    await harness.stop()
    harness.clear_logs()
    for path in ("/api/v1/pods", "/api/v1/configmaps", "/api/v1/namespaces", "/api/v1/nodes"):
        slow = harness.remote.fail(Fault("GET", path, code=500, times=4))
        await harness.start(settle=False)
        await was_hit(slow, 4)
        await harness.settle()
        assert harness.writes() == []
        await harness.stop()
    refused = harness.home.fail(Fault("GET", "/api/v1/pods", code=403, times=4))
    await harness.start(settle=False)
    await harness.home.until(lambda: refused.hits == 4)
    await harness.settle()
    assert harness.writes() == []


async def test_changed_namespace_mapping_is_rejected_while_pods_run(harness: EngineHarness) -> None:
    """Looked for where they are not, all pods would be started a second time."""
    await harness.start_running()
    await harness.stop()
    harness.clear_logs()

    harness.identity = replace(IDENTITY, home_name="other")
    await harness.start(settle=False)
    with pytest.raises(NamespaceMappingError, match=f"{REMOTE_NAMESPACE}.*default-other"):
        await harness.engine.synced()
    with pytest.raises(ExceptionGroup) as ended:
        await harness.wait_ended()
    assert ended.group_contains(NamespaceMappingError)
    assert harness.writes() == []


def _copied(harness: EngineHarness, namespace: str, *, labelled: bool) -> None:
    """A tenant of the remote copies the bridge's pod into a namespace of their own, and perhaps the
    namespace's labels and annotations too."""
    ours = harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]
    meta = {key: ours[key] for key in ("labels", "annotations")} if labelled else {}
    copy = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, **meta}}
    harness.remote.put(copy)
    pod = harness.remote.get(PODS, "a", REMOTE_NAMESPACE)
    kept = {key: pod["metadata"][key] for key in ("name", "labels", "annotations")}
    harness.remote.put({**pod, "metadata": {**kept, "namespace": namespace}})


@pytest.mark.parametrize("labelled", [False, True], ids=["own namespace", "forged namespace"])
async def test_copied_pod_in_a_tenants_namespace_does_not_block_the_start(
    harness: EngineHarness, labelled: bool
) -> None:
    harness.identity = replace(IDENTITY, accepted_namespaces=())
    await harness.start_running()
    _copied(harness, "tenant", labelled=labelled)
    await harness.settle()
    await harness.stop()
    await harness.start()
    assert harness.status()["phase"] == "Running"
    harness.pod("b")
    await harness.settle()
    assert harness.remote_pod("b")
    assert harness.remote.find(PODS, "a", "tenant")


async def test_pod_with_a_forged_origin_does_not_block_the_start(harness: EngineHarness) -> None:
    """The bridge creates no pod of another home namespace in the namespace."""
    await harness.start_running()
    pod = harness.remote.get(PODS, "a", REMOTE_NAMESPACE)
    meta = {key: pod["metadata"][key] for key in ("labels", "annotations", "namespace")}
    forged = {ANNOTATION_HOME_NAMESPACE: "another", ANNOTATION_HOME_UID: "forged"}
    meta |= {"name": "forged", "annotations": {**meta["annotations"], **forged}}
    harness.remote.put({**pod, "metadata": meta})
    await harness.settle()
    await harness.restart()
    assert harness.status()["phase"] == "Running"
    assert harness.remote.find(PODS, "forged", REMOTE_NAMESPACE)


async def test_changed_namespace_mapping_is_rejected_while_pods_outlive_their_home_pods(
    harness: EngineHarness,
) -> None:
    await harness.start_running()
    await harness.stop()
    harness.home.remove(PODS, "a", "default")
    harness.identity = replace(IDENTITY, home_name="other")
    await harness.start(settle=False)
    with pytest.raises(ExceptionGroup) as ended:
        await harness.wait_ended()
    assert ended.group_contains(NamespaceMappingError)


async def test_changed_namespace_mapping_is_rejected_while_pods_run_in_a_granted_namespace(
    harness: EngineHarness,
) -> None:
    meta: Object = {"name": REMOTE_NAMESPACE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await harness.start_running()
    await harness.stop()
    harness.identity = replace(IDENTITY, namespace_template="{namespace}")
    await harness.start(settle=False)
    with pytest.raises(ExceptionGroup) as ended:
        await harness.wait_ended()
    assert ended.group_contains(NamespaceMappingError)


async def test_unreachable_home_stops_nothing_in_the_remote(harness: EngineHarness) -> None:
    await harness.start_running()
    harness.clear_logs()
    await harness.home.stop()
    harness.report_running(message="still here")
    await asyncio.sleep(0.05)
    assert harness.remote.writes() == []
    await harness.home.start()
    await harness.settle()
    assert harness.status()["message"] == "still here"


async def test_failed_keys_are_retried_when_the_cluster_is_reachable_again(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.start()
    harness.pod("first")
    await harness.settle()
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_FIRST", 600.0)
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 600.0)
    await harness.remote.stop()
    harness.pod("late")
    queue = harness.engine.pods.controller.queue
    await harness.home.until(lambda: queue.delayed > 0)
    await harness.remote.start()
    await harness.remote.until(lambda: harness.remote_pod("late"))


async def test_no_secret_is_in_logs_events_or_statuses(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    canary, encoded = "cAnArY-12345", "Y0FuQXJZLTEyMzQ1"
    harness.home.put(secret("key", data={"k": encoded}))
    await harness.start()
    harness.pod(uses=["secret/key"])
    refuse = [
        Fault("POST", "*/secrets", code=422, message="refused"),
        Fault("POST", "*/secrets", code=500, raw=f'{{"data": "{encoded}"}}'.encode()),
        Fault("POST", "*/secrets", drop="before"),
        Fault("GET", "*/secrets", raw=f"<{canary} {encoded}".encode(), watch=True),
    ]
    for fault in refuse:
        harness.remote.fail(fault)
        harness.home.fail(fault)
    await harness.settle()
    harness.remote.break_watches(SECRETS)
    harness.home.break_watches(SECRETS)
    await harness.settle()
    harness.home.put(secret("key", data={"k": encoded, "l": encoded}))
    await harness.settle()
    assert (harness.secret() or {})["data"]["l"] == encoded
    output = caplog.text + str(harness.home.objects(EVENTS)) + str(harness.status())
    output += repr(harness.engine.find(CopyController).controller) + repr(harness.engine.informers)
    for word in (canary, encoded):
        assert word not in output
    assert any("secrets" in record.getMessage() for record in caplog.records)


async def test_two_homes_share_a_remote_without_touching_each_other(harness: EngineHarness) -> None:
    labels = {LABEL_HOME: "ffff", LABEL_NODE: harness.identity.node_label}
    other = {
        ANNOTATION_HOME_NAMESPACE: "default",
        ANNOTATION_HOME_NAME: "a",
        ANNOTATION_HOME_UID: "1",
    }
    theirs = config_map("conf", "default-other", data={"k": "v"})
    theirs["metadata"] |= {"labels": labels, "annotations": other}
    before = harness.remote.put(theirs)
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.settle()
    assert harness.remote.get(CONFIG_MAPS, "conf", "default-other") == before


async def churn(harness: EngineHarness) -> None:
    """Pods, their copies and Events come and go on both sides, as another bridge serves them."""
    for number in range(60):
        name = f"gone-{number}"
        harness.home.put(config_map(name))
        harness.pod(name, uses=[f"cm/{name}"])
        if number % 2:
            harness.home.remove(PODS, name, "default")
            harness.home.remove(CONFIG_MAPS, name, "default")
    await asyncio.sleep(0.02)


async def test_standby_queues_nothing_and_reconciles_all_at_takeover(
    harness: EngineHarness,
) -> None:
    """An earlier bridge left a pod without a home pod, a copy without an original, and namespaces
    without pods; another pod is new."""
    harness.namespace_linger = 0.0
    harness.home.put(config_map("conf", data={"k": "v"}))
    await harness.start()
    for name in ("stays", "orphan"):
        harness.pod(name, uses=["cm/conf"])
    harness.pod("last", namespace="emptied")
    await harness.settle()
    for name in ("stays", "orphan"):
        harness.report_running(name)
    await harness.settle()
    await harness.stop()

    async with harness.standing_by() as engine:
        for name, namespace in (("orphan", "default"), ("last", "emptied")):
            harness.home.remove(PODS, name, namespace)
        harness.pod("new", uses=["cm/conf"])
        await churn(harness)
        await harness.caught_up()
        queues = [it.queue for it in engine.controllers]
        assert sum(len(it) + it.delayed + len(it.working) for it in queues) == 0
        assert sum(it.adds for it in queues) == 0

        await harness.take_over()
        kept = [f"gone-{number}" for number in range(0, 60, 2)]
        await harness.remote.until(lambda: all(harness.remote_pod(it) for it in [*kept, "new"]))
        await harness.settle()
        assert not any(harness.remote_pod(f"gone-{number}") for number in range(1, 60, 2))
        assert harness.remote_pod("stays")
        orphan = harness.remote_pod("orphan")
        assert orphan is None or orphan["metadata"].get("deletionTimestamp")
        assert harness.config_map("gone-0")
        assert harness.config_map("gone-1") is None
        await harness.remote.until(lambda: harness.remote.find(NAMESPACES, "emptied-h") is None)


async def test_takeover_uses_a_namespace_as_the_previous_leader_left_it(
    harness: EngineHarness,
) -> None:
    """It has removed this node as a user, and its DELETE on that condition is in flight."""
    await harness.start_running()
    await harness.stop()
    harness.home.remove(PODS, "a", "default")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    async with harness.standing_by() as engine:
        harness.remote.mute_watches()
        annotations = harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]["annotations"]
        (used_by,) = [key for key in annotations if key.startswith("used-by.")]
        change: Object = {"metadata": {"annotations": {used_by: None}}}
        released = harness.remote.update(NAMESPACES, REMOTE_NAMESPACE, change)
        await engine.refresh()
        harness.pod("next")
        async with background_task(engine.work(), name="work"):
            await harness.remote.until(lambda: harness.remote_pod("next"))
        harness.remote.unmute_watches()
        namespace = harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)
        assert used_by in namespace["metadata"]["annotations"]
        assert namespace["metadata"]["resourceVersion"] != released["metadata"]["resourceVersion"]
