"""The version of the bridge, of which the distribution ``cluster-bridge`` is built."""

from __future__ import annotations

#: A constant, so that no command has to load `importlib.metadata`.
VERSION = "0.1.0"


def version() -> str:
    """The version of the bridge that runs."""
    return VERSION
