"""Every input is locked by its hash, and the workflow calls commands of this repository alone."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from e2e.release import debian_packages, python_locks
from e2e.release.architectures import ARCHITECTURES
from e2e.release.source import REPOSITORY

PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
WORKFLOW = REPOSITORY / ".github/workflows/release.yml"
REQUIREMENTS = {
    "image.txt": PROJECT["project"]["dependencies"],
    "development.txt": [
        *PROJECT["project"]["dependencies"],
        *(it for it in PROJECT["dependency-groups"]["dev"] if isinstance(it, str)),
        *(it for it in PROJECT["dependency-groups"]["release"] if isinstance(it, str)),
        *PROJECT["build-system"]["requires"],
    ],
    "docs.txt": PROJECT["dependency-groups"]["docs"],
    "build.txt": PROJECT["build-system"]["requires"],
}


@pytest.mark.parametrize("name", python_locks.FILES)
def test_every_requirement_is_locked(name: str) -> None:
    locked = python_locks.pinned(name)
    names = {re.split(r"[^\w.-]", it)[0].lower().replace("_", "-") for it in REQUIREMENTS[name]}
    assert names <= locked.keys(), "run make release-lock"


@pytest.mark.parametrize("name", python_locks.FILES)
def test_every_locked_package_has_hashes_and_no_index(name: str) -> None:
    text = (python_locks.LOCKS / name).read_text("utf-8")
    assert "://" not in text
    assert "index" not in {line.split("=")[0].strip("- ") for line in text.splitlines()}
    for package in re.split(r"(?m)^(?=\w)", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", package), package


def test_versions_of_image_and_tests_agree() -> None:
    tested = python_locks.pinned("development.txt")
    assert python_locks.pinned("image.txt").items() <= tested.items()


def test_base_is_locked_for_each_architecture() -> None:
    packages = debian_packages.locked()
    assert packages.keys() == debian_packages.locked_digests().keys() == ARCHITECTURES.keys()
    for own in packages.values():
        names = {it.name for it in own}
        assert names == {*debian_packages.NAMES, *debian_packages.COMMON_NAMES}
        assert all(re.fullmatch(r"[0-9a-f]{64}", it.sha256) for it in own)
        assert all(it.path.startswith("pool/") for it in own)


def test_workflow_pins_actions_by_commit_and_calls_make() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", it) for it in actions)
    commands = [step["run"] for step in steps if "run" in step]
    targets = re.findall(r"(?m)^([a-z][a-z0-9-]*):", (REPOSITORY / "Makefile").read_text("utf-8"))
    called = [it.split()[1] for it in commands if it.startswith("make ")]
    assert {"release", "release-verify", "release-sign"} <= {*called} <= {*targets}
    others = [it for it in commands if not it.startswith("make ")]
    assert all(it.startswith(("apt-get ", "git config ")) for it in others)


def test_workflow_has_no_more_permissions_than_signing_needs() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    assert workflow["permissions"] == {}
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {"contents": "read", "id-token": "write"}
