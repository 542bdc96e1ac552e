"""The table of pods: counts, changes since a revision, and bounded memory."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.dashboard import pod_table
from bridge.dashboard.pod_table import PodTable
from tests.bridge.status import examples


def pod(name: str, phase: str = "Running", node: str = "remote") -> dict[str, Any]:
    found = examples.pod(name, phase)
    found["metadata"]["uid"] = f"uid-{name}"
    found["spec"]["nodeName"] = node
    return found


@pytest.fixture
def notified() -> list[None]:
    return []


@pytest.fixture
def table(notified: list[None]) -> PodTable:
    found = PodTable(lambda: notified.append(None))
    for name in "abc":
        found.update(None, pod(name))
    return found


def test_only_changes_are_returned(table: PodTable, notified: list[None]) -> None:
    before = table.revision
    table.update(pod("a"), pod("a", "Pending"))
    table.update(pod("a", "Pending"), pod("a", "Failed"))
    table.update(pod("b"), None)
    changes = table.changes_since(before)
    assert changes is not None
    assert [(it["name"], it["phase"]) for it in changes.rows] == [("a", "Failed")]
    assert changes.removed == ["uid-b"]
    assert table.changes_since(changes.revision) == pod_table.Changes(changes.revision, [], [])
    assert len(notified) == 6


def test_change_that_no_row_shows_is_no_change(table: PodTable, notified: list[None]) -> None:
    before, revision = len(notified), table.revision
    changed = pod("a")
    changed["status"]["conditions"] = [{"type": "Other", "status": "True"}]
    table.update(pod("a"), changed)
    assert (table.revision, len(notified)) == (revision, before)


def test_pod_recreated_under_its_name_is_another(table: PodTable) -> None:
    before, again = table.revision, pod("a")
    again["metadata"]["uid"] = "uid-a2"
    table.update(pod("a"), again)
    changes = table.changes_since(before)
    assert changes is not None
    assert ([it["uid"] for it in changes.rows], changes.removed) == (["uid-a2"], ["uid-a"])


def test_counts_follow_the_pods_of_a_node(table: PodTable) -> None:
    table.update(None, pod("d", "Pending", node="other"))
    assert table.counts("remote").phases == {"Running": 3}
    assert table.counts("remote").requested["cpu"] == 1500
    assert table.counts("other").phases == {"Pending": 1}
    assert not table.counts("none").phases
    table.remove_node("remote")
    assert not table.counts("remote").phases
    assert [it["name"] for it in table.rows()] == ["d"]


def test_reader_who_missed_too_much_reads_all(
    table: PodTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_table, "MAX_REMOVED", 2)
    small = PodTable(lambda: None)
    for name in "abcde":
        small.update(None, pod(name))
    before = small.revision
    for name in "abc":
        small.update(pod(name), None)
    assert small.changes_since(before) is None
    assert small.changes_since(before + 1) is not None
    assert small.changes_since(10_000) is None
