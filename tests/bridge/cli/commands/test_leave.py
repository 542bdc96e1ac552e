"""`bridge leave` and `uninstall`: confirmation, options and exit codes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge.leave import leave_procedure as leave_module
from bridge.leave.leave_summary import LeaveSettings
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.cli.conftest import Invoke

NODE = ("leave", "burst")


@dataclass
class LeaveCalls:
    """Replaces `bridge.leave.leave_procedure.leave`: records its settings, and asks for
    agreement."""

    settings: list[LeaveSettings] = field(default_factory=list)
    lines: list[str] = field(default_factory=lambda: ["home:   Node burst", "remote: Pod a/b"])

    async def leave(
        self,
        settings: LeaveSettings,
        *,
        notify: Callable[[str], None],
        confirm: Callable[[list[str]], bool],
    ) -> bool:
        self.settings.append(settings)
        if not confirm(self.lines):
            return False
        notify("node burst has left")
        return True


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> LeaveCalls:
    """Commands record their settings instead of leaving."""
    calls = LeaveCalls()
    monkeypatch.setattr(leave_module, "leave", calls.leave)
    return calls


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is a terminal."""
    there = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(importlib.import_module("bridge.cli.commands.leave"), "sys", there)


def test_without_terminal_yes_is_required(invoke: Invoke, leaving: LeaveCalls) -> None:
    done = invoke(*NODE)
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert leaving.settings == []


@pytest.mark.parametrize("yes", ["--yes", "-y"])
def test_yes_prints_the_list_without_a_question(
    invoke: Invoke, leaving: LeaveCalls, yes: str
) -> None:
    done = invoke(*NODE, yes)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "To be removed:",
        "  home:   Node burst",
        "  remote: Pod a/b",
        "✓ node burst has left",
    ]
    assert leaving.settings == [LeaveSettings("burst", KubeconfigRef(), None, force=False)]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("typed", "code", "end"),
    [
        ("y\n", 0, "✓ node burst has left"),
        ("n\n", 1, "error: nothing was removed"),
        ("\n", 1, "error: nothing was removed"),
        ("", 1, "Aborted."),
    ],
    ids=["yes", "no", "just enter", "the end of the input"],
)
def test_question_defaults_to_no(
    invoke: Invoke, leaving: LeaveCalls, typed: str, code: int, end: str
) -> None:
    done = invoke(*NODE, typed=typed)
    assert done.exit_code == code
    assert "  remote: Pod a/b\n" in done.stderr
    assert "Remove all this? [y/N]" in done.stderr
    assert end in done.stderr.splitlines()[-1]


@pytest.mark.usefixtures("terminal")
def test_nothing_to_remove_asks_no_question(invoke: Invoke, leaving: LeaveCalls) -> None:
    leaving.lines = []
    done = invoke(*NODE)
    assert done.exit_code == 0
    assert done.stderr.splitlines() == ["nothing is left to remove", "✓ node burst has left"]


def test_cluster_options_become_settings(invoke: Invoke, leaving: LeaveCalls) -> None:
    remote = ("--kubeconfig", "remote.yaml", "--context", "r")
    home = ("--home-kubeconfig", "home.yaml", "--home-context", "h")
    assert invoke(*NODE, "--yes", "--force", *remote, *home).exit_code == 0
    assert leaving.settings == [
        LeaveSettings(
            "burst",
            KubeconfigRef(Path("home.yaml"), "h"),
            KubeconfigRef(Path("remote.yaml"), "r"),
            force=True,
        )
    ]


def test_workload_options_become_settings(invoke: Invoke, leaving: LeaveCalls) -> None:
    assert invoke(*NODE, "-y", "--drain", "--timeout", "5", "--cert-dir", "c").exit_code == 0
    assert invoke(*NODE, "-y", "--keep-workloads").exit_code == 0
    drained, kept = leaving.settings
    assert (drained.drain, drained.timeout, drained.cert_dir) == (True, 5.0, Path("c"))
    assert not drained.keep_workloads
    assert kept.keep_workloads
    assert not kept.drain


def test_uninstall_is_leave(invoke: Invoke, leaving: LeaveCalls) -> None:
    for command in ("leave", "uninstall"):
        assert invoke(command, "burst", "--yes", "--timeout", "5m").exit_code == 0
    assert [(it.name, it.timeout) for it in leaving.settings] == [("burst", 300.0)] * 2


def test_deployment_becomes_a_setting(invoke: Invoke, leaving: LeaveCalls) -> None:
    assert invoke(*NODE, "--yes", "--deployment", "bridges/cluster-bridge-burst").exit_code == 0
    assert invoke(*NODE, "--yes").exit_code == 0
    named, default = leaving.settings
    assert named.deployment == ("bridges", "cluster-bridge-burst")
    assert default.deployment is None


_DEPLOYMENTS = ("", "bridge", "/bridge", "bridges/", "a/b/c", "A/b", "a/b c")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        *[((*NODE, "--deployment", name), "--deployment") for name in _DEPLOYMENTS],
        ((*NODE, "--drain", "--keep-workloads"), "exclude each other"),
        # The command would ignore the context and use the recorded kubeconfig.
        ((*NODE, "--context", "r"), "--kubeconfig"),
        # An empty name, from an unset variable, would select all pods without a node.
        *[(("leave", name), f'"{name}" is not a node name') for name in ("", "Not Good", "a/b")],
    ],
)
def test_invalid_options_are_rejected(
    invoke: Invoke, leaving: LeaveCalls, args: tuple[str, ...], error: str
) -> None:
    done = invoke(*args, "--yes")
    assert done.exit_code == 2
    assert error in done.stderr
    assert leaving.settings == []
