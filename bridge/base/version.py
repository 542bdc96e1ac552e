"""The version of the bridge."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The version of the installed distribution ``cluster-bridge``."""
    return metadata.version("cluster-bridge")
