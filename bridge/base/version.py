"""Which bridge this is."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """The bridge's version, of the installed distribution."""
    return metadata.version("cluster-bridge")
