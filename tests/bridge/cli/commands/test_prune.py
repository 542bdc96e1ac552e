"""`bridge prune`: lists on standard output, and removes after confirmation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from bridge.prune import remote_leftovers
from bridge.prune.remote_leftovers import PruneSettings
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke
from translators.object_accessors import Object

LIST = ("prune", "--kubeconfig", "remote.yaml")
HOME = "0123456789abcdef"
REMOVE = (*LIST, "--remove", HOME)
LEFTOVER: Object = {"home": HOME, "node": "burst", "pods": 2, "written": "2031-02-03T04:05:06Z"}


@dataclass
class PruneCalls:
    """Replaces `list_leftovers` and `remove_leftovers`: records their settings."""

    settings: list[PruneSettings] = field(default_factory=list)
    leftovers: list[Object] = field(default_factory=lambda: [LEFTOVER])

    async def listed(
        self, settings: PruneSettings, *, notify: Callable[[str], None]
    ) -> list[Object]:
        self.settings.append(settings)
        notify("remote: it answers")
        return self.leftovers

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
    monkeypatch.setattr(remote_leftovers, "list_leftovers", calls.listed)
    monkeypatch.setattr(remote_leftovers, "remove_leftovers", calls.remove)
    return calls


def test_list_is_on_stdout(invoke: Invoke, pruning: PruneCalls) -> None:
    done = invoke(*LIST, "--context", "r")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "HOME               NODE    PODS   WRITTEN",
        f"{HOME}   burst   2      2031-02-03T04:05:06Z",
    ]
    assert pruning.settings == [PruneSettings(KubeconfigRef(Path("remote.yaml"), "r"))]


def test_list_for_programs(invoke: Invoke, pruning: PruneCalls) -> None:
    expected = {"leftovers": [LEFTOVER]}
    assert json.loads(invoke(*LIST, "-o", "json").stdout) == expected
    assert yaml.safe_load(invoke(*LIST, "-o", "yaml").stdout) == expected
    pruning.leftovers.append({**LEFTOVER, "node": "pool"})
    assert invoke(*LIST, "-o", "name").stdout == f"home/{HOME}\n"


def test_empty_list_is_a_sentence(invoke: Invoke, pruning: PruneCalls) -> None:
    pruning.leftovers = []
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
        ((*REMOVE, "--yes", "-o", "json"), "--output"),
        ((*LIST, "-o", "wide"), "--output"),
    ],
    ids=[
        "an empty home",
        "a selector",
        "no node's name",
        "an empty node",
        "a node alone",
        "yes alone",
        "unknown",
        "an output without a list",
        "an output without columns",
    ],
)
def test_invalid_options_exit_with_2_before_any_request(
    invoke: Invoke, pruning: PruneCalls, args: tuple[str, ...], named: str
) -> None:
    done = invoke(*args)
    assert done.exit_code == 2
    assert named in done.stderr
    assert pruning.settings == []
