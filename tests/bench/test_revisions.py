"""Source trees of other revisions."""

from __future__ import annotations

import subprocess

import pytest

from e2e import revisions


def test_bridge_of_a_revision_runs_from_its_source_tree() -> None:
    with revisions.source_tree("HEAD") as tree:
        imports = "import bridge; print(bridge.__file__)"
        program = revisions.bridge_program(tree, before=imports)
        shown = subprocess.run(
            [*program.command, "--version"],
            env=program.environment,
            capture_output=True,
            text=True,
            check=True,
        )
    file, version = shown.stdout.splitlines()
    assert file == str(tree / "bridge/__init__.py")
    assert version
    assert not tree.exists()


def test_missing_commit_names_the_remedy() -> None:
    missing = pytest.raises(revisions.RevisionError, match=r"not in this clone.*git fetch")
    with missing, revisions.source_tree("0" * 40):
        pass
