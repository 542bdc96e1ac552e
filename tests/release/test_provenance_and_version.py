"""Version, checksums and provenance of a release."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bridge.base.version import VERSION
from e2e.release import build, signing, source, verification
from e2e.release.errors import ReleaseError
from e2e.release.source import REPOSITORY, Source

ARTEFACTS = {"one.tar": b"one", "two.whl": b"two"}
ADDRESS = "https://example.com/project"
SOURCE = Source(REPOSITORY, "c" * 40, 7, "1.2.3")


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A release of two files."""
    build.write(ARTEFACTS, SOURCE, tmp_path / "dist", address=ADDRESS)
    return tmp_path / "dist"


def copy_of_versions(folder: Path) -> Path:
    for name in ("bridge/base/version.py", "manifests/chart/Chart.yaml", "CHANGELOG.md"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((REPOSITORY / name).read_text("utf-8"))
    return folder


def test_versions_of_the_repository_agree() -> None:
    source.check_version(VERSION, REPOSITORY)


def test_another_version_is_an_error_that_names_the_files(tmp_path: Path) -> None:
    folder = copy_of_versions(tmp_path)
    with pytest.raises(ReleaseError, match=r"the commit is not version 9\.9\.9") as raised:
        source.check_version("9.9.9", folder)
    assert "bridge/base/version.py: " in str(raised.value)
    chart = folder / "manifests/chart/Chart.yaml"
    chart.write_text(chart.read_text().replace(f"appVersion: {VERSION}", "appVersion: 0.0.1"))
    with pytest.raises(ReleaseError, match=r"Chart\.yaml \(appVersion\): 0\.0\.1$"):
        source.check_version(VERSION, folder)


def test_checksums_and_provenance_name_every_artefact(dist: Path) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in ARTEFACTS.items()}
    assert signing.checksums(dist) == sums
    statement = json.loads((dist / build.PROVENANCE).read_text("utf-8"))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {it["name"]: it["digest"]["sha256"] for it in statement["subject"]} == sums
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert dependencies[0] == {"uri": f"git+{ADDRESS}", "digest": {"gitCommit": "c" * 40}}
    signing.check(dist)


def test_changed_artefact_is_not_signed(dist: Path) -> None:
    (dist / "one.tar").write_bytes(b"another")
    with pytest.raises(ReleaseError, match=r"one.tar: absent, or not as SHA256SUMS has it"):
        signing.sign(dist)


def test_builds_that_differ_are_an_error(tmp_path: Path) -> None:
    for name, content in (("one", ARTEFACTS), ("two", {**ARTEFACTS, "two.whl": b"2"})):
        build.write(content, SOURCE, tmp_path / name, address=ADDRESS)
    assert verification.compare(tmp_path / "one", tmp_path / "one") == 4
    with pytest.raises(ReleaseError, match=r"two builds differ in .*two\.whl"):
        verification.compare(tmp_path / "one", tmp_path / "two")
