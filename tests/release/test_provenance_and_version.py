"""Version, checksums, provenance and the commands that sign them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bridge.base.version import VERSION
from e2e.release import build, debian_packages, provenance, signing, source, verification
from e2e.release.errors import ReleaseError
from e2e.release.source import REPOSITORY, Source

ARTEFACTS = {"one.tar": b"one", "two.whl": b"two"}
ADDRESS = "https://example.com/project"
SOURCE = Source(REPOSITORY, "c" * 40, 7, "1.2.3")
GITHUB = {
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "owner/project",
    "GITHUB_RUN_ID": "12",
    "GITHUB_WORKFLOW_REF": "owner/project/.github/workflows/release.yml@refs/tags/v1.2.3",
}


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


@pytest.mark.parametrize("version", ["", "v1.2.3", "1.2", "1.2.3-dirty"])
def test_malformed_version_is_an_error(version: str) -> None:
    with pytest.raises(ReleaseError, match=r"write it as 1\.2\.3"):
        source.check_version(version, REPOSITORY)


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


def test_builder_is_the_workflow_or_local() -> None:
    def builder(environment: dict[str, str]) -> dict[str, object]:
        statement = provenance.statement(
            SOURCE, {}, debian_packages.locked(), address=ADDRESS, environment=environment
        )
        details: dict[str, object] = statement["predicate"]["runDetails"]
        return details

    assert builder({}) == {"builder": {"id": provenance.LOCAL_BUILDER}, "metadata": {}}
    assert builder(GITHUB) == {
        "builder": {"id": f"https://github.example/{GITHUB['GITHUB_WORKFLOW_REF']}"},
        "metadata": {
            "invocationId": "https://github.example/owner/project/actions/runs/12/attempts/1"
        },
    }


def test_changed_artefact_is_not_signed(dist: Path) -> None:
    (dist / "one.tar").write_bytes(b"another")
    with pytest.raises(ReleaseError, match=r"one.tar: absent, or not as SHA256SUMS has it"):
        signing.sign(dist)


def test_folder_without_a_release_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="run make release first"):
        signing.check(tmp_path)


def test_checksums_and_provenance_are_signed_without_a_key(dist: Path) -> None:
    blob, statement = signing.commands(dist)
    assert blob[:3] == ["cosign", "sign-blob", "--yes"]
    assert blob[-1] == str(dist / "SHA256SUMS")
    assert statement[:3] == ["cosign", "attest-blob", "--yes"]
    assert str(dist / build.PROVENANCE) in statement
    assert not [it for it in [*blob, *statement] if it.startswith("--key")]


def test_builds_that_differ_are_an_error(tmp_path: Path) -> None:
    for name, content in (("one", ARTEFACTS), ("two", {**ARTEFACTS, "two.whl": b"2"})):
        build.write(content, SOURCE, tmp_path / name, address=ADDRESS)
    assert verification.compare(tmp_path / "one", tmp_path / "one") == 4
    with pytest.raises(ReleaseError, match=r"two builds differ in .*two\.whl"):
        verification.compare(tmp_path / "one", tmp_path / "two")
