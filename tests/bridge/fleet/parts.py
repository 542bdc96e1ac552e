"""Remotes of a fleet for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.base.join_settings import JoinSettings, Part, PartState
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Options without files that exist.
SETTINGS = JoinSettings(KubeconfigRef(Path("/nowhere/r")), KubeconfigRef(Path("/nowhere/h")))


def part(name: str, state: PartState = "joined", **options: Any) -> Part:
    """A remote of this name that takes any free port."""
    return Part(name, replace(SETTINGS, **{"name": name, "port": 0, **options}), state)


def parts(*names: str) -> tuple[Part, ...]:
    """Remotes of these names."""
    return tuple(map(part, names))
