"""Objects that no API server should accept: the bridge skips each one and processes all others."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from sync.base import exception_summary
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_resources import CONFIG_MAPS, EVENTS, PODS, Object
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from tests.objects import config_map, pod, secret
from tests.sync.engine_harness import NODE, EngineHarness
from tests.sync.informer_harness import ChangeRecorder, caught_up, running_informer
from tests.translators.test_remote_shapes import places, replaced
from translators.pods import remote_pod

CANARY = "canary-4711"
#: Malicious pods of one run, and the number of replaced parts in each.
PODS_EACH, PARTS = 12, 3
#: Levels of a deep map; three nested ones in a pod stay within the 254 levels of orjson.
DEEP = 75
#: Values that replace parts of an object.
_WRONG: list[Any] = [
    None,
    True,
    -1,
    2**62,
    1.5,
    "",
    CANARY,
    "\u202e\u0000../../etc",
    "x" * 100_000,
    [],
    [None],
    [[[[]]]],
    {},
    {"": None},
    {CANARY: {CANARY: [CANARY]}},
]


def deep(levels: int) -> Object:
    """A map in a map in a map."""
    found: Object = {}
    for _ in range(levels):
        found = {"a": found}
    return found


def poisoned(rng: random.Random, name: str) -> Object:
    """A pod on the node with some replaced parts."""
    made = pod(name, node=NODE)
    made["metadata"]["annotations"] = {"a": "b"}
    made["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "u"}]
    made["spec"] |= {
        "volumes": [
            {"name": "v", "secret": {"secretName": "key"}},
            {"name": "p", "projected": {"sources": [{"configMap": {"name": "conf"}}]}},
        ],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "restartPolicy": "Always",
        "affinity": {"nodeAffinity": {}},
        "imagePullSecrets": [{"name": "pull"}],
    }
    made["spec"]["containers"][0] |= {
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "envFrom": [{"secretRef": {"name": "key"}}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    made["status"] = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
    kept = {("metadata",), ("metadata", "name"), ("metadata", "namespace"), ("spec", "nodeName")}
    for _ in range(PARTS):
        chosen = [it for it in places(made) if it not in kept and it[0] in ("spec", "metadata")]
        path = rng.choice([path for path in chosen if len(path) > 1])
        made = replaced(made, path, rng.choice([*_WRONG, deep(DEEP)]))
    return made


@pytest.mark.parametrize("seed", range(8))
async def test_malformed_pods_hold_up_no_other(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """Malformed pods are created before and during the life of the valid ones."""
    caplog.set_level(logging.DEBUG, "sync")
    rng = random.Random(seed)
    harness.home.put(secret("key", data={"a": "Y2FuYXJ5LTQ3MTE="}))
    harness.home.put(config_map("conf", data={"a": CANARY}))
    await harness.start()
    for number in range(PODS_EACH):
        put_raw(harness.home, poisoned(rng, f"bad-{number}"))
    harness.pod("good", uses=["cm/conf", "secret/key"])
    await harness.remote.until(lambda: harness.remote_pod("good"))
    harness.report_running("good")
    await harness.home.until(lambda: harness.status("good").get("phase") == "Running")
    for number in range(PODS_EACH):
        put_raw(harness.home, poisoned(rng, f"bad-{number}"))
    harness.home.delete(PODS, "good", "default")
    await harness.remote.until(
        lambda: "deletionTimestamp" in (harness.remote_pod("good") or {})["metadata"]
    )
    harness.assert_running()
    messages = [it.getMessage() for it in caplog.records if "a defect in the bridge" in it.message]
    assert CANARY not in "".join(messages)


def put_raw(api: FakeApi, obj: Object) -> None:
    """Stores the object without validation, and notifies watches."""
    kind = api.store.registry.of(PODS)
    meta = obj["metadata"]
    old = api.store.find(kind, meta["namespace"], meta["name"])
    meta = {**meta, "uid": f"uid of {meta['name']}"} if isinstance(meta, dict) else meta
    api.store.commit(kind, old, {**obj, "metadata": meta})


async def test_pod_that_causes_a_defect_reports_it(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the code's location, not the pod's content; the pod proceeds after the
    fix."""
    translate = remote_pod.translate_pod

    def stumble(home: Object, *args: Any, **options: Any) -> Any:
        if home["metadata"]["name"] == "bad":
            raise ValueError(f"invalid literal for int(): {CANARY}")
        return translate(home, *args, **options)

    monkeypatch.setattr(remote_pod, "translate_pod", stumble)
    await harness.start()
    harness.pod("bad")
    harness.pod("good")
    await harness.events_with_reason("BridgeDefect")
    await harness.remote.until(lambda: harness.remote_pod("good"))
    status = harness.status("bad")
    assert (status["phase"], status["reason"]) == ("Pending", "BridgeDefect")
    assert "ValueError in tests/sync/test_malicious_objects.py" in status["message"]
    assert CANARY not in str(status) + str(harness.home.objects(EVENTS))
    assert harness.engine.pods.controller.results["defect"] >= 1
    monkeypatch.undo()
    await harness.remote.until(lambda: harness.remote_pod("bad"))


