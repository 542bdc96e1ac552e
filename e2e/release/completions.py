"""Completion scripts of `bridge` for shells, as `bridge --show-completion` prints them."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from bridge.cli.command_table import app

#: File name, as each shell's folder of completions needs it → shell.
_SHELLS = {"bridge.bash": "bash", "_bridge": "zsh", "bridge.fish": "fish"}
#: The variable by which a shell asks `bridge`; its value here asks for the script.
_VARIABLE = "_BRIDGE_COMPLETE"


def scripts() -> Mapping[str, str]:
    """File name → script; the scripts ask `bridge` itself for each completion."""
    return {name: _script(shell) for name, shell in _SHELLS.items()}


def _script(shell: str) -> str:
    run: Any = app
    printed = io.StringIO()
    os.environ[_VARIABLE] = f"source_{shell}"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            run(prog_name="bridge")
    finally:
        del os.environ[_VARIABLE]
    return printed.getvalue()
