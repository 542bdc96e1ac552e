"""Remotes of a fake home."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bridge.crds.remote_crd import FINALIZER
from bridge.fleet import object_source, remote_objects, supervisor
from bridge.fleet.fleet_report import NodeUse
from bridge.fleet.remote_objects import RemoteKind
from sync.kube.api_resources import NODES, REMOTES, SECRETS
from tests.bridge.fleet.object_fleet import KUBECONFIG, NAMESPACE, Fleet, running, secret
from tests.fakeapi.faults import Fault
from tests.fakeapi.server import FakeApi
from translators.object_accessors import Object
from translators.timestamps import format_time


def remote(name: str, **spec: Any) -> Object:
    meta = {"name": name, "namespace": NAMESPACE}
    return REMOTES.manifest(meta, spec={"kubeconfigSecret": {"name": name}, **spec})


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(object_source, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 0.01)
    async with FakeApi() as home:
        home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield Fleet(home, tmp_path, RemoteKind())


async def test_remotes_join_change_and_leave_without_touching_others(fleet: Fleet) -> None:
    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        found = fleet.find("osaka")
        assert found is not None
        assert found["metadata"]["finalizers"] == [FINALIZER]
        assert found["status"]["nodeName"] == "osaka"
        assert found["status"]["observedGeneration"] == 1
        assert fleet.condition("osaka", "Accepted")["status"] == "True"
        assert fleet.condition("osaka", "Stalled") == {}
        assert fleet.kubeconfig("osaka")["users"][0]["user"] == {"token": "t1"}

        fleet.home.put(secret("lima", key="value"))
        fleet.home.put(remote("lima", nodeName="peru", options={"cpu": 4}))
        await fleet.until_ready("lima")
        ports = {name: it.settings.port for name, it in fleet.served.items()}
        assert ports == {"osaka": 10250, "peru": 10251}

        fleet.home.update(REMOTES, "lima", {"spec": {"options": {"cpu": 8}}}, NAMESPACE)
        await fleet.until(lambda: fleet.events.count("+peru") == 2)
        assert fleet.served["peru"].settings.port == 10251
        fleet.home.delete(REMOTES, "lima", NAMESPACE)
        await fleet.until(lambda: fleet.find("lima") is None)
        assert [(it.settings.name, it.abandons) for it in fleet.left] == [("peru", False)]
        assert fleet.events.count("+osaka") == 1
        assert "osaka" in fleet.served


async def test_rotated_secret_takes_effect_without_a_restart(fleet: Fleet) -> None:
    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        fleet.home.put(secret("osaka", KUBECONFIG.replace("t1", "t2")))
        await fleet.until(lambda: fleet.kubeconfig("osaka")["users"][0]["user"]["token"] == "t2")
        assert fleet.events == ["+osaka"]


@pytest.mark.parametrize(
    ("spec", "content", "reason", "message"),
    [
        ({}, None, "SecretNotFound", "no Secret osaka in namespace fleet"),
        (
            {"kubeconfigSecret": {"name": "osaka", "key": "config"}},
            KUBECONFIG,
            "SecretInvalid",
            "no key config",
        ),
        (
            {},
            KUBECONFIG.replace("token: t1", "exec: {command: /bin/sh, apiVersion: v1}"),
            "KubeconfigRejected",
            "users[0].user.exec",
        ),
        (
            {},
            KUBECONFIG.replace("token: t1", "tokenFile: /etc/passwd"),
            "KubeconfigRejected",
            "users[0].user.tokenFile",
        ),
        ({"options": {"share": 7}}, KUBECONFIG, "OptionsInvalid", "spec.options.share"),
        ({"options": {"kubeconfig": "x"}}, KUBECONFIG, "OptionsInvalid", "kubeconfig is not"),
    ],
)
async def test_invalid_remote_is_reported_and_joined_once_it_is_valid(
    fleet: Fleet, spec: Object, content: str | None, reason: str, message: str
) -> None:
    if content is not None:
        fleet.home.put(secret("osaka", content))
    fleet.home.put(remote("osaka", **spec))
    async with running(fleet):
        await fleet.until(lambda: fleet.reason("osaka") == reason)
        for kind, status in (("Accepted", "False"), ("Ready", "False"), ("Stalled", "True")):
            assert fleet.condition("osaka", kind)["status"] == status
        assert message in fleet.condition("osaka", "Ready")["message"]
        assert "t1" not in json.dumps(fleet.find("osaka"))
        assert fleet.events == []
        fleet.home.put(secret("osaka"))
        fixed = {"spec": {"kubeconfigSecret": {"name": "osaka", "key": None}, "options": None}}
        fleet.home.update(REMOTES, "osaka", fixed, NAMESPACE)
        await fleet.until_ready("osaka")
        assert fleet.condition("osaka", "Stalled") == {}


async def test_recreated_remote_does_not_use_the_credential_of_the_earlier_one(
    fleet: Fleet,
) -> None:
    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        fleet.home.delete(REMOTES, "osaka", NAMESPACE)
        await fleet.until(lambda: fleet.find("osaka") is None)
        fleet.home.remove(SECRETS, "osaka", NAMESPACE)
        fleet.home.put(remote("osaka"))
        await fleet.until(lambda: fleet.reason("osaka") == "SecretNotFound")
        assert fleet.served == {}


async def test_running_join_survives_an_invalid_change(fleet: Fleet) -> None:
    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        fleet.home.update(REMOTES, "osaka", {"spec": {"options": {"share": 7}}}, NAMESPACE)
        await fleet.until(lambda: fleet.reason("osaka", "Accepted") == "OptionsInvalid")
        fleet.home.remove(SECRETS, "osaka", NAMESPACE)
        fleet.home.update(REMOTES, "osaka", {"spec": {"options": None}}, NAMESPACE)
        await fleet.until(lambda: fleet.reason("osaka", "Accepted") == "Valid")
        assert fleet.condition("osaka", "Ready")["status"] == "True"
        assert fleet.events == ["+osaka"]


async def test_second_remote_of_a_node_is_rejected(fleet: Fleet) -> None:
    for name in ("osaka", "other"):
        fleet.home.put(secret(name))
        fleet.home.put(remote(name, nodeName="burst"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        await fleet.until(lambda: fleet.reason("other") == "NodeNameTaken")
        fleet.home.delete(REMOTES, "other", NAMESPACE)
        await fleet.until(lambda: fleet.find("other") is None)
        assert fleet.left == []
        assert fleet.events == ["+burst"]


async def test_deleted_remote_waits_for_its_remote_and_is_abandoned_after_its_timeout(
    fleet: Fleet,
) -> None:
    fleet.leave_error = "remote: does not answer"
    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka", leaveTimeout="1h"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        fleet.home.delete(REMOTES, "osaka", NAMESPACE)
        await fleet.until(lambda: "does not answer" in fleet.condition("osaka", "Ready")["message"])
        assert fleet.reason("osaka") == "Retrying"
        fleet.home.update(REMOTES, "osaka", {"spec": {"leaveTimeout": "1ms"}}, NAMESPACE)
        await fleet.until(lambda: fleet.find("osaka") is None)
        assert [it.abandons for it in fleet.left] == [True]


async def test_remote_that_was_deleted_while_no_bridge_ran_leaves(fleet: Fleet) -> None:
    """Its Secret was deleted too."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "osaka"}}
    fleet.home.put(node)
    joined = remote("osaka", options={"share": 7})
    joined["metadata"] |= {"finalizers": [FINALIZER]}
    fleet.home.put(joined)
    fleet.home.delete(REMOTES, "osaka", NAMESPACE)
    async with running(fleet):
        await fleet.until(lambda: fleet.find("osaka") is None)
        assert [it.settings.name for it in fleet.left] == ["osaka"]


