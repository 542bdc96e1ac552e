"""An engine that reads prepared namespaces alone: several watches behind each store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sync.kube.api_resources import NAMESPACES, PODS
from tests.fakeapi import FakeApi, Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import ANNOTATION_ACCEPTS
from translators.translation_options import ClusterReads

OTHER = "other-h"
NOTHING = ClusterReads(
    nodes=False, namespaces=False, pods=False, priority_classes=False, resource_quotas=False
)


@pytest.fixture
async def prepared(home_api: FakeApi, remote_api: FakeApi) -> AsyncIterator[EngineHarness]:
    """A started engine of two prepared namespaces; everything else in the remote is forbidden."""
    for name in (REMOTE_NAMESPACE, OTHER):
        meta = {"name": name, "annotations": {ANNOTATION_ACCEPTS: "*"}}
        remote_api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    for name in ("nodes", "namespaces", "pods", "configmaps", "secrets", "resourcequotas"):
        remote_api.fail(Fault("GET", f"/api/v1/{name}", code=403, times=None))
    remote_api.fail(Fault("GET", "/apis/*/v1/priorityclasses", code=403, times=None))
    async with EngineHarness(home_api, remote_api) as harness:
        harness.policy = replace(
            harness.policy, remote_namespaces=(REMOTE_NAMESPACE, OTHER), cluster_reads=NOTHING
        )
        yield harness


async def test_pods_of_both_namespaces_live(prepared: EngineHarness) -> None:
    await prepared.start()
    for namespace, there in (("default", REMOTE_NAMESPACE), ("other", OTHER)):
        prepared.pod("a", namespace)
        await prepared.settle()
        prepared.report_running("a", there)
        await prepared.settle()
        assert prepared.status("a", namespace)["phase"] == "Running"
    assert not [entry for entry in prepared.remote.log if entry.code == [403]]
    await prepared.restart()
    assert prepared.writes() == []
    await prepared.engine.refresh()
    prepared.home.delete(PODS, "a", "other")
    await prepared.remote.until(
        lambda: "deletionTimestamp" in (prepared.remote_pod("a", OTHER) or {})["metadata"]
    )
    assert prepared.remote_pod("a") is not None


async def test_deletion_of_one_namespace_leaves_the_other_alone(prepared: EngineHarness) -> None:
    """With a prepared namespace its Role is deleted, so that its watches are forbidden."""
    await prepared.start()
    await prepared.settle()
    prepared.remote.remove(NAMESPACES, OTHER)
    prepared.remote.fail(Fault("*", f"*/namespaces/{OTHER}/*", code=403, times=None))
    prepared.remote.fail(Fault("GET", f"*/namespaces/{OTHER}", code=403, times=None))
    prepared.remote.end_watches()
    prepared.pod("a", "other")
    await prepared.home.until(
        lambda: prepared.status("a", "other").get("reason") == "RemoteNamespaceMissing"
    )
    prepared.pod("b")
    await prepared.remote.until(lambda: prepared.remote_pod("b"))
    await prepared.engine.refresh()
    assert prepared.engine.remote_pods.error is None
