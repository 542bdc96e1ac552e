"""Writes or compares the golden files."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from e2e.revisions import REPOSITORY, RevisionError, source_tree
from tests.golden import scenarios


async def _run(names: Sequence[str], tree: Path, *, check: bool) -> int:
    different = 0
    for name in names:
        found = await scenarios.run(name, tree)
        changes = scenarios.difference(name, found)
        if check and changes:
            print(changes)
        elif changes:
            scenarios.path_of(name).write_text(found, encoding="utf-8")
        different += bool(changes)
        state = ("differs" if check else "written") if changes else "unchanged"
        print(f"{name}: {state}", file=sys.stderr)
    return int(check and different > 0)


def main() -> int:
    """The command; its exit code is 1 if ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--rev", help="run the product of this revision, not of this tree")
    parser.add_argument("name", nargs="*", choices=[*scenarios.SCENARIOS, []])
    options = parser.parse_args()
    names = options.name or list(scenarios.SCENARIOS)
    place = source_tree(options.rev) if options.rev else nullcontext(REPOSITORY)
    try:
        with place as tree:
            return asyncio.run(_run(names, tree, check=options.check))
    except RevisionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
