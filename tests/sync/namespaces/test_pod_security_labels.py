"""The Pod Security labels of remote namespaces, and pods that are rejected because of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from sync.cache.informer import Informer
from sync.capacity.remote_capacity import slim_namespace
from sync.kube.api_resources import EVENTS, NAMESPACES, PODS
from sync.kube.client import KubeClient
from sync.namespaces import home_namespace_labels
from sync.namespaces.home_namespace_labels import HomeNamespaceLabels
from sync.namespaces.namespace_ownership import NamespaceOwnership
from sync.namespaces.remote_namespace_creation import NamespaceMapping
from sync.runtime.controller import ReconcileBlocked
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.request_log import LoggedRequest
from tests.sync.engine_harness import IDENTITY, REMOTE_NAMESPACE, EngineHarness
from tests.sync.informer_harness import caught_up, running_informer
from tests.sync.memory_ownership_record import MemoryRecord
from translators.object_accessors import HomeNamespace
from translators.ownership_labels import ANNOTATION_ACCEPTS
from translators.pod_security import (
    ANNOTATION_SET,
    LABEL_ENFORCE,
    LABEL_ENFORCE_VERSION,
    REASON,
    PodSecurityLevel,
)

DEFAULT = HomeNamespace("default")
READ = "/api/v1/namespaces/default"
VIOLATION = 'pods "a" is forbidden: violates PodSecurity "baseline:latest": privileged (container)'


def label_home(api: FakeApi, level: str | None, version: str | None = None) -> None:
    """Labels home's namespace ``default``."""
    labels = {LABEL_ENFORCE: level, LABEL_ENFORCE_VERSION: version}
    api.update(NAMESPACES, "default", {"metadata": {"labels": labels}})


def enforced(api: FakeApi) -> str | None:
    """The level of the remote namespace."""
    labels = api.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"].get("labels") or {}
    return labels.get(LABEL_ENFORCE)


def reads(harness: EngineHarness) -> int:
    """How often home's namespace was read."""
    return len(harness.home.requests("GET", READ))


@pytest.mark.parametrize(
    ("home", "limit", "expected"),
    [
        (None, "privileged", "baseline"),
        ("privileged", "privileged", "privileged"),
        ("privileged", "baseline", "baseline"),
        ("restricted", "baseline", "restricted"),
    ],
)
async def test_new_namespace_has_the_level_before_its_first_object(
    harness: EngineHarness, home: str | None, limit: PodSecurityLevel, expected: str
) -> None:
    label_home(harness.home, home)
    harness.policy = replace(harness.policy, pod_security=limit)
    await harness.start()
    harness.pod()
    await harness.settle()
    [created] = harness.remote.writes("/api/v1/namespaces")
    assert created.body["metadata"]["labels"][LABEL_ENFORCE] == expected
    assert enforced(harness.remote) == expected
    assert harness.remote.writes(f"/api/v1/namespaces/{REMOTE_NAMESPACE}") == []


