"""The caches bound the memory of a bridge process, not the data that passes through.

The tests check ratios, which hold on any machine; absolute numbers are in
docs/development/performance.md.
"""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.api_resources import CONFIG_MAPS, PODS, Object
from tests.bridge.join_process import JoinProcess, join_process
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.objects import config_map, pod, service_account
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE, EngineHarness

#: Bytes of a huge object: nearly the most that an API server accepts.
HUGE = 1_400_000
#: Number of huge objects in a namespace.
MANY = 30
#: Seconds until the bridge has processed all changes.
PATIENCE = 40.0

#: Each test starts a process and sends many megabytes.
pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def using(name: str, config: str) -> Object:
    """A pod on the node that refers to a ConfigMap."""
    made = pod(name, node=NODE)
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    return made


async def at_rest(two: Clusters, process: JoinProcess, harness: EngineHarness) -> int:
    """Resident bytes after a first pod, with the modules and watches that it needs."""
    await process.wait_for_output("is registered")
    two.home.put(config_map("small", data={"k": "v"}))
    two.home.put(using("first", "small"))
    await two.remote.until(lambda: harness.remote_pod("first"), timeout=PATIENCE)
    await asyncio.sleep(0.3)
    process.reset_peak()
    return process.resident_bytes()


async def test_huge_objects_need_little_more_memory_than_the_cache(two: Clusters) -> None:
    """A namespace's first pod causes one list of all of them; one is copied."""
    harness = EngineHarness(two.home, two.remote)
    for number in range(MANY):
        two.home.put(config_map(f"huge-{number}", "shop", data={"k": f"{number:03}" * (HUGE // 3)}))
    # home's controller-manager creates it in every namespace
    two.home.put(service_account("default", "shop"))
    two.home.put(config_map("kube-root-ca.crt", "shop", data={"ca.crt": "home's CA"}))
    made = using("web", "huge-7")
    made["metadata"]["namespace"] = "shop"
    async with join_process(two) as process:
        before = await at_rest(two, process, harness)
        two.home.put(made)
        await two.remote.until(lambda: two.remote.find(PODS, "web", "shop-h"), timeout=PATIENCE)
        copied = two.remote.get(CONFIG_MAPS, "huge-7", "shop-h")
        assert len(copied["data"]["k"]) > HUGE - 3
        kept = HUGE * (MANY + 2)
        grown = process.resident_bytes(peak=True) - before
        print(f"huge objects: {grown / kept:.2f} times what is kept, at the peak")
        assert grown < 2.5 * kept


async def test_frequent_changes_of_a_huge_object_do_not_accumulate(two: Clusters) -> None:
    """Each change is 1.4 MB and returns from the remote too: about 20 times that is in flight at
    once, however many changes there are."""
    harness = EngineHarness(two.home, two.remote)
    changes = 80
    async with join_process(two) as process:
        before = await at_rest(two, process, harness)
        for number in range(changes):
            huge = {"data": {"k": f"{number:03}" * (HUGE // 3)}}
            two.home.update(CONFIG_MAPS, "small", huge, "default")
            await asyncio.sleep(0.02)
        last = f"{changes - 1:03}"
        await two.remote.until(
            lambda: two.remote.get(CONFIG_MAPS, "small", REMOTE_NAMESPACE)["data"]["k"].startswith(
                last
            ),
            timeout=PATIENCE,
        )
        grown = process.resident_bytes(peak=True) - before
        print(f"changes of a huge object: {grown / HUGE:.1f} times one, of {changes}")
        assert grown < changes / 2 * HUGE


async def test_many_watch_events_with_a_slow_home_do_not_accumulate(two: Clusters) -> None:
    """Pending changes of an object are merged into one write of its latest state."""
    harness = EngineHarness(two.home, two.remote)
    pods, rounds, note = 20, 100, 20_000
    async with join_process(two) as process:
        before = await at_rest(two, process, harness)
        for number in range(pods):
            two.home.put(pod(f"p{number}", node=NODE))
        await two.remote.until(
            lambda: all(harness.remote_pod(f"p{number}") for number in range(pods)),
            timeout=PATIENCE,
        )
        two.home.fail(Fault("PATCH", "*", delay=0.2, times=None))
        process.reset_peak()
        for turn in range(rounds):
            for number in range(pods):
                status = {"phase": "Running", "message": f"{turn:03}" * (note // 3)}
                two.remote.update(PODS, f"p{number}", {"status": status}, REMOTE_NAMESPACE)
            await asyncio.sleep(0.01)
        last = f"{rounds - 1:03}"
        await two.home.until(
            lambda: all(
                harness.status(f"p{number}").get("message", "").startswith(last)
                for number in range(pods)
            ),
            timeout=PATIENCE,
        )
        flood = pods * rounds * note
        grown = process.resident_bytes(peak=True) - before
        print(f"a flood: {grown / flood:.2f} of what came")
        assert grown < flood / 2
