"""Copies of ConfigMaps and Secrets follow their originals and go with their pods."""

from __future__ import annotations

import pytest

from sync.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, Object
from sync.mirror.copy_controller import CopyController
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.world import IDENTITY, THERE, World
from translators.identity import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    origin_of,
)


async def with_pod(world: World, *uses: str) -> None:
    """An engine with one running pod that uses these."""
    await world.start()
    world.pod(uses=list(uses))
    await world.settle()
    world.runs()
    await world.settle()
    world.clear_logs()


async def gone(world: World, name: str = "a") -> None:
    """The pod is deleted, and its containers end."""
    world.home.delete(PODS, name, "default")
    await world.settle()
    world.remote.remove(PODS, name, THERE)
    await world.settle()


# -- following -----------------------------------------------------------------------------


async def test_a_config_map_follows_its_changes_deletion_and_return(world: World) -> None:
    world.home.put(config_map("conf", data={"k": "1", "l": "1"}))
    await with_pod(world, "cm/conf")
    world.home.put(config_map("conf", data={"k": "2"}))
    await world.settle()
    assert (world.config_map() or {})["data"] == {"k": "2"}
    assert world.writes() == [f"remote PATCH /api/v1/namespaces/{THERE}/configmaps/conf"]
    world.home.remove(CONFIG_MAPS, "conf", "default")
    await world.settle()
    assert world.config_map() is None
    world.home.put(config_map("conf", data={"k": "3"}))
    await world.settle()
    assert (world.config_map() or {})["data"] == {"k": "3"}


async def test_reference_created_after_the_pod_is_copied(
    world: World,
) -> None:
    await with_pod(world, "cm/conf", "secret/key")
    world.home.put(config_map("conf"))
    world.home.put(secret("key"))
    await world.settle()
    assert world.config_map()
    assert world.secret()


async def test_changed_or_deleted_copy_is_restored(
    world: World,
) -> None:
    world.home.put(config_map("conf", data={"k": "1"}))
    await with_pod(world, "cm/conf")
    world.remote.update(CONFIG_MAPS, "conf", {"data": {"k": "x", "more": "y"}}, THERE)
    await world.settle()
    assert (world.config_map() or {})["data"] == {"k": "1"}
    world.remote.remove(CONFIG_MAPS, "conf", THERE)
    await world.settle()
    assert (world.config_map() or {})["data"] == {"k": "1"}


async def test_annotations_of_remote_controllers_stay_on_a_copy(world: World) -> None:
    """Taken off, it would be written again, and so on for ever."""
    world.home.put(config_map("conf", labels={"tier": "a"}, data={"k": "1"}))
    await with_pod(world, "cm/conf")
    notes: Object = {"labels": {"x.example.com/a": "1"}, "annotations": {"x.example.com/b": "2"}}
    world.remote.update(CONFIG_MAPS, "conf", {"metadata": notes}, THERE)
    await world.settle()
    assert world.writes() == []
    world.home.update(CONFIG_MAPS, "conf", {"metadata": {"labels": {"tier": None}}}, "default")
    await world.settle()
    meta = (world.config_map() or {})["metadata"]
    assert "tier" not in meta["labels"]
    assert meta["labels"]["x.example.com/a"] == "1"
    assert meta["annotations"]["x.example.com/b"] == "2"


async def test_copy_without_annotations_is_restored(world: World) -> None:
    world.home.put(config_map("conf", data={"k": "1"}))
    await with_pod(world, "cm/conf")
    world.remote.update(CONFIG_MAPS, "conf", {"metadata": {"annotations": None}}, THERE)
    await world.settle()
    assert origin_of(world.config_map() or {}) is not None


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
async def test_an_immutable_object_that_was_replaced_is_replaced_in_the_remote(
    world: World, kind: str
) -> None:
    resource = CONFIG_MAPS if kind == "ConfigMap" else SECRETS
    make = config_map if kind == "ConfigMap" else secret
    world.home.put({**make("one", data={"k": "MQ=="}), "immutable": True})
    await with_pod(world, "cm/one" if kind == "ConfigMap" else "secret/one")
    before = world.remote.get(resource, "one", THERE)
    world.home.remove(resource, "one", "default")
    world.home.put({**make("one", data={"k": "Mg=="}), "immutable": True})
    await world.settle()
    after = world.remote.get(resource, "one", THERE)
    assert after["data"] == {"k": "Mg=="}
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_secret_that_changed_its_type_is_replaced(world: World) -> None:
    world.home.put({**secret("key"), "type": "Opaque"})
    await with_pod(world, "secret/key")
    world.home.remove(SECRETS, "key", "default")
    world.home.put({**secret("key"), "type": "example.com/other"})
    await world.settle()
    assert (world.secret() or {})["type"] == "example.com/other"


