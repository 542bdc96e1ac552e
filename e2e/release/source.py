"""The sources of a release: the commit that is checked out, and the version that it must have."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.release.errors import ReleaseError
from e2e.release.programs import run_tool

REPOSITORY = Path(__file__).parents[2]
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """A commit, laid out in a folder of its own."""

    folder: Path
    commit: str
    #: Seconds since 1970, of the commit: the time of everything in the release.
    epoch: int
    version: str


def export(version: str, folder: Path) -> Source:
    """Lays out the commit in the folder.

    :raises ReleaseError: the commit has another version, or git fails.
    """
    commit, epoch = run_tool(
        ["git", "-C", REPOSITORY, "log", "-1", "--format=%H %ct", "HEAD"]
    ).stdout.split()
    folder.mkdir(parents=True)
    packed = folder.with_name(f"{folder.name}.tar")
    run_tool(["git", "-C", REPOSITORY, "archive", "--output", packed, commit])
    with tarfile.open(fileobj=io.BytesIO(packed.read_bytes())) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    check_version(version, folder)
    return Source(folder, commit, int(epoch), version)


def uncommitted() -> str:
    """The uncommitted changes of the checkout, which no release contains; "" if there are none."""
    return run_tool(["git", "-C", REPOSITORY, "status", "--short", "--untracked-files=no"]).stdout


def check_version(version: str, folder: Path) -> None:
    """Compares the version with that of the bridge, the chart and the changelog in the folder.

    :raises ReleaseError: one differs; it names the file to change.
    """
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION={version}: write it as 1.2.3 or 1.2.3rc1")
    module = (folder / "bridge/base/version.py").read_text("utf-8")
    chart = yaml.safe_load((folder / "manifests/chart/Chart.yaml").read_text("utf-8"))
    changelog = (folder / "CHANGELOG.md").read_text("utf-8")
    found = {
        "bridge/base/version.py": _first(r'(?m)^VERSION = "([^"]+)"', module),
        "manifests/chart/Chart.yaml (version)": str(chart["version"]),
        "manifests/chart/Chart.yaml (appVersion)": str(chart["appVersion"]),
        "CHANGELOG.md (first heading)": _first(r"(?m)^## \[([^]]+)\]", changelog),
    }
    if wrong := [f"{file}: {its}" for file, its in found.items() if its != version]:
        raise ReleaseError(
            "\n".join([f"the commit is not version {version}; change and commit:", *wrong])
        )


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else "none"
