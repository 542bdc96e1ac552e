"""Fields that the remote's API server drops when it creates a pod."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sync.kube.api_resources import EVENTS, PODS, Object
from tests.fakeapi import Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness

_POSTS = f"/api/v1/namespaces/{REMOTE_NAMESPACE}/pods"


def _drops(harness: EngineHarness, drop: Callable[[Object], Any]) -> None:
    """The remote's API server drops fields of pods."""

    def webhook(obj: Object) -> None:
        if obj["kind"] == "Pod":
            drop(obj["spec"])

    harness.remote.store.webhook = webhook


def _without_host_users(spec: Object) -> None:
    spec.pop("hostUsers", None)


def _made(harness: EngineHarness) -> int:
    """The number of pod creations, without dry runs."""
    return len([it for it in harness.remote.requests("POST", _POSTS) if "dryRun" not in it.query])


async def test_pod_that_would_lose_its_user_namespace_is_rejected_before_creation(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(harness, _without_host_users)
    await harness.start()
    harness.pod(hostUsers=False)
    (event,) = await harness.events_with_reason("RemoteDropsField")
    assert "spec.hostUsers" in event["message"]
    await harness.remote.until(lambda: len(harness.remote.requests("POST", _POSTS)) > 2)
    assert _made(harness) == 0
    assert harness.status()["phase"] == "Pending"
    assert harness.status()["reason"] == "RemoteDropsField"
    harness.remote.store.webhook = None
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["hostUsers"] is False
    assert "reason" not in harness.status()


async def test_pod_that_lost_a_restriction_is_deleted_and_not_recreated(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a field that every supported server keeps, only the response shows the loss."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(harness, lambda spec: spec["securityContext"].pop("runAsNonRoot", None))
    await harness.start()
    harness.pod(securityContext={"runAsNonRoot": True})
    await harness.events_with_reason("RemoteDropsField")
    await harness.remote.until(lambda: len(harness.remote.requests("POST", _POSTS)) > 3)
    assert _made(harness) == 1
    assert harness.remote_pod() is None
    assert harness.status()["reason"] == "RemoteDropsField"


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_rejected_pod_runs_once_the_remote_keeps_the_field(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(harness, lambda spec: spec["securityContext"].pop("runAsNonRoot", None))
    await harness.start()
    harness.pod(securityContext={"runAsNonRoot": True}, restartPolicy=policy)
    await harness.events_with_reason("RemoteDropsField")
    harness.remote.store.webhook = None
    await harness.settle()
    remote = harness.remote_pod()
    assert remote
    assert remote["spec"]["securityContext"]["runAsNonRoot"] is True
    assert not remote["spec"].get("schedulingGates")


async def test_other_lost_field_is_an_event(harness: EngineHarness) -> None:
    def drop(spec: Object) -> None:
        spec["containers"][0].pop("lifecycle", None)

    _drops(harness, drop)
    await harness.start()
    main = {"name": "main", "image": "busybox:1", "lifecycle": {"stopSignal": "SIGUSR1"}}
    harness.pod(containers=[main], schedulerName="mine")
    (event,) = await harness.events_with_reason("FieldDropped")
    assert "spec.schedulerName" in event["message"]
    assert "spec.containers[main].lifecycle: the remote cluster's API server" in event["message"]
    await harness.settle()
    assert harness.remote_pod()


async def test_a_usual_pod_costs_one_request_and_no_event(harness: EngineHarness) -> None:
    await harness.start()
    context = {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}
    harness.pod(containers=[{"name": "main", "image": "busybox:1", "securityContext": context}])
    await harness.settle()
    assert len(harness.remote.requests("POST", _POSTS)) == 1
    assert harness.home.objects(EVENTS) == []


async def test_webhook_without_dry_run_support_is_compared_afterwards(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(harness, _without_host_users)
    harness.remote.fail(
        Fault(
            "POST",
            _POSTS,
            when=lambda entry: "dryRun" in entry.query,
            code=400,
            message='admission webhook "w" does not support dry run',
            times=None,
        )
    )
    await harness.start()
    harness.pod(hostUsers=False)
    await harness.events_with_reason("RemoteDropsField")
    await harness.remote.until(lambda: _made(harness) > 1)
    assert [it for it in harness.remote.objects(PODS) if "nodeName" in it["spec"]] == []


async def test_pod_with_an_unanswered_create_is_compared(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(harness, lambda spec: spec["securityContext"].pop("runAsNonRoot", None))
    harness.remote.fail(Fault("POST", _POSTS, drop="after"))
    await harness.start()
    harness.pod(securityContext={"runAsNonRoot": True})
    await harness.events_with_reason("RemoteDropsField")
    assert harness.remote_pod() is None
