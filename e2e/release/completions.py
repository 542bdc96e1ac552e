"""Completion scripts of `bridge` for shells, as `bridge --show-completion` prints them."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.release.programs import run_tool

#: File name, as each shell's folder of completions needs it → shell.
_SHELLS = {"bridge.bash": "bash", "_bridge": "zsh", "bridge.fish": "fish"}


def scripts() -> Mapping[str, str]:
    """File name → script; the scripts ask `bridge` itself for each completion.

    :raises ReleaseError: `bridge` failed.
    """
    return {
        name: run_tool(["bridge"], env={"_BRIDGE_COMPLETE": f"source_{shell}"}).stdout
        for name, shell in _SHELLS.items()
    }