async def test_object_that_fails_a_handler_is_skipped_and_counted(
    api: FakeApi, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(_: Object | None, new: Object | None) -> None:
        if new is not None and new["metadata"]["name"] == "bad":
            raise ValueError(CANARY)

    informer = Informer(client, CONFIG_MAPS)
    informer.on_change(stumble)
    changes = ChangeRecorder(informer)
    api.put(config_map("bad"))
    async with running_informer(informer):
        api.put(config_map("good"))
        await caught_up(api, informer)
        assert sorted(changes.take()) == ["+bad", "+good"]
    assert client.metrics.defects == {"configmaps": 1}
    [message] = [it.getMessage() for it in caplog.records if it.levelno == logging.ERROR]
    assert "configmaps default/bad: a defect in the bridge" in message
    assert CANARY not in message


async def test_failing_indexer_keeps_the_object_and_other_indexes(
    api: FakeApi, client: KubeClient
) -> None:
    indexers = {"name": lambda it: (it["metadata"]["name"],), "data": lambda it: (it["data"]["a"],)}
    informer = Informer(client, CONFIG_MAPS, indexers=indexers)
    api.put(config_map("bad"))
    api.put(config_map("good", data={"a": "1"}))
    async with running_informer(informer):
        assert informer.store.keys() == {Key("default", "bad"), Key("default", "good")}
        assert informer.store.has("name", "bad")
        assert informer.store.has("data", "1")
        api.remove(CONFIG_MAPS, "bad", "default")
        await caught_up(api, informer)
        assert not informer.store.has("name", "bad")
    assert client.metrics.defects == {"configmaps": 1}


def test_summary_of_a_defect_is_its_type_and_place() -> None:
    with pytest.raises(ValueError, match=CANARY) as caught:
        int(CANARY)
    assert exception_summary.summary(caught.value).startswith(
        "ValueError in tests/sync/test_malicious_objects.py:"
    )
    assert CANARY not in exception_summary.summary(caught.value) + exception_summary.traced_summary(
        caught.value
    )
    assert exception_summary.summary(KeyError(CANARY)) == "KeyError"


async def test_forged_pod_in_another_namespace_is_ignored(harness: EngineHarness) -> None:
    """Users of the remote can set the bridge's labels on their own pods."""
    await harness.start()
    home = harness.pod("a")
    await harness.settle()
    harness.report_running("a")
    await harness.settle()
    ours = harness.remote_pod("a") or {}
    meta = {**ours["metadata"], "namespace": "evil", "name": "a"}
    status = {**ours["status"], "phase": "Failed", "message": CANARY}
    forged = harness.remote.put({**ours, "metadata": meta, "status": status})
    await harness.settle()
    assert harness.status("a")["phase"] == "Running"
    assert CANARY not in str(harness.home_pod("a"))
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.remote.until(
        lambda: "deletionTimestamp" in (harness.remote_pod("a") or {"metadata": {}})["metadata"]
    )
    await harness.settle()
    left = harness.remote.find(PODS, "a", "evil")
    assert left is not None
    assert "deletionTimestamp" not in left["metadata"]
    assert left["metadata"]["uid"] == forged["metadata"]["uid"]
    assert home["metadata"]["uid"] != forged["metadata"]["uid"]
