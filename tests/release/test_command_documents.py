"""Manual pages and completions have every command and option, and no error for groff."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from e2e.docs import command_tree
from e2e.release import completions, man_pages

PAGES = man_pages.pages("1.2.3", 1_700_000_000)


def test_every_command_has_a_page_with_its_options() -> None:
    commands = command_tree.commands()
    assert len(PAGES) == len(commands) + 1
    for name, command in commands.items():
        page = PAGES[f"{name.replace(' ', '-')}.1"]
        assert '"2023-11-14" "cluster\\-bridge 1.2.3"' in page
        for option in command_tree.options(command):
            for spelling in option.opts:
                assert f"\\fB{spelling.replace('-', chr(92) + '-')}\\fR" in page
    for name in commands:
        escaped = name.replace(" ", "-").replace("-", "\\-")
        assert f".BR {escaped} (1)" in PAGES["bridge.1"]


def test_pages_contain_no_character_that_groff_reads_as_a_request() -> None:
    macros = (".TH", ".SH", ".B", ".BR", ".TP", ".PP", ".nf", ".fi", '.\\"')
    for page in PAGES.values():
        assert page.isascii()
        requests = [line.split(" ")[0] for line in page.splitlines() if line.startswith((".", "'"))]
        assert {*requests} <= {*macros}


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_no_warning() -> None:
    command = ["groff", "-man", "-ww", "-Tutf8", "-z"]
    for name in ("bridge.1", "bridge-join.1", "bridge-leave.1"):
        done = subprocess.run(
            command, input=PAGES[name], capture_output=True, text=True, check=True, timeout=30
        )
        assert done.stderr == ""


def test_completion_scripts_ask_the_command() -> None:
    scripts = completions.scripts()
    assert {*scripts} == {"bridge.bash", "_bridge", "bridge.fish"}
    for shell, name in (("bash", "bridge.bash"), ("zsh", "_bridge"), ("fish", "bridge.fish")):
        assert f"_BRIDGE_COMPLETE=complete_{shell}" in scripts[name]
    assert scripts["_bridge"].lstrip().startswith("#compdef bridge")
