"""The tree of a status, and its one-line summary."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.status import node_pod_summary, status_tree
from tests.bridge.status import examples
from tests.bridge.status.examples import pod, refused, status
from translators.capacity import pod_requests

READY = [{"type": "Ready", "status": "True"}]

WHOLE = """\
remote: Ready
  conditions
    Ready: True (RemoteReady): usable nodes: 1 of 1
    False: MemoryPressure
  capacity and use
    cpu: 1 of 3 (33 %); the remote has 4
    memory: 0 of 6Gi (0 %); the remote has 8Gi
    pods: 2 of 100 (2 %); the remote has 110
  pods: 3, 1 ready
    Pending: 1
    Running: 1
    Failed: 1
    not created in the remote: 1
      shop/b: FieldRefused: take it away
  bridge: serves the node; up for 2h
  lag: 0.0 s
  queues: empty
  watches: 2, last response 4s ago
  recent errors: none
  versions
    bridge: 0.1.0
    home: v1.34.4 at https://192.0.2.10:6443
    remote: v1.34.4 at https://203.0.113.7:6443
    the remote's kubelets: v1.34.4"""


def test_complete_tree() -> None:
    shown = status(pod("a", "Running", conditions=READY), refused("b"), pod("c", "Failed"))
    assert status_tree.plain_text(status_tree.build_tree(shown)) == WHOLE


def _volumes(**changes: Any) -> dict[str, Any]:
    missing = {"name": "pvc-1", "claim": "shop/data", "message": "it does not exist"}
    counts = {"total": 22, "capacity": "40Gi", "pending": 2, "missing": 21}
    return {**counts, "missingVolumes": [missing] * 20, **changes}


def test_volumes_are_shown_with_pending_and_missing_ones() -> None:
    shown = status(volumes=_volumes())
    text = status_tree.plain_text(status_tree.build_tree(shown))
    assert (
        """
  volumes: 22 with 40Gi
    pending: 2 PersistentVolumeClaims
    missing in the remote: 21, whose pods cannot start
      shop/data: it does not exist
"""
        in text
    )
    assert "      and: 1 more" in text
    assert "2 volumes pending, 21 volumes missing" in status_tree.one_line(shown)


def test_node_without_volumes_has_no_such_branch() -> None:
    none = _volumes(total=0, pending=0, missing=0, missingVolumes=[])
    for volumes in (none, None):
        tree = status_tree.build_tree(status(volumes=volumes))
        assert "volumes" not in [it.label for it in tree.children]


def test_problems_are_highlighted() -> None:
    queue = {**examples.bridge()["queues"][0], "depth": 3, "failing": 2, "oldestSeconds": 60.0}
    watch = {**examples.bridge()["watches"][0], "failing": 1, "error": "no answer"}
    error = {"level": "error", "message": "it broke", "count": 7, "first": "f", "last": "l"}
    bridge = examples.bridge(
        queues=[queue], watches=[watch], errors=[error] * 6, lagSeconds=60.0, streams={"exec": 2}
    )
    root = status_tree.build_tree(status(ready=False, cordoned=True, bridge=bridge))
    assert (root.text, root.tone) == ("NotReady,SchedulingDisabled", "bad")
    lines = status_tree.plain_text(root).splitlines()
    for line in (
        "  lag: 60.0 s",
        "    pods: 3 waiting, 2 failing",
        "  watches: 2, last response 4s ago, 1 failing",
        "    remote pods: no answer",
        "  streams: 2 exec",
        "    l, 7 times: it broke",
        "    and: 1 more",
    ):
        assert line in lines
    assert next(it for it in root.children if it.label == "lag").tone == "warn"


def test_tree_without_bridge_status() -> None:
    shown = status(bridge=None, bridgeUnknown="home: no right", pods=None, podsUnknown="nor that")
    text = status_tree.plain_text(status_tree.build_tree(shown))
    assert "  bridge: home: no right" in text
    assert "  pods: nor that" in text
    assert "    bridge: 0.1.0" in text


