"""All scenarios by the names of their files, and how they are run, written and compared."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from tests.golden import (
    accounts_scenario,
    commands_scenario,
    manifests_scenario,
    pods_scenario,
    relay_scenario,
    storage_scenario,
)
from tests.golden.worlds import World, world

RESULTS = Path(__file__).parent / "results"
SCENARIOS: dict[str, Callable[[World], Awaitable[dict[str, Any]]]] = {
    "pods": pods_scenario.collect,
    "pods-with-remote-accounts": accounts_scenario.remote_accounts,
    "pods-without-accounts": accounts_scenario.no_accounts,
    "storage": storage_scenario.collect,
    "relay": relay_scenario.collect,
    "commands": commands_scenario.collect,
    "options": manifests_scenario.options,
    "manifests": manifests_scenario.manifests,
}
#: Lines of a difference that are shown.
_SHOWN = 200


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, because results share parts."""

    def ignore_aliases(self, data: object) -> bool:
        return True


async def run(name: str, tree: Path) -> str:
    """The result of a scenario with the product of this source tree, as YAML."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        async with world(tree, Path(folder)) as made:
            found = await SCENARIOS[name](made)
    return yaml.dump(found, Dumper=_Dumper, width=100, allow_unicode=True)


def path_of(name: str) -> Path:
    """The file of a scenario."""
    return RESULTS / f"{name}.yaml"


def difference(name: str, found: str) -> str:
    """How the result differs from the golden file; "" if it does not."""
    path = path_of(name)
    recorded = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == recorded:
        return ""
    lines = list(
        difflib.unified_diff(
            recorded.splitlines(), found.splitlines(), path.name, "found", lineterm="", n=8
        )
    )
    more = [f"... {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else []
    return "\n".join([*lines[:_SHOWN], *more])
