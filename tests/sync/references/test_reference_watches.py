"""Home's ConfigMaps and Secrets are read by name, while pods refer to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.kube.api_resources import CONFIG_MAPS, PODS, SECRETS
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
