"""Copies of ConfigMaps and Secrets follow their originals and go with their pods."""

from __future__ import annotations

from collections import Counter

import pytest

from sync.kube.api_resources import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, Object
from sync.mirror.copy_controller import CopyController
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import IDENTITY, REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    origin_of,
)


async def with_pod(harness: EngineHarness, *uses: str) -> None:
    """An engine with one running pod that uses these."""
    await harness.start()
    harness.pod(uses=list(uses))
    await harness.settle()
    harness.report_running()
    await harness.settle()
    harness.clear_logs()


async def delete_pod(harness: EngineHarness, name: str = "a") -> None:
    """Deletes the pod and terminates its containers."""
    harness.home.delete(PODS, name, "default")
    await harness.settle()
    harness.remote.remove(PODS, name, REMOTE_NAMESPACE)
    await harness.settle()


async def test_a_config_map_follows_its_changes_deletion_and_return(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1", "l": "1"}))
    await with_pod(harness, "cm/conf")
    harness.home.put(config_map("conf", data={"k": "2"}))
    await harness.settle()
    assert (harness.config_map() or {})["data"] == {"k": "2"}
    assert harness.writes() == [
        f"remote PATCH /api/v1/namespaces/{REMOTE_NAMESPACE}/configmaps/conf"
    ]
    harness.home.remove(CONFIG_MAPS, "conf", "default")
    await harness.settle()
    assert harness.config_map() is None
    harness.home.put(config_map("conf", data={"k": "3"}))
    await harness.settle()
    assert (harness.config_map() or {})["data"] == {"k": "3"}


async def test_reference_created_after_the_pod_is_copied(harness: EngineHarness) -> None:
    await with_pod(harness, "cm/conf", "secret/key")
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await harness.settle()
    assert harness.config_map()
    assert harness.secret()


async def test_changed_or_deleted_copy_is_restored(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1"}))
    await with_pod(harness, "cm/conf")
    harness.remote.update(CONFIG_MAPS, "conf", {"data": {"k": "x", "more": "y"}}, REMOTE_NAMESPACE)
    await harness.settle()
    assert (harness.config_map() or {})["data"] == {"k": "1"}
    harness.remote.remove(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)
    await harness.settle()
    assert (harness.config_map() or {})["data"] == {"k": "1"}


async def test_annotations_of_remote_controllers_stay_on_a_copy(harness: EngineHarness) -> None:
    """Removing them would cause an endless exchange of writes."""
    harness.home.put(config_map("conf", labels={"tier": "a"}, data={"k": "1"}))
    await with_pod(harness, "cm/conf")
    notes: Object = {"labels": {"x.example.com/a": "1"}, "annotations": {"x.example.com/b": "2"}}
    harness.remote.update(CONFIG_MAPS, "conf", {"metadata": notes}, REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.writes() == []
    harness.home.update(CONFIG_MAPS, "conf", {"metadata": {"labels": {"tier": None}}}, "default")
    await harness.settle()
    meta = (harness.config_map() or {})["metadata"]
    assert "tier" not in meta["labels"]
    assert meta["labels"]["x.example.com/a"] == "1"
    assert meta["annotations"]["x.example.com/b"] == "2"


async def test_labels_of_remote_admission_stay_on_a_copy(harness: EngineHarness) -> None:
    """Of any form; labels that home has set and removed again are removed."""
    harness.home.put(config_map("conf", labels={"tier": "a", "x.example.com/a": "1"}))
    await with_pod(harness, "cm/conf")
    theirs: Object = {"labels": {"network-zone": "restricted"}}
    harness.remote.update(CONFIG_MAPS, "conf", {"metadata": theirs}, REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.writes() == []
    removed = {"tier": None, "x.example.com/a": None}
    harness.home.update(CONFIG_MAPS, "conf", {"metadata": {"labels": removed}}, "default")
    await harness.settle()
    labels = (harness.config_map() or {})["metadata"]["labels"]
    assert labels["network-zone"] == "restricted"
    assert not labels.keys() & removed.keys()


async def test_copy_without_annotations_is_restored(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1"}))
    await with_pod(harness, "cm/conf")
    harness.remote.update(
        CONFIG_MAPS, "conf", {"metadata": {"annotations": None}}, REMOTE_NAMESPACE
    )
    await harness.settle()
    assert origin_of(harness.config_map() or {}) is not None


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
async def test_an_immutable_object_that_was_replaced_is_replaced_in_the_remote(
    harness: EngineHarness, kind: str
) -> None:
    resource = CONFIG_MAPS if kind == "ConfigMap" else SECRETS
    make = config_map if kind == "ConfigMap" else secret
    harness.home.put({**make("one", data={"k": "MQ=="}), "immutable": True})
    await with_pod(harness, "cm/one" if kind == "ConfigMap" else "secret/one")
    before = harness.remote.get(resource, "one", REMOTE_NAMESPACE)
    harness.home.remove(resource, "one", "default")
    harness.home.put({**make("one", data={"k": "Mg=="}), "immutable": True})
    await harness.settle()
    after = harness.remote.get(resource, "one", REMOTE_NAMESPACE)
    assert after["data"] == {"k": "Mg=="}
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_secret_that_changed_its_type_is_replaced(harness: EngineHarness) -> None:
    harness.home.put({**secret("key"), "type": "Opaque"})
    await with_pod(harness, "secret/key")
    harness.home.remove(SECRETS, "key", "default")
    harness.home.put({**secret("key"), "type": "example.com/other"})
    await harness.settle()
    assert (harness.secret() or {})["type"] == "example.com/other"


async def test_a_service_account_token_never_leaves_home(harness: EngineHarness) -> None:
    token = {**secret("key", data={"token": "Y2FuYXJ5"})}
    harness.home.put({**token, "type": "kubernetes.io/service-account-token"})
    await with_pod(harness, "secret/key")
    assert harness.remote_pod()
    assert harness.remote.objects(SECRETS) == []
    harness.home.remove(SECRETS, "key", "default")
    harness.home.put({**token, "type": "Opaque"})
    await harness.settle()
    assert harness.secret()
    harness.home.remove(SECRETS, "key", "default")
    harness.home.put({**token, "type": "kubernetes.io/service-account-token"})
    await harness.settle()
    assert harness.secret() is None


async def test_copies_are_deleted_with_the_last_pod_that_needs_them(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await with_pod(harness, "cm/conf", "secret/key")
    harness.pod("b", uses=["cm/conf"])
    await harness.settle()
    harness.report_running("b")
    await delete_pod(harness)
    assert harness.config_map()
    assert harness.secret() is None
    await delete_pod(harness, "b")
    assert harness.config_map() is None


async def test_another_pod_that_uses_a_copy_queues_nothing(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await with_pod(harness, "cm/conf")
    turns = harness.engine.find(CopyController).controller.results.total()
    harness.pod("b", uses=["cm/conf"])
    await harness.settle()
    harness.report_running("b")
    await delete_pod(harness, "b")
    assert harness.engine.find(CopyController).controller.results.total() == turns


async def test_unneeded_copy_lingers_for_the_next_pod(harness: EngineHarness) -> None:
    harness.copy_linger = 60.0
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await with_pod(harness, "cm/conf", "secret/key")
    await delete_pod(harness)
    harness.home.update(CONFIG_MAPS, "conf", {"data": {"k": "2"}}, "default")
    await harness.settle()
    harness.clear_logs()
    harness.pod("b", uses=["cm/conf", "secret/key"])
    await harness.settle()
    assert [write.split("/")[-1] for write in harness.writes()] == ["conf", "pods"], (
        "made right first"
    )
    assert (harness.config_map() or {})["data"] == {"k": "2"}
    harness.report_running("b")
    await delete_pod(harness, "b")
    harness.home.remove(CONFIG_MAPS, "conf", "default")
    await harness.settle()
    assert harness.config_map() is None, "its original was deleted"
    assert harness.secret()


async def test_unneeded_copy_is_deleted_after_the_linger(harness: EngineHarness) -> None:
    harness.copy_linger = 0.1
    harness.home.put(config_map("conf"))
    await with_pod(harness, "cm/conf")
    await delete_pod(harness)
    assert harness.config_map()
    await harness.remote.until(lambda: harness.config_map() is None)


async def test_copy_stays_until_the_remote_pod_that_mounts_it_ends(harness: EngineHarness) -> None:
    """A pod that is force-deleted at home still terminates gracefully in the remote."""
    harness.home.put(config_map("conf"))
    await with_pod(harness, "cm/conf")
    harness.home.remove(PODS, "a", "default")
    await harness.settle()
    assert "deletionTimestamp" in (harness.remote_pod() or {})["metadata"]
    assert harness.config_map()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.config_map() is None


async def test_copies_without_pods_are_deleted_at_the_next_start(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await with_pod(harness, "cm/conf")
    await harness.stop()
    harness.home.remove(PODS, "a", "default")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.start()
    assert harness.config_map() is None
    assert harness.remote.find(NAMESPACES, REMOTE_NAMESPACE)


async def test_changes_while_unwatched_are_found_at_the_next_start(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1"}))
    harness.home.put(config_map("lost"))
    await with_pod(harness, "cm/conf", "cm/lost")
    await harness.stop()
    harness.home.put(config_map("conf", data={"k": "2"}))
    harness.home.remove(CONFIG_MAPS, "lost", "default")
    await harness.start()
    assert (harness.config_map() or {})["data"] == {"k": "2"}
    assert harness.config_map("lost") is None


async def test_nothing_is_deleted_before_home_is_listed(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await with_pod(harness, "cm/conf")
    await harness.stop()
    refused = harness.home.fail(Fault("GET", "*/default/configmaps", code=500, times=None))
    await harness.start(settle=False)
    await harness.home.until(lambda: refused.hits >= 3)
    harness.clear_logs()
    harness.remote.update(CONFIG_MAPS, "conf", {"data": {"k": "x"}}, REMOTE_NAMESPACE)
    await harness.home.until(lambda: refused.hits >= 6)
    assert harness.writes() == []
    harness.home.heal()
    await harness.settle()
    assert (harness.config_map() or {}).get("data") == {}


async def test_the_copy_of_another_virtual_node_of_this_home_is_shared_and_not_deleted(
    harness: EngineHarness,
) -> None:
    home = harness.home.put(config_map("conf", data={"k": "1"}))
    labels = {LABEL_HOME: IDENTITY.home_id, LABEL_NODE: "other"}
    origin = {
        ANNOTATION_HOME_NAMESPACE: "default",
        ANNOTATION_HOME_NAME: "conf",
        ANNOTATION_HOME_UID: home["metadata"]["uid"],
    }
    meta = {"name": "conf", "namespace": REMOTE_NAMESPACE, "labels": labels, "annotations": origin}
    harness.remote.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": _named(REMOTE_NAMESPACE, labels)}
    )
    harness.remote.put({**config_map("conf", data={"k": "0"}), "metadata": meta})
    await with_pod(harness, "cm/conf")
    copy = harness.config_map() or {}
    assert copy["data"] == {"k": "1"}
    assert copy["metadata"]["labels"][LABEL_NODE] == "other"
    await delete_pod(harness)
    assert harness.config_map()


async def test_unmanaged_object_is_left_alone_and_blocks_the_pod(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "ours"}))
    labels = {LABEL_HOME: IDENTITY.home_id}
    harness.remote.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": _named(REMOTE_NAMESPACE, labels)}
    )
    theirs = harness.remote.put(config_map("conf", REMOTE_NAMESPACE, data={"k": "theirs"}))
    await harness.start()
    harness.pod(uses=["cm/conf"])
    events = await harness.events_with_reason("RemoteClash")
    await harness.settle(waiting=True)
    events = await harness.events_with_reason("RemoteClash")
    assert {event["involvedObject"]["kind"] for event in events} == {"Pod", "ConfigMap"}
    assert harness.status()["reason"] == "RemoteClash"
    assert f"ConfigMap {REMOTE_NAMESPACE}/conf" in harness.status()["message"]
    assert harness.remote_pod() is None
    assert harness.config_map() == theirs
    harness.clear_logs()
    await harness.settle(waiting=True)
    assert harness.home.writes() == []
    harness.remote.remove(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote_pod()
    assert (harness.config_map() or {})["data"] == {"k": "ours"}
    assert len(await harness.events_with_reason("RemoteClash")) == 2


async def test_copy_with_an_unanswered_create_is_recognized(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1"}))
    harness.remote.fail(Fault("POST", "*/configmaps", drop="after"))
    await harness.start()
    harness.pod(uses=["cm/conf"])
    await harness.settle()
    assert (harness.config_map() or {})["data"] == {"k": "1"}
    assert harness.remote_pod()
    assert [entry for entry in harness.remote.writes() if entry.method == "DELETE"] == []


def _named(name: str, labels: dict[str, str]) -> Object:
    return {"name": name, "labels": labels}


async def test_conflict_is_forgotten_with_the_home_object(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await with_pod(harness)
    harness.remote.put(config_map("conf", REMOTE_NAMESPACE))
    harness.pod("b", uses=["cm/conf"])
    await harness.settle(waiting=True)
    assert len(await harness.events_with_reason("RemoteClash")) == 2, "of the object and its pod"
    harness.home.remove(CONFIG_MAPS, "conf", "default")
    await harness.settle(waiting=True)
    harness.home.put(config_map("conf"))
    await harness.settle(waiting=True)
    events = await harness.events_with_reason("RemoteClash")
    kinds = Counter(it["involvedObject"]["kind"] for it in events)
    assert kinds["ConfigMap"] == 2, "the new object's conflict is reported, too"
