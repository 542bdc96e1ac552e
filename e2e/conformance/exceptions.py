"""Tests that the virtual node need not pass, from `exceptions.yaml`.

The file is a list of reasons, each with the full names of the excused tests, and the only source of
exceptions: docs/development/conformance.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("exceptions.yaml")


def load(text: str) -> dict[str, str]:
    """Test name → reason, in the order of the file.

    :raises ValueError: the file has another form, or a test appears twice.
    """
    found: dict[str, str] = {}
    for entry in yaml.safe_load(text) or []:
        if not isinstance(entry, dict) or set(entry) != {"reason", "tests"}:
            raise ValueError(f"not an entry with a reason and its tests: {entry!r}")
        for name in entry["tests"]:
            if name in found:
                raise ValueError(f"listed twice: {name}")
            found[name] = " ".join(str(entry["reason"]).split())
    return found


def require_known(exceptions: Mapping[str, str], names: Collection[str]) -> None:
    """Verifies that every exception is for an existing test.

    :raises ValueError: a test does not exist.
    """
    if unknown := [name for name in exceptions if name not in set(names)]:
        raise ValueError(f"no such tests: {'; '.join(unknown)}")
