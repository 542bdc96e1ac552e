"""Home's own record decides which remote namespaces it owns, not labels in the remote."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sync.kube.api_errors import Unreachable
from sync.kube.api_resources import NAMESPACES, PODS, SECRETS, Object
from sync.namespaces.namespace_ownership import OwnershipEntries
from tests.fakeapi import Fault
from tests.objects import config_map, pod, secret
from tests.sync.engine_harness import IDENTITY, NODE, REMOTE_NAMESPACE, EngineHarness
from tests.sync.memory_ownership_record import MemoryRecord
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAMESPACE,
    owner_labels,
    remote_metadata,
)
from translators.pods import service_accounts


@pytest.fixture
def strict(harness: EngineHarness) -> EngineHarness:
    """Home accepts no unmanaged namespaces, and has never had the node."""
    harness.identity = replace(IDENTITY, accepted_namespaces=())
    harness.record = MemoryRecord(fresh=True)
    return harness


def squatted(harness: EngineHarness, **annotations: str) -> Object:
    """A namespace that a user of the remote created with the bridge's labels and annotations."""
    meta: Object = {
        "name": REMOTE_NAMESPACE,
        "labels": owner_labels(harness.identity),
        "annotations": {ANNOTATION_HOME_NAMESPACE: "default", **annotations},
    }
    return harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def forged(harness: EngineHarness, made: Object) -> Object:
    """An object in that namespace with the labels and annotations of a copy."""
    meta = {**made["metadata"], "uid": "home-uid"}
    return {**made, "metadata": remote_metadata({**made, "metadata": meta}, harness.identity)}


async def test_nothing_is_created_in_a_namespace_with_forged_labels(strict: EngineHarness) -> None:
    strict.policy = replace(strict.policy, service_accounts="home")
    strict.home.put(secret("key", data={"k": "c2VjcmV0"}))
    await strict.start()
    squatted(strict, **{ANNOTATION_ACCEPTS: "*"})
    bait = strict.remote.put(forged(strict, secret("key", data={"k": "YmFpdA=="})))
    strict.clear_logs()
    strict.pod(uses=["secret/key"])
    await strict.events_with_reason("RemoteClash")
    await strict.settle(waiting=True)
    assert strict.remote_pod() is None
    assert strict.status()["reason"] == "RemoteClash"
    assert "--accept-namespaces default-h" in strict.status()["message"]
    assert strict.remote.writes() == []
    assert strict.remote.get(SECRETS, "key", REMOTE_NAMESPACE) == bait

    await strict.stop()
    strict.identity = replace(IDENTITY, accepted_namespaces=("default-*",))
    strict.policy = replace(strict.policy, service_accounts="none")
    await strict.start()
    assert strict.remote_pod()


async def test_nothing_is_deleted_in_a_namespace_with_forged_labels(strict: EngineHarness) -> None:
    """No home pod refers to these, so that the bridge would delete objects of its own."""
    squatted(strict, **{ANNOTATION_ACCEPTS: "*"})
    made = [secret("key", data={"k": "YmFpdA=="}), config_map("conf"), pod("a"), pod("b")]
    token = forged(strict, secret(service_accounts.token_secret_name("gone-uid")))
    token["metadata"]["annotations"] = {
        service_accounts.ANNOTATION_TOKEN_POD: "default/gone",
        service_accounts.ANNOTATION_TOKEN_POD_UID: "gone-uid",
    }
    for bait in (*(forged(strict, it) for it in made), token):
        strict.remote.put(bait)
    await strict.start()
    await strict.settle()
    await strict.stop()
    await strict.start()
    strict.pod()
    await strict.events_with_reason("RemoteClash")
    await strict.settle(waiting=True)
    strict.home.delete(PODS, "a", "default")
    await strict.settle()
    assert strict.home.find(PODS, "a", "default") is None
    assert strict.remote.writes() == []


