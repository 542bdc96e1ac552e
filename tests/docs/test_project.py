"""The targets, tests and versions that the documents and the workflow name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from e2e.clusters.versions import KIND_NODES, parse_versions
from e2e.docs.generated_pages import DOCS, REPOSITORY

TARGETS = {
    name
    for line in (REPOSITORY / "Makefile").read_text("utf-8").splitlines()
    if (match := re.match(r"([a-z][a-z0-9-]*):", line))
    for name in [match[1]]
}
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: str(it.relative_to(REPOSITORY)))
def test_make_targets_named_in_a_document_exist(document: Path) -> None:
    named = re.findall(r"(?m)(?:`|^)make ([a-z][a-z0-9-]*)", document.read_text("utf-8"))
    assert {*named} <= TARGETS


def test_workflow_runs_existing_files_and_targets() -> None:
    text = (REPOSITORY / ".github/workflows/ci.yml").read_text("utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    files = [word for command in commands for word in command.split() if word.startswith("e2e/")]
    assert files
    assert all((REPOSITORY / file).exists() for file in files)
    made = {command.split()[1] for command in commands if command.startswith("make ")}
    assert made - {".venv/.ready"} <= TARGETS
    for versions_text in jobs["e2e"]["strategy"]["matrix"]["kubernetes"]:
        versions = parse_versions(versions_text)
        assert {*versions} == {"home", "remote"}
        assert {f"{it.major}.{it.minor}" for it in versions.values()} <= {*KIND_NODES}
    pythons = [
        f'"Programming Language :: Python :: {it}"'
        for it in jobs["fast"]["strategy"]["matrix"]["python"]
    ]
    assert all(it in (REPOSITORY / "pyproject.toml").read_text("utf-8") for it in pythons)


def test_commit_hooks_need_no_network() -> None:
    text = (REPOSITORY / ".pre-commit-config.yaml").read_text("utf-8")
    (own,) = yaml.safe_load(text)["repos"]
    assert own["repo"] == "local"
    assert {hook["language"] for hook in own["hooks"]} == {"system"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in own["hooks"])
