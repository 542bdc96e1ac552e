"""The admission check `cluster-bridge.io/fits` against a fake home; the test plays Kueue."""

from __future__ import annotations

import pytest

from sync.kube.api_resources import (
    KUEUE_ADMISSION_CHECKS,
    KUEUE_RESOURCE_FLAVORS,
    KUEUE_WORKLOADS,
    PODS,
)
from sync.kueue import fits_controller, home_view
from tests import kueue_objects as objects
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi
from tests.kueue_objects import nodes, pod_set
from tests.sync.kueue.kueue_at_home import KueueAtHome, deciding, settle


@pytest.fixture
def kueue(api: FakeApi) -> KueueAtHome:
    """Home with Kueue."""
    return KueueAtHome(api)


async def test_check_is_marked_active_and_others_are_left_alone(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    api.put(objects.admission_check("other", "example.com/other"))
    async with deciding(await client_for(api, "home")) as controller:
        await settle(controller, api)
    check = api.get(KUEUE_ADMISSION_CHECKS, objects.CHECK)
    assert [(it["type"], it["status"]) for it in check["status"]["conditions"]] == [
        ("Active", "True")
    ]
    assert "conditions" not in (api.get(KUEUE_ADMISSION_CHECKS, "other").get("status") or {})


async def test_workload_is_admitted_to_the_remote_that_holds_all_of_it(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("small", nodes(3, 2))
    kueue.join("large", nodes(2, 8))
    async with deciding(await client_for(api, "home")):
        kueue.submit("train", pod_set(4, "4"))
        entry = await kueue.until_state("train", "Ready")
    assert kueue.node("train") == "large"
    assert entry["podSetUpdates"][0]["tolerations"] == [
        {"key": objects.VIRTUAL, "operator": "Exists"}
    ]
    assert entry["message"] == "all pods fit large"


async def test_workload_that_fits_nowhere_waits_and_names_each_remote(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(3, 2))
    kueue.register("silent")
    kueue.join("lost", nodes(9, 9), ready=False)
    async with deciding(await client_for(api, "home")):
        kueue.submit("train", pod_set(4, "2"))
        message = await kueue.until_refused("train")
    assert "podSetUpdates" not in kueue.entry("train")
    assert message.startswith("no remote can hold all pods: lost: pod set main: node.status")
    assert "one: its nodes have no room for all 4 pods together" in message
    assert "silent: publishes no free room" in message


async def test_change_of_room_ends_the_wait(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(1, 2))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("train", pod_set(2, "2"))
        await kueue.until_refused("train")
        await settle(controller, api)
        assert kueue.entry("train")["state"] == "Pending"
        kueue.publish("one", nodes(1, 3))
        await settle(controller, api)
        assert kueue.entry("train")["state"] == "Pending"

        kueue.publish("one", nodes(1, 4))
        await kueue.until_state("train", "Ready")


async def test_change_of_room_ends_the_wait_after_a_restart(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(1, 2))
    home = await client_for(api, "home")
    async with deciding(home):
        kueue.submit("train", pod_set(2, "2"))
        await kueue.until_refused("train")
    async with deciding(home) as controller:
        await settle(controller, api)
        assert kueue.entry("train")["state"] == "Pending"
        kueue.publish("one", nodes(1, 4))
        await kueue.until_state("train", "Ready")


async def test_quota_is_released_for_others_after_a_while(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only while another Workload waits for quota; and then behind that one."""
    monkeypatch.setattr(fits_controller, "HOLD_SECONDS", 0.05)
    kueue.join("one", nodes(1, 2))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("large", pod_set(9, "2"))
        await kueue.until_refused("large")
        await api.until(lambda: not controller.controller.queue.delayed)
        await settle(controller, api)
        assert kueue.entry("large")["state"] == "Pending"

        api.put(objects.workload("small", pod_set(1, "1")))
        entry = await kueue.until_state("large", "Retry")
        # Kueue would keep the quota for that time.
        assert "requeueAfterSeconds" not in entry
        kueue.evict("large")
        kueue.reserve("small")
        await kueue.until_state("small", "Ready")


async def test_room_for_one_is_promised_to_one(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    """No pod of the first runs yet, so the published room still shows all of it as free."""
    kueue.join("one", nodes(1, 4))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("first", pod_set(2, "2"))
        kueue.submit("second", pod_set(2, "2"))
        await kueue.until_state("first", "Ready")
        message = await kueue.until_refused("second")
        assert "beside 2 promised pods" in message
        kueue.finish("first")
        await kueue.until_state("second", "Ready")
        await settle(controller, api)


async def test_promises_survive_a_restart(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(1, 4))
    home = await client_for(api, "home")
    async with deciding(home):
        kueue.submit("first", pod_set(2, "2"))
        await kueue.until_state("first", "Ready")
    kueue.submit("second", pod_set(1, "1"))
    async with deciding(home):
        await kueue.until_refused("second")
    assert kueue.entry("first")["state"] == "Ready"


@pytest.mark.real_time  # HomeView compares times in two ways, which differ by rounding
async def test_running_pod_is_promised_until_the_room_accounts_for_it(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge publishes a little later; then the promise ends without any other event."""
    monkeypatch.setattr(home_view, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(fits_controller, "COLLECT_SECONDS", 0.01)
    kueue.join("one", nodes(1, 4))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("first", pod_set(1, "2"))
        await kueue.until_state("first", "Ready")
        kueue.submit("second", pod_set(1, "3"))
        await kueue.until_refused("second")
        # The remote has grown, and the first pod runs in it.
        kueue.publish("one", nodes(1, 3))
        kueue.pod("first", "first-0", node="one", phase="Running")
        await settle(controller, api)
        assert kueue.entry("second")["state"] == "Pending"
        await kueue.until_state("second", "Ready")


async def test_room_that_knows_a_bound_pod_ends_its_promise(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    """The pod has no node in the remote yet: its bridge subtracts it nevertheless."""
    kueue.join("one", nodes(1, 4))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("first", pod_set(1, "2"))
        await kueue.until_state("first", "Ready")
        kueue.submit("second", pod_set(1, "3"))
        await kueue.until_refused("second")
        kueue.pod("first", "first-0", node="one")
        kueue.publish("one", nodes(1, 3))
        await settle(controller, api)
        assert kueue.entry("second")["state"] == "Pending"
        kueue.publish("one", nodes(1, 3), knows="first-0")
        await kueue.until_state("second", "Ready")


async def test_pods_of_home_count_against_the_nodes_offer(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    """The join offers four cores of a large remote, and a pod that is no Workload's uses three."""
    kueue.join("one", nodes(9, 9), cpu="4")
    api.put(objects.pod_of("", "web", node="one", phase="Running", cpu="3"))
    async with deciding(await client_for(api, "home")):
        kueue.submit("train", pod_set(1, "2"))
        await kueue.until_refused("train")
        api.delete(PODS, "web", "default", grace_seconds=0)
        await kueue.until_state("train", "Ready")


async def test_room_goes_to_the_highest_priority(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(1, 1))
    async with deciding(await client_for(api, "home")) as controller:
        for name, priority in (("a", 0), ("b", 10), ("c", 5)):
            kueue.submit(name, pod_set(1, "4"), priority=priority)
            await kueue.until_refused(name)
        await settle(controller, api)
        kueue.publish("one", nodes(1, 4))
        await kueue.until_state("b", "Ready")
        await settle(controller, api)
        assert [kueue.entry(it)["state"] for it in "ac"] == ["Pending", "Pending"]


async def test_lost_remote_keeps_started_workloads_and_a_reconnect_evicts_nothing(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits_controller, "LOST_SECONDS", 0.0)
    kueue.join("one", nodes(1, 8))
    kueue.join("two", nodes(1, 9))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("train", pod_set(2, "4"))
        await kueue.until_state("train", "Ready")
        assert kueue.node("train") == "one"
        kueue.pod("train", "train-0", node="one", phase="Running")
        await settle(controller, api)
        before = kueue.workload("train")["metadata"]["resourceVersion"]
        kueue.report_ready("one", ready=False)
        await settle(controller, api)
        kueue.report_ready("one", ready=True)
        # The remote shows less room than it had: its nodes come back one by one.
        kueue.publish("one")
        await settle(controller, api)
        assert kueue.workload("train")["metadata"]["resourceVersion"] == before


async def test_workload_that_has_not_started_moves_from_a_lost_remote(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only after a while, and only if another remote holds all of it."""
    monkeypatch.setattr(fits_controller, "LOST_SECONDS", 0.2)
    kueue.join("one", nodes(1, 8))
    kueue.join("two", nodes(1, 9))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("moves", pod_set(2, "4"))
        await kueue.until_state("moves", "Ready")
        kueue.pod("moves", "moves-0")
        await settle(controller, api)
        kueue.report_ready("one", ready=False)
        entry = await kueue.until_state("moves", "Retry")
        assert entry["message"] == "one was lost before a pod started; all pods fit two"
        assert "requeueAfterSeconds" not in entry
        kueue.evict("moves")
        kueue.reserve("moves")
        await kueue.until_state("moves", "Ready")
        assert kueue.node("moves") == "two"

        kueue.report_ready("two", ready=False)
        await settle(controller, api)
    assert kueue.entry("moves")["state"] == "Ready"


async def test_short_outage_moves_nothing(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(1, 8))
    kueue.join("two", nodes(1, 9))
    async with deciding(await client_for(api, "home")) as controller:
        kueue.submit("train", pod_set(2, "4"))
        await kueue.until_state("train", "Ready")
        kueue.report_ready("one", ready=False)
        await settle(controller, api)
        kueue.report_ready("one", ready=True)
        await settle(controller, api)
    assert kueue.entry("train")["state"] == "Ready"


async def test_flavor_narrows_the_remotes(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    """The label of a flavor, and its change, decide which virtual nodes are candidates."""
    kueue.join("one", nodes(1, 8), labels={"tier": "own"})
    kueue.join("two", nodes(1, 9), labels={"tier": "cloud"})
    api.put(objects.flavor(tier="none"))
    async with deciding(await client_for(api, "home")):
        kueue.submit("train", pod_set(1, "4"))
        message = await kueue.until_refused("train")
        assert "spec.nodeSelector[tier]" in message
        api.put(objects.flavor(tier="cloud"))
        await kueue.until_state("train", "Ready")
    assert kueue.node("train") == "two"


async def test_broken_room_of_another_writer_is_no_room(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    kueue.join("one", nodes(1, 8))
    api.put(objects.room("one", '[{"free": {"cpu": -1}}]'))
    async with deciding(await client_for(api, "home")):
        kueue.submit("train", pod_set(1, "4"))
        message = await kueue.until_refused("train")
    assert "one: publishes no free room" in message


async def test_conflicting_writer_leads_to_another_decision(
    kueue: KueueAtHome, api: FakeApi, client_for: ClientFor
) -> None:
    """Every write names the version that it was decided on."""
    kueue.join("one", nodes(1, 8))
    async with deciding(await client_for(api, "home")):
        kueue.submit("train", pod_set(1, "4"))
        await kueue.until_state("train", "Ready")
    (write,) = api.writes("*/workloads/*")
    assert write.path.endswith("/workloads/train/status")
    assert write.body["metadata"].keys() == {"uid", "resourceVersion"}
    assert api.get(KUEUE_WORKLOADS, "train", "default")["spec"]["queueName"] == objects.QUEUE
    assert api.find(KUEUE_RESOURCE_FLAVORS, objects.FLAVOR)
