"""Source trees of other revisions."""

from __future__ import annotations

import subprocess

import pytest

from e2e import revisions


def test_source_tree_has_the_files_of_the_revision() -> None:
    with revisions.source_tree("HEAD") as tree:
        assert (tree / "pyproject.toml").read_bytes()
        program = [*revisions.bridge_program(tree), "--version"]
        shown = subprocess.run(
            program,
            env=revisions.bridge_environment(tree),
            capture_output=True,
            text=True,
            check=True,
        )
    assert shown.stdout.strip()
    assert not tree.exists()


def test_missing_commit_names_the_remedy() -> None:
    missing = pytest.raises(revisions.RevisionError, match=r"not in this clone.*git fetch")
    with missing, revisions.source_tree("0" * 40):
        pass
