"""Home's ConfigMaps and Secrets are read by name, while pods refer to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sync.cache.informer import Informer
from sync.kube.api_resources import CONFIG_MAPS, EVENTS, PODS, SECRETS
from sync.references import reference_watches
from tests.fakeapi import Fault
from tests.fakeapi.request_log import LoggedRequest
from tests.objects import config_map, secret, service_account
from tests.sync.engine_harness import EngineHarness

CONFIG_MAPS_PATH = "*/namespaces/default/configmaps"


def home_watches(harness: EngineHarness) -> list[str]:
    """The field selectors of home's open watches of ConfigMaps and Secrets."""
    return sorted(
        watch.query.get("fieldSelector", "")
        for resource in (CONFIG_MAPS, SECRETS)
        for watch in harness.home.open_watches(resource)
    )


def reads(harness: EngineHarness) -> list[LoggedRequest]:
    """The lists and watches of home's ConfigMaps and Secrets."""
    secrets = harness.home.requests("GET", "*/namespaces/default/secrets")
    return [*harness.home.requests("GET", CONFIG_MAPS_PATH), *secrets]


async def test_only_objects_that_pods_refer_to_are_read(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    for number in range(20):
        harness.home.put(config_map(f"other-{number}"))
        harness.home.put(secret(f"other-{number}"))
    await harness.start_running(uses=["cm/conf", "secret/key"])
    assert {it.query["fieldSelector"] for it in reads(harness)} == {
        "metadata.name=conf",
        "metadata.name=key",
    }
    assert home_watches(harness) == ["metadata.name=conf", "metadata.name=key"]


async def test_pods_share_the_watch_of_an_object(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await harness.start()
    for number in range(30):
        harness.pod(f"pod-{number}", uses=["cm/conf"])
    await harness.remote.until(lambda: len(harness.remote.objects(PODS)) == 30)
    assert home_watches(harness) == ["metadata.name=conf"]
    assert len(reads(harness)) == 2  # a list and a watch


async def test_an_object_is_forgotten_after_its_last_pod(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_watches, "LINGER", 0.05)
    harness.home.put(config_map("conf"))
    await harness.start()
    harness.pod("a", uses=["cm/conf"])
    harness.pod("b", uses=["cm/conf"])
    await harness.remote.until(lambda: len(harness.remote.objects(PODS)) == 2)
    harness.home.remove(PODS, "a", "default")
    await harness.settle()
    assert home_watches(harness) == ["metadata.name=conf"]
    harness.home.remove(PODS, "b", "default")
    await harness.home.until(lambda: home_watches(harness) == [])


async def test_a_pod_within_the_linger_time_reads_nothing(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await harness.start_running(uses=["cm/conf"])
    harness.home.remove(PODS, "a", "default")
    await harness.settle()
    harness.clear_logs()
    harness.pod("b", uses=["cm/conf"])
    await harness.remote.until(lambda: harness.remote_pod("b"))
    assert reads(harness) == []


async def test_a_change_is_copied(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"a": "1"}))
    await harness.start_running(uses=["cm/conf"])
    harness.home.put(config_map("conf", data={"a": "2"}))
    await harness.remote.until(lambda: (harness.config_map() or {}).get("data") == {"a": "2"})


async def test_a_pod_starts_when_its_object_is_created(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod(uses=["cm/conf"])
    await harness.home.until(lambda: home_watches(harness))
    await harness.settle()
    harness.home.put(config_map("conf"))
    await harness.remote.until(harness.config_map)


async def test_a_standby_reads_none(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    harness.pod(uses=["cm/conf"])
    async with harness.standing_by():
        assert reads(harness) == []
        await harness.take_over()
        await harness.remote.until(harness.remote_pod)
        assert home_watches(harness) == ["metadata.name=conf"]


async def test_homes_ca_is_read_for_pods_with_tokens_and_not_copied(harness: EngineHarness) -> None:
    harness.policy = replace(harness.policy, service_accounts="home")
    harness.home.put(service_account("default"))
    harness.home.put(config_map("kube-root-ca.crt", data={"ca.crt": "home's CA"}))
    await harness.start()
    harness.pod()
    await harness.remote.until(harness.remote_pod)
    assert home_watches(harness) == ["metadata.name=kube-root-ca.crt"]
    assert harness.remote.objects(CONFIG_MAPS) == []


async def test_a_pod_waits_while_its_object_cannot_be_read(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    fault = harness.home.fail(Fault("GET", CONFIG_MAPS_PATH, code=500, times=None))
    await harness.start()
    harness.pod(uses=["cm/conf"])
    harness.pod("free")
    await harness.remote.until(lambda: harness.remote_pod("free"))
    assert harness.remote_pod() is None
    harness.home.heal(fault)
    await harness.remote.until(harness.remote_pod)
    assert harness.config_map()


@pytest.mark.parametrize("kind", ["configmaps", "secrets", "services"])
async def test_pod_reports_an_object_that_home_cannot_serve(
    harness: EngineHarness, kind: str
) -> None:
    """As for a Secret that the home cluster's KMS plugin cannot decrypt."""
    message = "Internal error occurred: unable to transform key"
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    path = f"*/namespaces/default/{kind}"
    harness.home.fail(Fault("GET", path, code=500, message=message, times=None))
    await harness.start()
    harness.pod(uses=["cm/conf", "secret/key"])
    (event,) = await harness.events_with_reason("HomeUnread")
    await harness.home.until(lambda: harness.status().get("reason") == "HomeUnread")
    assert message in harness.status()["message"]
    assert message in event["message"]
    assert harness.engine.pods.controller.queue.failing == 1
    assert harness.remote_pod() is None

    harness.home.heal()
    await harness.remote.until(harness.remote_pod)
    await harness.settle()
    assert "reason" not in harness.status()
    assert len(await harness.events_with_reason("HomeUnread")) == 1


async def test_pod_reports_that_the_authorizer_does_not_see_it(harness: EngineHarness) -> None:
    message = (
        "configmaps is forbidden: no relationship found between node 'virtual' and this object"
    )
    harness.home.put(config_map("conf"))
    harness.home.fail(Fault("GET", CONFIG_MAPS_PATH, code=403, message=message, times=None))
    await harness.start()
    harness.pod(uses=["cm/conf"])
    await harness.events_with_reason("HomeUnread")
    await harness.home.until(lambda: "no relationship" in harness.status().get("message", ""))


async def test_short_failure_of_home_is_not_reported(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    harness.home.fail(Fault("GET", CONFIG_MAPS_PATH, code=503, times=2))
    await harness.start()
    harness.pod(uses=["cm/conf"])
    await harness.settle()
    assert harness.remote_pod()
    assert not harness.home.objects(EVENTS)


async def test_work_of_a_recovery_is_proportional_to_the_watches(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, looked = 150, [0]
    for number in range(count):
        harness.home.put(config_map(f"c{number}"))
    await harness.start_running(uses=[f"cm/c{number}" for number in range(count)])
    fault = harness.home.fail(Fault("GET", CONFIG_MAPS_PATH, code=500, times=None))
    harness.home.break_watches(CONFIG_MAPS)
    await harness.home.until(lambda: fault.hits >= count)
    error = vars(Informer)["error"].fget

    def counted(informer: Informer) -> object:
        looked[0] += 1
        return error(informer)

    monkeypatch.setattr(Informer, "error", property(counted))
    harness.home.heal()
    harness.clear_logs()
    await harness.home.until(lambda: len(harness.home.open_watches(CONFIG_MAPS)) == count)
    await asyncio.sleep(2)
    assert looked[0] <= 20 * count