async def test_invalid_remote_that_never_joined_is_deleted_at_once(fleet: Fleet) -> None:
    never = remote("osaka", options={"share": 7})
    never["metadata"] |= {"finalizers": [FINALIZER]}
    fleet.home.put(never)
    async with running(fleet):
        await fleet.until(lambda: fleet.reason("osaka") == "SecretNotFound")
        fleet.home.delete(REMOTES, "osaka", NAMESPACE)
        await fleet.until(lambda: fleet.find("osaka") is None)
        assert fleet.home.find(NODES, "osaka") is None


async def test_idle_remote_costs_no_request_and_no_read(fleet: Fleet) -> None:
    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        await asyncio.sleep(0.2)
        requests, reads = len(fleet.home.log), fleet.reads
        await asyncio.sleep(0.5)
        assert len(fleet.home.log) == requests
        assert fleet.reads == reads


async def test_missing_definition_is_reported_with_the_next_step(fleet: Fleet) -> None:
    fault = fleet.home.faults.add(Fault(path="/apis/cluster-bridge.io/*", code=404))
    async with running(fleet):
        await fleet.until(lambda: "bridge crds" in fleet.supervisor.report.error)
        fleet.home.faults.lift(fault)
        fleet.home.put(secret("osaka"))
        fleet.home.put(remote("osaka"))
        await fleet.until_ready("osaka")