async def test_a_service_account_token_never_leaves_home(world: World) -> None:
    token = {**secret("key", data={"token": "Y2FuYXJ5"})}
    world.home.put({**token, "type": "kubernetes.io/service-account-token"})
    await with_pod(world, "secret/key")
    assert world.remote_pod()
    assert world.remote.objects(SECRETS) == []
    world.home.remove(SECRETS, "key", "default")
    world.home.put({**token, "type": "Opaque"})
    await world.settle()
    assert world.secret()
    world.home.remove(SECRETS, "key", "default")
    world.home.put({**token, "type": "kubernetes.io/service-account-token"})
    await world.settle()
    assert world.secret() is None


# -- ending --------------------------------------------------------------------------------


async def test_copies_are_deleted_with_the_last_pod_that_needs_them(world: World) -> None:
    world.home.put(config_map("conf"))
    world.home.put(secret("key"))
    await with_pod(world, "cm/conf", "secret/key")
    world.pod("b", uses=["cm/conf"])
    await world.settle()
    world.runs("b")
    await gone(world)
    assert world.config_map()
    assert world.secret() is None
    await gone(world, "b")
    assert world.config_map() is None


async def test_another_pod_that_uses_a_copy_queues_nothing(world: World) -> None:
    world.home.put(config_map("conf"))
    await with_pod(world, "cm/conf")
    turns = world.engine.find(CopyController).controller.results.total()
    world.pod("b", uses=["cm/conf"])
    await world.settle()
    world.runs("b")
    await gone(world, "b")
    assert world.engine.find(CopyController).controller.results.total() == turns


async def test_unneeded_copy_lingers_for_the_next_pod(world: World) -> None:
    world.copy_linger = 60.0
    world.home.put(config_map("conf"))
    world.home.put(secret("key"))
    await with_pod(world, "cm/conf", "secret/key")
    await gone(world)
    world.home.update(CONFIG_MAPS, "conf", {"data": {"k": "2"}}, "default")
    await world.settle()
    world.clear_logs()
    world.pod("b", uses=["cm/conf", "secret/key"])
    await world.settle()
    assert [write.split("/")[-1] for write in world.writes()] == ["conf", "pods"], (
        "made right first"
    )
    assert (world.config_map() or {})["data"] == {"k": "2"}
    world.runs("b")
    await gone(world, "b")
    world.home.remove(CONFIG_MAPS, "conf", "default")
    await world.settle()
    assert world.config_map() is None, "its original is gone"
    assert world.secret()


async def test_unneeded_copy_is_deleted_after_the_linger(world: World) -> None:
    world.copy_linger = 0.1
    world.home.put(config_map("conf"))
    await with_pod(world, "cm/conf")
    await gone(world)
    assert world.config_map()
    await world.remote.until(lambda: world.config_map() is None)


async def test_copy_stays_until_the_remote_pod_that_mounts_it_ends(world: World) -> None:
    """A pod that is forced away at home still ends in its own time in the remote."""
    world.home.put(config_map("conf"))
    await with_pod(world, "cm/conf")
    world.home.remove(PODS, "a", "default")
    await world.settle()
    assert "deletionTimestamp" in (world.remote_pod() or {})["metadata"]
    assert world.config_map()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert world.config_map() is None


async def test_copies_without_pods_are_deleted_at_the_next_start(
    world: World,
) -> None:
    world.home.put(config_map("conf"))
    await with_pod(world, "cm/conf")
    await world.stop()
    world.home.remove(PODS, "a", "default")
    world.remote.remove(PODS, "a", THERE)
    await world.start()
    assert world.config_map() is None
    assert world.remote.find(NAMESPACES, THERE)


