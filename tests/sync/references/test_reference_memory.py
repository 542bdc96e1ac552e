"""Objects of one home namespace cannot fill the memory of the bridge."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sync.cache import cache_share
from sync.cache.informer import Informer
from sync.engine.engine import Engine
from sync.kube.api_resources import CONFIG_MAPS, PODS, SECRETS, SERVICES
from sync.references import reference_watches
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import Object

LARGE = 100_000


def content(engine: Engine) -> int:
    """The bytes of content of ConfigMaps and Secrets that all caches of the engine have."""
    informers: Iterable[Informer] = [*engine.watches]
    return sum(
        len(str(value))
        for informer in informers
        if informer.resource in (CONFIG_MAPS, SECRETS)
        for obj in informer.store
        for field in ("data", "binaryData")
        for value in (obj.get(field) or {}).values()
    )


def put_large(harness: EngineHarness, count: int, value: str = "x") -> list[str]:
    """Creates ConfigMaps and Secrets; returns how a pod refers to them."""
    for number in range(count):
        harness.home.put(config_map(f"c{number}", data={"k": value * LARGE}))
        harness.home.put(secret(f"s{number}", data={"k": "eHh4" * (LARGE // 4)}))
    return [f"{kind}{number}" for number in range(count) for kind in ("cm/c", "secret/s")]


async def test_no_cache_keeps_what_is_copied(harness: EngineHarness) -> None:
    uses = put_large(harness, 10)
    await harness.start_running(uses=uses)
    assert len((harness.config_map("c3") or {})["data"]["k"]) == LARGE
    assert content(harness.engine) == 0
    await harness.restart()
    assert harness.writes() == []
    assert content(harness.engine) == 0


async def test_standby_keeps_no_content_of_copies(harness: EngineHarness) -> None:
    uses = put_large(harness, 3)
    await harness.start_running(uses=uses)
    await harness.stop()
    async with harness.standing_by() as engine:
        assert any(
            informer.resource is CONFIG_MAPS and len(informer.store) == 3
            for informer in engine.informers
        )
        assert content(engine) == 0


async def test_one_namespace_cannot_have_more_than_its_share(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods start all the same: what does not fit is requested when it is copied."""
    limit = 7_000_000
    monkeypatch.setattr(cache_share, "home_limit", lambda: limit)
    most = []

    def measure(_: object) -> bool:
        most.append(content(harness.engine))
        return False

    harness.remote.fail(Fault("POST", when=measure, times=None))
    uses = put_large(harness, 40)  # 8 MB
    await harness.start_running(uses=uses)
    assert max(most) <= limit / 2
    assert content(harness.engine) == 0
    copies = harness.remote.objects(CONFIG_MAPS)
    assert {len(copy["data"]["k"]) for copy in copies} == {LARGE}


async def test_edit_after_the_copy_was_written_reaches_it(harness: EngineHarness) -> None:
    uses = put_large(harness, 1)
    await harness.start_running(uses=uses)
    harness.home.put(config_map("c0", labels={"a": "b"}, data={"l": "y" * LARGE}))
    await harness.settle()
    copy = harness.config_map("c0") or {}
    assert copy["data"] == {"l": "y" * LARGE}
    assert copy["metadata"]["labels"]["a"] == "b"
    assert content(harness.engine) == 0


async def test_copy_is_restored_from_home(harness: EngineHarness) -> None:
    uses = put_large(harness, 1)
    await harness.start_running(uses=uses)
    harness.remote.update(CONFIG_MAPS, "c0", {"data": {"k": "z", "m": "z"}}, REMOTE_NAMESPACE)
    await harness.settle()
    assert (harness.config_map("c0") or {})["data"] == {"k": "x" * LARGE}
    harness.remote.remove(SECRETS, "s0", REMOTE_NAMESPACE)
    await harness.settle()
    assert len((harness.secret("s0") or {})["data"]["k"]) == LARGE
    assert content(harness.engine) == 0


