"""`bridge prune`: lists on standard output, and removes after confirmation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.prune import remote_leftovers as garbage_module
from bridge.prune.remote_leftovers import PruneSettings
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke

LIST = ("prune", "--kubeconfig", "remote.yaml")
HOME = "0123456789abcdef"
REMOVE = (*LIST, "--remove", HOME)


@dataclass
class PruneCalls:
    """Replaces `list_leftovers` and `remove_leftovers`: records their settings."""

    settings: list[PruneSettings] = field(default_factory=list)
    table: list[str] = field(default_factory=lambda: ["HOME  NODE", f"{HOME}  burst"])

    async def listed(self, settings: PruneSettings, *, notify: Callable[[str], None]) -> list[str]:
        self.settings.append(settings)
        notify("remote: it answers")
        return self.table

    async def remove(
        self,
        settings: PruneSettings,
        *,
        notify: Callable[[str], None],
        confirm: Callable[[list[str]], bool],
    ) -> bool:
        self.settings.append(settings)
        if not confirm(["remote: Pod a/b"]):
            return False
        notify("gone")
        return True


@pytest.fixture
def pruning(monkeypatch: pytest.MonkeyPatch) -> PruneCalls:
    """Commands record their settings instead of reading or deleting."""
    calls = PruneCalls()
    monkeypatch.setattr(garbage_module, "list_leftovers", calls.listed)
    monkeypatch.setattr(garbage_module, "remove_leftovers", calls.remove)
    return calls


def test_list_is_on_stdout(invoke: Invoke, pruning: PruneCalls) -> None:
    done = invoke(*LIST, "--context", "r")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == pruning.table
    assert pruning.settings == [PruneSettings(KubeconfigRef(Path("remote.yaml"), "r"))]


def test_empty_list_is_a_sentence(invoke: Invoke, pruning: PruneCalls) -> None:
    pruning.table = []
    assert invoke(*LIST).stdout == "no bridge has resources in this cluster\n"


def test_remove_is_limited_to_one_home(invoke: Invoke, pruning: PruneCalls) -> None:
    done = invoke(*REMOVE, "--node", "burst", "--timeout", "5", "--yes")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == ["To be removed:", "  remote: Pod a/b", "✓ gone"]
    assert pruning.settings == [
        PruneSettings(KubeconfigRef(Path("remote.yaml")), HOME, "burst", 5.0)
    ]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((*LIST, "--remove", "", "--yes"), "--remove"),
        ((*LIST, "--remove", "a,b", "--yes"), "--remove"),
        ((*REMOVE, "--node", "Not Good", "--yes"), "--node"),
        ((*REMOVE, "--node", "", "--yes"), "--node"),
        ((*LIST, "--node", "burst"), "--remove"),
        ((*LIST, "--yes"), "--remove"),
        (REMOVE, "--yes"),
    ],
    ids=[
        "an empty home",
        "a selector",
        "no node's name",
        "an empty node",
        "a node alone",
        "yes alone",
        "unknown",
    ],
)
def test_invalid_options_exit_with_2_before_any_request(
    invoke: Invoke, pruning: PruneCalls, args: tuple[str, ...], named: str
) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert named in done.stderr
    assert pruning.settings == []
