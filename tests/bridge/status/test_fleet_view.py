"""The overview of several remotes: health, order, and the table of `bridge status`."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.status import fleet_view, node_pod_summary, terminal_output
from tests.bridge.status.examples import bridge, node, pod, refused, status


def remote(name: str, *, tier: str = "", cost: str = "", **changes: Any) -> dict[str, Any]:
    """The status of a node with these labels."""
    obj = node()
    obj["metadata"]["name"] = name
    obj["metadata"]["labels"] |= {"cluster-bridge.io/tier": tier, "cluster-bridge.io/cost": cost}
    counted = node_pod_summary.PodCounts()
    counted.add(pod("a", "Running"))
    return {**node_pod_summary.summarize_node(obj, counted), "bridge": bridge(), **changes}


@pytest.mark.parametrize(
    ("label", "cost"), [("0.12", 0.12), ("3", 3.0), ("", None), ("cheap", None), ("inf", None)]
)
def test_cost_is_the_number_in_the_label(label: str, cost: float | None) -> None:
    assert remote("a", cost=label)["cost"] == cost


@pytest.mark.parametrize(
    ("changes", "tone", "text"),
    [
        ({}, "good", ""),
        ({"ready": False}, "bad", "NotReady: usable nodes: 1 of 1"),
        ({"ready": None, "conditions": []}, "bad", "Unknown"),
        ({"bridge": None, "bridgeUnknown": "no answer in 5 s"}, "warn", "bridge: no answer in 5 s"),
        ({"bridge": bridge(lagSeconds=42.0)}, "warn", "lag of 42 s"),
        ({"cordoned": True}, "dim", "cordoned: takes no new pods"),
        ({"podsUnknown": "home: you may not"}, "warn", "pods: home: you may not"),
        (
            {"bridge": bridge(clusters={"remote": {"watched": False, "error": "refused"}})},
            "bad",
            "remote cannot be watched: refused",
        ),
    ],
)
def test_health_names_the_worst_problem_first(
    changes: dict[str, Any], tone: str, text: str
) -> None:
    health = fleet_view.build_remote(remote("a", **changes))["health"]
    assert health["tone"] == tone
    assert ([it["text"] for it in health["problems"]] or [""])[0] == text


def test_amounts_are_numbers() -> None:
    found = {it["name"]: it for it in fleet_view.build_remote(remote("a"))["resources"]}
    assert found["cpu"]["requested"] == 0.5
    assert (found["memory"]["allocatable"], found["memory"]["unit"]) == (6 * 1024**3, "bytes")
    assert "hugepages-2Mi" not in found


def test_remotes_are_sorted_by_tier_and_cost() -> None:
    statuses = [
        remote("none"),
        remote("dear", tier="1-owned", cost="2"),
        remote("cloud", tier="2-cloud", cost="1"),
        remote("cheap", tier="1-owned", cost="1"),
    ]
    headers, rows = terminal_output.build_table(statuses)
    assert [row[0].text for row in rows] == ["cheap", "dear", "cloud", "none"]
    assert headers == ["remote", "status", "tier", "cost", "cpu", "memory", "pods", "lag"]
    assert terminal_output.plain_rows(rows)[-1] == [
        "none", "Ready", "-", "-", "17 %", "0 %", "0/1", "0.0 s",
    ]  # fmt: skip


def test_columns_that_nobody_fills_are_left_out() -> None:
    headers, _ = terminal_output.build_table([status(refused("b")), status()])
    assert "tier" not in headers
    assert "problem" not in headers


def test_trees_are_of_remotes_that_need_attention() -> None:
    away = remote("away", ready=False)
    assert terminal_output.needing_attention(
        [remote("fine"), away, remote("off", cordoned=True)]
    ) == [away]