async def test_pods_and_resources_of_the_node_are_shown_while_it_is_served(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> Object:
        status = (fleet.find("osaka") or {}).get("status") or {}
        return {key: it for key, it in status.items() if key in ("pods", "allocatable")}

    def writes() -> int:
        return sum(it.method == "PATCH" and it.path.endswith("/status") for it in fleet.home.log)

    fleet.home.put(secret("osaka"))
    fleet.home.put(remote("osaka"))
    async with running(fleet):
        await fleet.until_ready("osaka")
        assert shown() == {}
        offered = {"cpu": "4", "example.com/gpu": "1"}
        fleet.use = NodeUse(0, offered)
        await fleet.until(lambda: shown() == {"pods": 0, "allocatable": offered})
        # Soon after a write, a change of these alone waits; without a change nothing is written.
        before = writes()
        fleet.use = NodeUse(3, {"cpu": "5"})
        await asyncio.sleep(0.2)
        assert shown()["pods"] == 0
        monkeypatch.setattr(remote_objects, "USE_SECONDS", 0.0)
        await fleet.until(lambda: shown() == {"pods": 3, "allocatable": {"cpu": "5"}})
        await asyncio.sleep(0.2)
        assert writes() == before + 1
        fleet.leave_error = "remote: does not answer"
        fleet.home.delete(REMOTES, "osaka", NAMESPACE)
        await fleet.until(lambda: shown() == {})


def test_times_of_unchanged_conditions_are_kept() -> None:
    early = datetime(2026, 1, 1, tzinfo=UTC)
    object_ = remote("osaka")
    object_["status"] = remote_objects.status(
        object_, rejection=None, state="joining", error="", now=early
    )
    later = early + timedelta(hours=1)
    status = remote_objects.status(object_, rejection=None, state="running", error="", now=later)
    times = {it["type"]: it["lastTransitionTime"] for it in status["conditions"]}
    assert times == {"Accepted": format_time(early), "Ready": format_time(later)}


@pytest.mark.parametrize("timeout", ["99999999999d", "9" * 32])
def test_leave_timeout_beyond_the_calendar_is_limited(timeout: str) -> None:
    deleted = datetime(2026, 1, 1, tzinfo=UTC)
    object_ = remote("osaka", leaveTimeout=timeout)
    object_["metadata"]["deletionTimestamp"] = format_time(deleted)
    end = remote_objects.abandoned_at(object_)
    assert end is not None
    assert end - deleted == timedelta(days=365)