async def test_many_pods_cost_one_read_and_no_write(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod("first")
    await harness.settle()
    harness.clear_logs()
    for number in range(30):
        harness.pod(f"p{number}")
    await harness.settle()
    assert reads(harness) == 0
    assert harness.remote.writes("/api/v1/namespaces*/default-h") == []


async def test_level_follows_home_at_the_next_pod(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a namespace that an earlier version created without a label."""
    monkeypatch.setattr(home_namespace_labels, "SECONDS", 0.0)
    await harness.start()
    harness.pod("a")
    await harness.settle()
    none = {"labels": {LABEL_ENFORCE: None}, "annotations": {ANNOTATION_SET: None}}
    harness.remote.update(NAMESPACES, REMOTE_NAMESPACE, {"metadata": none})
    await harness.settle()
    harness.pod("b")
    await harness.settle()
    assert enforced(harness.remote) == "baseline"
    label_home(harness.home, "privileged", "v1.30")
    harness.pod("c")
    await harness.settle()
    assert enforced(harness.remote) == "privileged"
    label_home(harness.home, "restricted")
    harness.pod("d")
    await harness.settle()
    assert enforced(harness.remote) == "restricted"
    labels = harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]["labels"]
    assert LABEL_ENFORCE_VERSION not in labels


async def test_handed_over_namespace_keeps_its_labels(harness: EngineHarness) -> None:
    annotations = {ANNOTATION_ACCEPTS: "*"}
    meta = {"name": REMOTE_NAMESPACE, "annotations": annotations, "labels": {LABEL_ENFORCE: "x"}}
    theirs = harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    await harness.start()
    reject(harness, lambda _: True, times=1)
    harness.pod()
    await harness.events_with_reason(REASON)
    await harness.settle()
    assert harness.remote.get(NAMESPACES, REMOTE_NAMESPACE) == theirs
    [event] = harness.home.objects(EVENTS)
    assert "was handed over" in event["message"]
    assert reads(harness) == 0


def reject(
    harness: EngineHarness, when: Callable[[FakeApi], bool], *, times: int | None = None
) -> None:
    """Has the remote's Pod Security reject pods."""

    def applies(_: LoggedRequest) -> bool:
        return when(harness.remote)

    harness.remote.fail(
        Fault("POST", "*/pods", code=403, message=VIOLATION, when=applies, times=times)
    )


async def test_rejected_pod_names_the_level_and_runs_once_home_is_labelled(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_namespace_labels, "FRESH_SECONDS", 0.0)
    await harness.start()
    reject(harness, lambda api: enforced(api) == "baseline")
    harness.pod()
    await harness.events_with_reason(REASON)
    await harness.settle(waiting=True)
    status = harness.status()
    assert (status["phase"], status["reason"]) == ("Pending", REASON)
    assert VIOLATION in status["message"]
    assert "enforces baseline" in status["message"]
    assert f"kubectl label namespace default {LABEL_ENFORCE}=privileged" in status["message"]
    [accepted] = status["conditions"]
    assert accepted["reason"] == REASON

    label_home(harness.home, "privileged")
    await harness.settle()
    assert harness.remote_pod()
    assert enforced(harness.remote) == "privileged"
    assert "reason" not in harness.status()


async def test_rejection_below_the_limit_names_the_option(harness: EngineHarness) -> None:
    label_home(harness.home, "privileged")
    harness.policy = replace(harness.policy, pod_security="baseline")
    await harness.start()
    reject(harness, lambda _: True)
    harness.pod()
    [event] = await harness.events_with_reason(REASON)
    assert "virtual node virtual was joined with --pod-security baseline" in event["message"]


async def test_namespace_that_may_not_be_read_is_baseline_and_reported_once(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_namespace_labels, "SECONDS", 0.0)
    label_home(harness.home, "privileged")
    denied = harness.home.fail(Fault("GET", READ, code=403, message="no", times=None))
    await harness.start()
    with caplog.at_level(logging.WARNING):
        for name in "ab":
            harness.pod(name)
            await harness.settle()
    assert denied.hits >= 2
    assert enforced(harness.remote) == "baseline"
    lines = [it.getMessage() for it in caplog.records if "may not get namespace" in it.message]
    assert len(lines) == 1
    assert "bridge rbac home" in lines[0]

    reject(harness, lambda api: enforced(api) == "baseline")
    harness.pod("c")
    [event] = await harness.events_with_reason(REASON)
    assert "may not get namespace default of home" in event["message"]
    harness.home.heal(denied)
    await harness.settle()
    assert harness.remote_pod("c")
    assert enforced(harness.remote) == "privileged"


async def test_rejected_ephemeral_container_names_the_level(harness: EngineHarness) -> None:
    await harness.start_running()
    path = f"/api/v1/namespaces/{REMOTE_NAMESPACE}/pods/a/ephemeralcontainers"
    harness.remote.fail(Fault("PATCH", path, code=403, message=VIOLATION, times=None))
    debug = {"name": "debug", "image": "busybox:1", "securityContext": {"privileged": True}}
    harness.home.update(PODS, "a", {"spec": {"ephemeralContainers": [debug]}}, "default")
    [event] = await harness.events_with_reason("UpdateRefused")
    assert "enforces baseline" in event["message"]


class Node:
    """A virtual node of the same home, with its own cache."""

    def __init__(self, client: KubeClient, name: str, level: PodSecurityLevel) -> None:
        identity = replace(IDENTITY, node=name)
        self.informer = Informer(client, NAMESPACES, slim=slim_namespace)
        record = MemoryRecord()
        ownership = NamespaceOwnership(record, self.informer, identity)
        self.record = record
        self.mapping = NamespaceMapping(
            client,
            self.informer,
            identity,
            ownership,
            labels=HomeNamespaceLabels(client),
            level=level,
        )


@pytest.fixture
async def nodes(client: KubeClient) -> list[Node]:
    """Two nodes with different limits, which know each other's records."""
    found = [Node(client, "burst", "privileged"), Node(client, "pool", "restricted")]
    found[0].record.peers.append(found[1].record)
    found[1].record.peers.append(found[0].record)
    return found


async def test_nodes_with_different_limits_share_the_strictest_and_write_once(
    api: FakeApi, nodes: list[Node]
) -> None:
    one, other = nodes
    label_home(api, "privileged")
    async with running_informer(one.informer), running_informer(other.informer):
        await one.mapping.ensure(DEFAULT)
        assert enforced(api) == "privileged"
        await caught_up(api, other.informer)
        await other.mapping.ensure(DEFAULT)
        assert enforced(api) == "restricted"
        await caught_up(api, one.informer)
        api.clear_log()
        for node in (one, other, one, other):
            await node.mapping.ensure(DEFAULT)
            await caught_up(api, one.informer, other.informer)
        assert api.writes() == []

        namespace = other.mapping.owned(DEFAULT)
        assert namespace is not None
        await other.mapping.remove_user(namespace, unused=lambda: True)
        await caught_up(api, one.informer)
        await one.mapping.ensure(DEFAULT)
        assert enforced(api) == "privileged"


async def test_level_is_not_computed_from_a_stale_cache(api: FakeApi, nodes: list[Node]) -> None:
    """A node that has not seen the other's limit yet would remove its label."""
    one, other = nodes
    async with running_informer(one.informer), running_informer(other.informer):
        await one.mapping.ensure(DEFAULT)
        await caught_up(api, other.informer)
        change = {"labels": {LABEL_ENFORCE: None}}
        api.update(NAMESPACES, REMOTE_NAMESPACE, {"metadata": change})
        await caught_up(api, one.informer, other.informer)
        api.mute_watches()
        await other.mapping.ensure(DEFAULT)
        await one.mapping.ensure(DEFAULT)
        assert enforced(api) == "restricted"
        api.unmute_watches()


async def test_namespace_whose_changes_are_rejected_blocks(api: FakeApi, nodes: list[Node]) -> None:
    one, _ = nodes
    async with running_informer(one.informer):
        await one.mapping.ensure(DEFAULT)
        api.update(NAMESPACES, REMOTE_NAMESPACE, {"metadata": {"labels": {LABEL_ENFORCE: None}}})
        await caught_up(api, one.informer)
        path = f"/api/v1/namespaces/{REMOTE_NAMESPACE}"
        fault = api.fail(Fault("PATCH", path, code=409, message="webhook", times=None))
        with pytest.raises(ReconcileBlocked, match="webhook"):
            await asyncio.wait_for(one.mapping.ensure(DEFAULT), 5)
        assert fault.hits == 3