async def test_granted_namespace_waits_for_acceptance_by_home(strict: EngineHarness) -> None:
    meta: Object = {"name": REMOTE_NAMESPACE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    strict.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await strict.start()
    strict.pod()
    await strict.events_with_reason("RemoteClash")
    assert "does not accept it" in strict.status()["message"]
    await strict.settle(waiting=True)
    assert strict.remote_pod() is None


async def test_a_quota_in_a_namespace_with_forged_labels_is_not_counted(
    strict: EngineHarness,
) -> None:
    await strict.start()
    squatted(strict)
    quota: Object = {"name": "q", "namespace": REMOTE_NAMESPACE}
    hard = {"spec": {"hard": {"pods": "0"}}, "status": {"hard": {"pods": "0"}}}
    strict.remote.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": quota, **hard})
    await strict.settle()
    assert strict.engine.capacity.current().exhausted is None


async def test_namespace_with_forged_labels_is_never_deleted(strict: EngineHarness) -> None:
    strict.namespace_linger = 0.01
    await strict.start()
    theirs = squatted(strict)
    await strict.settle()
    await asyncio.sleep(0.1)
    assert strict.remote.get(NAMESPACES, REMOTE_NAMESPACE) == theirs


async def test_replaced_namespace_is_not_owned(strict: EngineHarness) -> None:
    """The bridge's namespace was deleted and re-created by a user with all its metadata, including
    the nonce."""
    await strict.start()
    strict.pod()
    await strict.settle()
    ours = strict.remote.get(NAMESPACES, REMOTE_NAMESPACE)
    await strict.stop()
    strict.remote.remove(NAMESPACES, REMOTE_NAMESPACE)
    squatted(strict, **ours["metadata"]["annotations"])
    await strict.start(settle=False)
    strict.pod("b")
    await strict.events_with_reason("RemoteClash")
    assert strict.remote_pod("b") is None


async def test_ownership_survives_a_restart(strict: EngineHarness) -> None:
    await strict.start()
    strict.pod()
    await strict.settle()
    await strict.stop()
    strict.record.fresh = False
    await strict.start()
    strict.pod("b")
    await strict.settle()
    assert strict.remote_pod("b")


async def test_nonce_identifies_the_namespace_of_a_killed_bridge(strict: EngineHarness) -> None:
    class Killed(MemoryRecord):
        async def write(self, entries: Any) -> None:
            if any(not it.startswith("+") for it in entries):
                raise Unreachable("home is away", side="home", what="PATCH")
            await super().write(entries)

    record = strict.record = Killed(fresh=True)
    await strict.start()
    strict.pod()
    await strict.remote.until(lambda: strict.remote.find(NAMESPACES, REMOTE_NAMESPACE))
    await strict.stop()
    assert all(it.startswith("+") for it in record.own or ["+"])
    strict.record = MemoryRecord()
    strict.record.own = record.own
    await strict.start()
    strict.pod("b")
    await strict.settle()
    assert strict.remote_pod("b")
    assert all(not it.startswith("+") for it in strict.record.own or ())


async def test_namespace_with_a_lost_create_response_is_owned(strict: EngineHarness) -> None:
    strict.remote.fail(Fault("POST", "/api/v1/namespaces", drop="after", times=1))
    await strict.start()
    strict.pod()
    await strict.settle()
    assert strict.remote_pod()


async def test_namespaces_without_a_record_are_adopted_once_and_logged(
    strict: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """For example after an upgrade from a version without the record."""
    strict.record = MemoryRecord()
    squatted(strict)
    await strict.start()
    strict.pod()
    await strict.settle()
    assert strict.remote_pod()
    assert [it.message for it in caplog.records if REMOTE_NAMESPACE in it.message]
    await strict.stop()
    caplog.clear()
    await strict.start()
    assert strict.record.own
    assert not caplog.records
    later = {**squatted(strict), "metadata": {"name": "later-h"}}
    later["metadata"]["labels"] = owner_labels(strict.identity)
    strict.remote.put(later)
    strict.pod("c", "later")
    await strict.events_with_reason("RemoteClash")


async def test_unrecorded_namespaces_are_adopted_by_a_takeover(
    strict: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Another home with the same identity created them after this home's record was written."""
    strict.record.own = frozenset({"0123456789abcdef"})
    strict.record.adopts = True
    squatted(strict)
    strict.remote.put(forged(strict, pod("unknown")))
    await strict.start()
    await strict.remote.until(lambda: strict.remote.find(PODS, "unknown", REMOTE_NAMESPACE) is None)
    assert [it.message for it in caplog.records if REMOTE_NAMESPACE in it.message]
    assert len(strict.record.own or ()) == 2


async def test_namespaces_of_a_new_node_are_not_adopted(strict: EngineHarness) -> None:
    squatted(strict)
    await strict.start()
    strict.pod()
    await strict.events_with_reason("RemoteClash")
    assert strict.remote_pod() is None


async def test_a_namespace_that_another_node_of_this_home_recorded_is_shared(
    strict: EngineHarness,
) -> None:
    other = MemoryRecord(fresh=True)
    strict.record, mine = other, strict.record
    await strict.start()
    strict.pod()
    await strict.settle()
    await strict.stop()
    strict.identity = replace(strict.identity, node=NODE)
    strict.record = mine
    mine.others = other.own or frozenset()
    await strict.start()
    strict.pod("b")
    await strict.settle()
    assert strict.remote_pod("b")
    mine.others = frozenset()  # The other node has left; this node has also recorded the namespace.
    await strict.stop()
    await strict.start()
    strict.pod("c")
    await strict.settle()
    assert strict.remote_pod("c")


async def test_record_is_written_only_for_new_namespaces(strict: EngineHarness) -> None:
    await strict.start()
    await strict.remote.until(lambda: strict.record.writes == 1)
    strict.record.answers.clear()
    for number in range(20):
        strict.pod("a", f"n{number}")
    await strict.remote.until(lambda: len(strict.engine.pods.controller.queue.working) == 20)
    strict.record.answers.set()
    await strict.settle()
    assert len(strict.record.own or ()) == 20
    # Intents during a write are merged into one write; each UID is at most one write.
    assert strict.record.writes <= 1 + 2 + 20
    before = strict.record.writes
    strict.pod("b", "n1")
    await strict.settle()
    assert strict.record.writes == before


async def test_deleted_record_is_restored_from_memory(strict: EngineHarness) -> None:
    await strict.start()
    strict.pod()
    await strict.settle()
    before = strict.record.own or frozenset()
    strict.record.own = None
    strict.pod("a", "another")
    await strict.settle()
    assert before < (strict.record.own or frozenset())


async def test_deleted_namespace_leaves_the_record(strict: EngineHarness) -> None:
    await strict.start()
    strict.pod()
    await strict.settle()
    before = strict.record.own or frozenset()
    strict.remote.remove(NAMESPACES, REMOTE_NAMESPACE)
    await strict.settle()
    strict.pod("a", "another")
    await strict.settle()
    assert before.isdisjoint(strict.record.own or ())


async def test_unreadable_record_is_retried(
    strict: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.namespaces.namespace_ownership.RETRY_SECONDS", 0.01)
    failures = 3

    class Away(MemoryRecord):
        async def read(self) -> OwnershipEntries:
            nonlocal failures
            if failures:
                failures -= 1
                raise Unreachable("home is away", side="home", what="GET")
            return await super().read()

    strict.record = Away(fresh=True)
    await strict.start(settle=False)
    strict.pod()
    await strict.remote.until(strict.remote_pod)


async def test_entry_without_a_namespace_stays_until_the_stale_time(
    strict: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor may see the last namespaces of its predecessor a moment later."""
    strict.record.own = frozenset({"0123456789abcdef", "+0123456789abcdef"})
    await strict.start()
    strict.pod()
    await strict.settle()
    assert {"0123456789abcdef", "+0123456789abcdef"} < (strict.record.own or frozenset())
    monkeypatch.setattr("sync.namespaces.namespace_ownership.STALE_SECONDS", 0.0)
    strict.pod("a", "another")
    await strict.settle()
    assert len(strict.record.own or ()) == 2
    assert not {"0123456789abcdef", "+0123456789abcdef"} & (strict.record.own or frozenset())
