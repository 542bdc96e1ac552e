"""Placed pods return to an earlier tier if they lose nothing by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from translators.fit.node_groups import NodeGroup
from translators.object_accessors import Object
from translators.placement import placed_pod
from translators.placement.decision import HOME, Decision, Remote, Room
from translators.placement.failback import possible_returns, with_pod, without_place
from translators.placement.placement_policy import (
    FAILBACK_READY_FOR,
    PlacementPolicy,
    PolicyError,
    parse_policy,
)
from translators.timestamps import format_time

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
SINCE = NOW - timedelta(seconds=FAILBACK_READY_FOR)


HOME_FIRST: list[Object] = [
    {"name": "home", "home": True},
    {"name": "remote", "remotes": {"matchLabels": {"class": "cheap"}}},
]


def policy(tiers: list[Object] = HOME_FIRST, **failback: Any) -> PlacementPolicy:
    spec: Object = {"namespaces": ["default"], "tiers": tiers, "failback": failback}
    return parse_policy({"metadata": {"name": "p"}, "spec": spec})


def running(choice: str = "far", tier: str = "remote", **spec: Any) -> Object:
    """A pod that was placed and runs."""
    pod: Object = {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}],
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            **spec,
        },
    }
    placed = placed_pod.placed(placed_pod.gated(pod), Decision("p", choice, tier))
    placed["spec"]["nodeName"] = choice
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": format_time(SINCE)}
    return {**placed, "status": {"phase": "Running", "conditions": [ready]}}


def room(home_cpu: int, since: datetime = SINCE) -> Room:
    labels = {"class": "cheap", "kubernetes.io/hostname": "far"}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": format_time(since)}
    node = {"metadata": {"name": "far", "labels": labels}, "status": {"conditions": [ready]}}
    groups = (NodeGroup(free={"cpu": 9000}, pods=9),)
    far = Remote(node, {"cpu": 9000, "pods": 9}, groups)
    return Room([far], (NodeGroup(free={"cpu": home_cpu}, pods=9),))


def returns(
    pod: Object,
    home_cpu: int = 2000,
    which: PlacementPolicy | None = None,
    *,
    since: datetime = SINCE,
    refused: Object | None = None,
) -> str:
    """Where the pod would return to; "" if it stays."""
    found = possible_returns(
        [pod],
        which or policy(podsPerMinute=1),
        room(home_cpu, since),
        counts={"far": 1},
        now=NOW,
        refused=lambda _: refused or {},
    )
    choices = [it.choice for it in found if it.pod is pod]
    return choices[0] if choices else ""


def test_pod_returns_once_the_earlier_tier_has_room() -> None:
    assert returns(running())
    assert not returns(running(), home_cpu=999)
    assert returns(running(), which=policy()) == HOME


def test_pod_returns_to_a_remote_that_has_been_ready_for_as_long_and_did_not_refuse_it() -> None:
    remote_first = policy(tiers=HOME_FIRST[::-1], readyFor="5m")
    pod = running(choice=HOME, tier="home")
    assert returns(pod, which=remote_first) == "far"
    assert not returns(pod, which=remote_first, since=SINCE + timedelta(seconds=1))
    assert not returns(pod, which=remote_first, refused={"far": "no GPU"})


def test_pod_may_return_sooner_by_the_policy() -> None:
    pod = running()
    since = format_time(NOW - timedelta(seconds=10))
    pod["status"]["conditions"][0]["lastTransitionTime"] = since
    assert not returns(pod)
    assert not returns(pod, which=policy(readyFor="11s"))
    assert returns(pod, which=policy(readyFor="10s")) == HOME
    with pytest.raises(PolicyError, match=r"spec\.failback\.readyFor: a duration"):
        policy(readyFor="soon")


@pytest.mark.parametrize("choice", [HOME, "far"])
def test_successor_takes_room(choice: str) -> None:
    before = room(1500)
    after = with_pod(before, without_place(running(), "far"), choice)
    took = 1000 if choice == HOME else 0
    assert after.home[0].free["cpu"] == 1500 - took
    (remote,) = after.remotes
    assert remote.free["cpu"] == 9000 - (1000 - took)
    assert remote.groups is not None
    assert remote.groups[0].free["cpu"] == 9000 - (1000 - took)


def test_pod_stays_without_failback_and_in_the_first_tier() -> None:
    never = parse_policy(
        {
            "metadata": {"name": "p"},
            "spec": {"namespaces": ["default"], "tiers": [{"name": "home", "home": True}]},
        }
    )
    assert not returns(running(), which=never)
    assert not returns(running(choice=HOME, tier="home"))
    assert not returns(running(tier="a tier that the policy had"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"status": {"phase": "Pending"}}, id="does not run"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-05-01T11:00:00Z"}}, id="ends"),
        pytest.param({"spec": {"restartPolicy": "Never"}}, id="runs once"),
        pytest.param({"metadata": {"ownerReferences": None}}, id="has no controller"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"kind": "Job", "controller": True}]}}, id="of a Job"
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}},
            id="has data",
        ),
        pytest.param(
            {
                "metadata": {
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
                }
            },
            id="rejects evictions",
        ),
        pytest.param(
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, id="not ready"
        ),
        pytest.param(
            {
                "status": {
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "lastTransitionTime": format_time(SINCE + timedelta(seconds=1)),
                        }
                    ]
                }
            },
            id="ready for too short a time",
        ),
    ],
)
def test_pod_that_would_lose_something_stays(change: Object) -> None:
    assert not returns(_merged(running(), change))


def _merged(old: Object, change: Object) -> Object:
    found = dict(old)
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = _merged(found[key], value)
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodeSelector": {"disk": "ssd"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
                        ]
                    }
                }
            }
        },
    ],
)
@pytest.mark.parametrize("choice", [HOME, "far"])
def test_place_is_removed_without_the_pods_own_selection(spec: Object, choice: str) -> None:
    found = without_place(running(choice=choice, **spec), choice)["spec"]
    assert (found.get("nodeSelector") or {}) == (spec.get("nodeSelector") or {})
    own = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    assert ((found.get("affinity") or {}).get("nodeAffinity") or {}) == own