def test_tree_of_an_unknown_node() -> None:
    standby = examples.bridge(standby="this bridge stands by for node remote")
    text = status_tree.plain_text(
        status_tree.build_tree({"name": "remote", "ready": None, "bridge": standby})
    )
    assert text.startswith("remote: Unknown\n  bridge: this bridge stands by for node remote; up")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "remote: Ready, 2 pods (1 Pending, 1 Running), 1 refused"),
        ({"bridge": None}, "remote: Ready, 2 pods (1 Pending, 1 Running), 1 refused, bridge: no"),
        ({"pods": None}, "remote: Ready"),
    ],
)
def test_one_line_summary(changes: dict[str, Any], expected: str) -> None:
    shown = status(pod("a", "Running"), refused("b"), **changes)
    assert status_tree.one_line(shown).startswith(expected)


def test_finished_pods_request_nothing_and_rejected_pods_are_counted() -> None:
    pods = node_pod_summary.PodCounts()
    for it in (pod("a", "Succeeded"), pod("b", "Strange"), *(refused(str(n)) for n in range(30))):
        pods.add(it)
    counts = pods.as_dict()
    assert (counts["refused"], len(counts["refusedPods"])) == (30, node_pod_summary.MAX_NAMED)
    assert (counts["byPhase"]["Unknown"], counts["byPhase"]["Succeeded"]) == (1, 1)
    assert pods.requested == {"cpu": 31 * 500, "pods": 31}


def test_control_characters_are_removed() -> None:
    hostile = "\x1b]0;owned\x07 \x9b31m a\nb\u202e"
    text = status_tree.plain_text(status_tree.build_tree(status(refused("b", message=hostile))))
    assert all(it.isprintable() or it == "\n" for it in text)
    assert "owned" in text
    assert "shop/b: FieldRefused: \ufffd]0;owned\ufffd \ufffd31m a b\ufffd" in text


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d"), (9e6, "104d")],
)
def test_format_age(seconds: float, expected: str) -> None:
    assert status_tree.format_age(seconds) == expected


@pytest.mark.parametrize(
    ("resource", "quantities", "expected"),
    [
        ("cpu", ("100m", "1", "2"), "0.1 of 1 (10 %); the remote has 2"),
        ("cpu", ("1m", "1", "2"), "<0.01 of 1 (0 %); the remote has 2"),
        ("memory", ("64Mi", "24632884Ki", "32Gi"), "0.06Gi of 23.49Gi (0 %); the remote has 32Gi"),
        ("memory", ("512Ki", "1Mi", "1Mi"), "0.5Mi of 1Mi (50 %); the remote has 1Mi"),
        (
            "ephemeral-storage",
            ("0", "267847642337", "263940692Ki"),
            "0 of 249.45Gi (0 %); the remote has 251.71Gi",
        ),
        ("hugepages-2Mi", ("2Mi", "64Mi", "64Mi"), "2Mi of 64Mi (3 %); the remote has 64Mi"),
        ("pods", ("2", "100", "110"), "2 of 100 (2 %); the remote has 110"),
        ("nvidia.com/gpu", ("1", "2", "4"), "1 of 2 (50 %); the remote has 4"),
    ],
)
def test_amounts_share_one_unit(
    resource: str, quantities: tuple[str, str, str], expected: str
) -> None:
    used, offered, has = quantities
    node = examples.node()
    node["status"] |= {"allocatable": {resource: offered}, "capacity": {resource: has}}
    counted = node_pod_summary.PodCounts()
    counted.requested[resource] = pod_requests.parse_amount(resource, used)
    text = status_tree.plain_text(
        status_tree.build_tree({**node_pod_summary.summarize_node(node, counted), "bridge": None})
    )
    assert f"    {resource}: {expected}\n" in text