async def test_changes_while_unwatched_are_found_at_the_next_start(
    world: World,
) -> None:
    world.home.put(config_map("conf", data={"k": "1"}))
    world.home.put(config_map("lost"))
    await with_pod(world, "cm/conf", "cm/lost")
    await world.stop()
    world.home.put(config_map("conf", data={"k": "2"}))
    world.home.remove(CONFIG_MAPS, "lost", "default")
    await world.start()
    assert (world.config_map() or {})["data"] == {"k": "2"}
    assert world.config_map("lost") is None


async def test_nothing_is_deleted_before_home_is_listed(world: World) -> None:
    world.home.put(config_map("conf"))
    await with_pod(world, "cm/conf")
    await world.stop()
    refused = world.home.fail(Fault("GET", "*/default/configmaps", code=500, times=None))
    await world.start(settle=False)
    await world.home.until(lambda: refused.hits >= 3)
    world.clear_logs()
    world.remote.update(CONFIG_MAPS, "conf", {"data": {"k": "x"}}, THERE)
    await world.home.until(lambda: refused.hits >= 6)
    assert world.writes() == []
    world.home.heal()
    await world.settle()
    assert (world.config_map() or {}).get("data") == {}


async def test_the_copy_of_another_virtual_node_of_this_home_is_shared_and_not_deleted(
    world: World,
) -> None:
    home = world.home.put(config_map("conf", data={"k": "1"}))
    labels = {LABEL_HOME: IDENTITY.home_id, LABEL_NODE: "other"}
    origin = {
        ANNOTATION_HOME_NAMESPACE: "default",
        ANNOTATION_HOME_NAME: "conf",
        ANNOTATION_HOME_UID: home["metadata"]["uid"],
    }
    meta = {"name": "conf", "namespace": THERE, "labels": labels, "annotations": origin}
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": _named(THERE, labels)})
    world.remote.put({**config_map("conf", data={"k": "0"}), "metadata": meta})
    await with_pod(world, "cm/conf")
    copy = world.config_map() or {}
    assert copy["data"] == {"k": "1"}
    assert copy["metadata"]["labels"][LABEL_NODE] == "other"
    await gone(world)
    assert world.config_map()


# -- in the way ----------------------------------------------------------------------------


async def test_unmanaged_object_is_left_alone_and_blocks_the_pod(
    world: World,
) -> None:
    world.home.put(config_map("conf", data={"k": "ours"}))
    labels = {LABEL_HOME: IDENTITY.home_id}
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": _named(THERE, labels)})
    theirs = world.remote.put(config_map("conf", THERE, data={"k": "theirs"}))
    await world.start()
    world.pod(uses=["cm/conf"])
    events = await world.events_with_reason("RemoteClash")
    await world.settle(waiting=True)
    events = await world.events_with_reason("RemoteClash")
    assert {event["involvedObject"]["kind"] for event in events} == {"Pod", "ConfigMap"}
    assert world.status()["reason"] == "RemoteClash"
    assert f"ConfigMap {THERE}/conf" in world.status()["message"]
    assert world.remote_pod() is None
    assert world.config_map() == theirs
    world.clear_logs()
    await world.settle(waiting=True)
    assert world.home.writes() == []
    world.remote.remove(CONFIG_MAPS, "conf", THERE)
    await world.settle()
    assert world.remote_pod()
    assert (world.config_map() or {})["data"] == {"k": "ours"}
    assert len(await world.events_with_reason("RemoteClash")) == 2


async def test_copy_with_an_unanswered_create_is_recognized(world: World) -> None:
    world.home.put(config_map("conf", data={"k": "1"}))
    world.remote.fail(Fault("POST", "*/configmaps", drop="after"))
    await world.start()
    world.pod(uses=["cm/conf"])
    await world.settle()
    assert (world.config_map() or {})["data"] == {"k": "1"}
    assert world.remote_pod()
    assert [entry for entry in world.remote.writes() if entry.method == "DELETE"] == []


def _named(name: str, labels: dict[str, str]) -> Object:
    return {"name": name, "labels": labels}


async def test_conflict_is_forgotten_with_the_home_object(world: World) -> None:
    world.home.put(config_map("conf"))
    await with_pod(world)
    world.remote.put(config_map("conf", THERE))
    world.pod("b", uses=["cm/conf"])
    await world.settle(waiting=True)
    assert world.engine.find(CopyController)._conflicts
    world.home.remove(CONFIG_MAPS, "conf", "default")
    await world.settle(waiting=True)
    assert not world.engine.find(CopyController)._conflicts
