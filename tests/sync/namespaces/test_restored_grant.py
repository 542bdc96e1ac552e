"""A namespace that is no longer handed over, and is handed over again."""

from __future__ import annotations

import pytest

from sync.kube.api_resources import NAMESPACES, PODS, Object
from tests.objects import config_map, secret
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import ANNOTATION_ACCEPTS


def hand_over(harness: EngineHarness, value: str | None) -> None:
    annotations: Object = {"metadata": {"annotations": {ANNOTATION_ACCEPTS: value}}}
    harness.remote.update(NAMESPACES, REMOTE_NAMESPACE, annotations)


@pytest.fixture
async def granted(harness: EngineHarness) -> EngineHarness:
    """An engine with a running pod in a namespace that was handed over."""
    meta = {"name": REMOTE_NAMESPACE, "annotations": {ANNOTATION_ACCEPTS: "*"}}
    harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await harness.start_running(uses=["cm/conf", "secret/key"])
    return harness


async def test_orphan_and_copies_are_deleted_when_the_grant_is_back(granted: EngineHarness) -> None:
    hand_over(granted, None)
    await granted.settle()
    granted.home.remove(PODS, "a", "default")
    await granted.settle()
    assert granted.secret(), "nothing is written in the namespace"
    hand_over(granted, "*")
    await granted.settle()
    assert "deletionTimestamp" in (granted.remote_pod() or {})["metadata"]
    granted.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await granted.settle()
    assert granted.secret() is None
    assert granted.config_map() is None


async def test_pod_that_waited_for_the_grant_starts_at_once(granted: EngineHarness) -> None:
    hand_over(granted, None)
    await granted.settle()
    granted.pod("next")
    await granted.settle(waiting=True)
    assert granted.status("next")["reason"] == "RemoteClash"
    hand_over(granted, "*")
    await granted.settle()
    assert granted.remote_pod("next")


async def test_change_at_home_reaches_the_copy_when_the_grant_is_back(
    granted: EngineHarness,
) -> None:
    hand_over(granted, None)
    await granted.settle()
    granted.home.put(config_map("conf", data={"k": "2"}))
    await granted.settle(waiting=True)
    hand_over(granted, "*")
    await granted.settle()
    assert (granted.config_map() or {})["data"] == {"k": "2"}
