"""Fields that the remote's API server drops when a pod is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sync.kube.resources import EVENTS, PODS, Object
from tests.fakeapi import Fault
from tests.sync.world import THERE, World

_POSTS = f"/api/v1/namespaces/{THERE}/pods"


def _drops(world: World, drop: Callable[[Object], Any]) -> None:
    """The remote's API server drops fields of pods."""

    def webhook(obj: Object) -> None:
        if obj["kind"] == "Pod":
            drop(obj["spec"])

    world.remote.store.webhook = webhook


def _without_host_users(spec: Object) -> None:
    spec.pop("hostUsers", None)


def _made(world: World) -> int:
    """How often a pod was made, dry runs aside."""
    return len([it for it in world.remote.requests("POST", _POSTS) if "dryRun" not in it.query])


async def test_pod_that_would_lose_its_user_namespace_is_rejected_before_creation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(world, _without_host_users)
    await world.start()
    world.pod(hostUsers=False)
    (event,) = await world.events_with_reason("RemoteDropsField")
    assert "spec.hostUsers" in event["message"]
    await world.remote.until(lambda: len(world.remote.requests("POST", _POSTS)) > 2)
    assert _made(world) == 0
    assert world.status()["phase"] == "Pending"
    assert world.status()["reason"] == "RemoteDropsField"
    world.remote.store.webhook = None
    await world.settle()
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["hostUsers"] is False
    assert "reason" not in world.status()


async def test_pod_that_lost_a_restriction_is_deleted_and_not_recreated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a field that every supported server keeps, only the answer shows it."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(world, lambda spec: spec["securityContext"].pop("runAsNonRoot", None))
    await world.start()
    world.pod(securityContext={"runAsNonRoot": True})
    await world.events_with_reason("RemoteDropsField")
    await world.remote.until(lambda: len(world.remote.requests("POST", _POSTS)) > 3)
    assert _made(world) == 1
    assert world.remote_pod() is None
    assert world.status()["reason"] == "RemoteDropsField"


@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_rejected_pod_runs_once_the_remote_keeps_the_field(
    world: World, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(world, lambda spec: spec["securityContext"].pop("runAsNonRoot", None))
    await world.start()
    world.pod(securityContext={"runAsNonRoot": True}, restartPolicy=policy)
    await world.events_with_reason("RemoteDropsField")
    world.remote.store.webhook = None
    await world.settle()
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["securityContext"]["runAsNonRoot"] is True
    assert not remote["spec"].get("schedulingGates")


async def test_other_lost_field_is_an_event(world: World) -> None:
    def drop(spec: Object) -> None:
        spec["containers"][0].pop("lifecycle", None)

    _drops(world, drop)
    await world.start()
    main = {"name": "main", "image": "busybox:1", "lifecycle": {"stopSignal": "SIGUSR1"}}
    world.pod(containers=[main], schedulerName="mine")
    (event,) = await world.events_with_reason("FieldDropped")
    assert "spec.schedulerName" in event["message"]
    assert "spec.containers[main].lifecycle: the remote cluster's API server" in event["message"]
    await world.settle()
    assert world.remote_pod()


async def test_a_usual_pod_costs_one_request_and_no_event(world: World) -> None:
    await world.start()
    context = {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}}
    world.pod(containers=[{"name": "main", "image": "busybox:1", "securityContext": context}])
    await world.settle()
    assert len(world.remote.requests("POST", _POSTS)) == 1
    assert world.home.objects(EVENTS) == []


async def test_webhook_without_dry_run_support_is_compared_afterwards(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(world, _without_host_users)
    world.remote.fail(
        Fault(
            "POST",
            _POSTS,
            when=lambda entry: "dryRun" in entry.query,
            code=400,
            message='admission webhook "w" does not support dry run',
            times=None,
        )
    )
    await world.start()
    world.pod(hostUsers=False)
    await world.events_with_reason("RemoteDropsField")
    await world.remote.until(lambda: _made(world) > 1)
    assert [it for it in world.remote.objects(PODS) if "nodeName" in it["spec"]] == []


async def test_pod_with_an_unanswered_create_is_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    _drops(world, lambda spec: spec["securityContext"].pop("runAsNonRoot", None))
    world.remote.fail(Fault("POST", _POSTS, drop="after"))
    await world.start()
    world.pod(securityContext={"runAsNonRoot": True})
    await world.events_with_reason("RemoteDropsField")
    assert world.remote_pod() is None
