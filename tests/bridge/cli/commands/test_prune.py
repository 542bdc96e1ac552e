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
class Asked:
    """What the two functions were called with."""

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
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Noted, not done."""
    noted = Asked()
    monkeypatch.setattr(garbage_module, "list_leftovers", noted.listed)
    monkeypatch.setattr(garbage_module, "remove_leftovers", noted.remove)
    return noted


def test_list_is_on_stdout(invoke: Invoke, asked: Asked) -> None:
    done = invoke(*LIST, "--context", "r")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == asked.table
    assert asked.settings == [PruneSettings(KubeconfigRef(Path("remote.yaml"), "r"))]


def test_empty_list_is_a_sentence(invoke: Invoke, asked: Asked) -> None:
    asked.table = []
    assert invoke(*LIST).stdout == "no bridge has resources in this cluster\n"


def test_remove_is_limited_to_one_home(invoke: Invoke, asked: Asked) -> None:
    done = invoke(*REMOVE, "--node", "burst", "--timeout", "5", "--yes")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == ["To be removed:", "  remote: Pod a/b", "✓ gone"]
    assert asked.settings == [PruneSettings(KubeconfigRef(Path("remote.yaml")), HOME, "burst", 5.0)]


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
        "nobody",
    ],
)
def test_invalid_options_exit_with_2_before_any_request(
    invoke: Invoke, asked: Asked, args: tuple[str, ...], named: str
) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert named in done.stderr
    assert asked.settings == []