async def test_change_of_labels_alone_requests_nothing(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1"}))
    await harness.start_running(uses=["cm/conf"])
    harness.clear_logs()
    harness.home.put(config_map("conf", labels={"a": "b"}, data={"k": "1"}))
    await harness.settle()
    requests = [
        (request.method, request.path.rpartition("/")[2])
        for request in harness.remote.log
        if request.code
    ]
    assert requests == [("PATCH", "conf")]
    assert not [request for request in harness.home.log if request.method == "GET" and request.code]


async def test_token_secret_that_took_the_name_is_not_copied(harness: EngineHarness) -> None:
    """The type of an object is verified again when its content is requested."""
    harness.home.put({**secret("key", data={"k": "MQ=="}), "type": "Opaque"})
    await harness.start_running(uses=["secret/key"])
    harness.home.mute_watches()
    harness.clear_logs()
    token = {**secret("key", data={"token": "Y2FuYXJ5"})}
    harness.home.put({**token, "type": "kubernetes.io/service-account-token"})
    harness.remote.remove(SECRETS, "key", REMOTE_NAMESPACE)
    await harness.home.until(
        lambda: [
            request
            for request in harness.home.requests("GET", "*/secrets")
            if request.code == [200]
        ]
    )
    harness.home.unmute_watches()
    await harness.settle(waiting=True)
    assert harness.secret() is None


@pytest.fixture
def six_objects(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace with six ConfigMaps. There is memory for eight watched objects, of which one
    namespace can have four."""
    for number in range(6):
        harness.home.put(config_map(f"c{number}"))
    monkeypatch.setattr(cache_share, "home_limit", lambda: 8 * 2**20)
    monkeypatch.setattr(reference_watches, "WATCH_SIZE", 2**20 - 2**16)


@pytest.mark.usefixtures("six_objects")
async def test_pod_with_too_many_references_waits_with_a_reason(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod(uses=[f"cm/c{number}" for number in range(6)])
    (event,) = await harness.events_with_reason("HomeObjectsTooLarge")
    await harness.settle(waiting=True)
    assert harness.status()["reason"] == "HomeObjectsTooLarge"
    assert "namespace default" in event["message"]
    assert harness.remote_pod() is None
    assert len(await harness.events_with_reason("HomeObjectsTooLarge")) == 1

    harness.home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
    harness.home.put(config_map("mine", "other"))
    harness.pod("b", "other", uses=["cm/mine"])
    await harness.remote.until(lambda: harness.remote_pod("b", "other-h"))


@pytest.mark.usefixtures("six_objects")
async def test_pod_starts_when_others_need_less(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_watches, "LINGER", 0.1)
    await harness.start_running(name="first", uses=["cm/c0", "cm/c1", "cm/c2"])
    harness.pod("next", uses=["cm/c3", "cm/c4"])
    await harness.events_with_reason("HomeObjectsTooLarge")
    harness.home.remove(PODS, "first", "default")
    await harness.remote.until(lambda: harness.remote_pod("next"))
    await harness.settle()
    assert harness.status("next").get("reason") is None


@pytest.mark.usefixtures("six_objects")
async def test_pod_that_leaves_no_longer_waits_for_memory(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod(uses=[f"cm/c{number}" for number in range(6)])
    await harness.events_with_reason("HomeObjectsTooLarge")
    harness.home.delete(PODS, "a", "default")
    await harness.home.until(lambda: harness.home.find(PODS, "a", "default") is None)
    harness.pod("b", uses=["cm/c0"])
    await harness.remote.until(lambda: harness.remote_pod("b"))


def large_service(name: str) -> Object:
    notes = {"note": "x" * 200_000}
    port = {"port": 80, "protocol": "TCP", "targetPort": 80}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "annotations": notes},
        "spec": {"ports": [port]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    }


async def test_services_are_kept_without_annotations_and_status(harness: EngineHarness) -> None:
    harness.home.put(large_service("web"))
    await harness.start_running()
    kept = [watch for watch in harness.engine.watches if watch.resource is SERVICES]
    assert {informer.client.side for informer in kept} == {"home", "remote"}
    for informer in kept:
        (service,) = informer.store
        assert len(str(service)) < 2_000


async def test_services_beyond_the_memory_are_left_as_they_are(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their copies are neither deleted nor updated; pods start all the same."""
    harness.home.put(large_service("web"))
    await harness.start_running()
    monkeypatch.setattr(cache_share, "home_limit", lambda: 60_000)
    many = [{"port": port, "protocol": "TCP", "targetPort": port} for port in range(1, 300)]
    for port in many:
        port["name"] = f"p{port['port']}"
    harness.home.update(SERVICES, "web", {"spec": {"ports": many}}, "default")
    await harness.settle()
    copy = harness.remote.get(SERVICES, "web", REMOTE_NAMESPACE)
    assert len(copy["spec"]["ports"]) == 1
    harness.pod("next")
    await harness.remote.until(lambda: harness.remote_pod("next"))
    assert harness.remote.get(SERVICES, "web", REMOTE_NAMESPACE) == copy
