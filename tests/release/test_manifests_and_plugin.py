"""The packages of chart and kustomize bases, the plugin's manifest, and the bill of materials."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from e2e.release import bill_of_materials, elf, kubectl_plugin, manifest_archives
from e2e.release.architectures import ARCHITECTURES, native
from e2e.release.debian_packages import Package
from e2e.release.errors import ReleaseError
from e2e.release.image_roots import PACKAGES, Roots
from e2e.release.source import REPOSITORY

MANIFESTS = REPOSITORY / "manifests"
METADATA = """\
Metadata-Version: 2.4
Name: A_Package
Version: 4.5
License-Expression: MIT
"""


def names(archive: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {it.name: it for it in opened}


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A root file system of three small parts."""
    roots = Roots(ARCHITECTURES["amd64"], *(tmp_path / it for it in ("base", "own", "bridge")))
    library = roots.base / "usr/lib/x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library / "liba.so.1.2").write_text("a library")
    (library / "liba.so.1").symlink_to("liba.so.1.2")
    (roots.base / "lib").symlink_to("usr/lib")
    (roots.base / "etc").mkdir()
    (roots.base / "etc/passwd").write_text("root")
    info = roots.dependencies / PACKAGES / "a_package-4.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    roots.bridge.mkdir()
    return roots


def test_chart_has_its_schema_and_no_program() -> None:
    found = names(manifest_archives.chart(MANIFESTS, 7))
    assert {"cluster-bridge/Chart.yaml", "cluster-bridge/values.schema.json"} <= found.keys()
    assert "cluster-bridge/templates/_process.tpl" in found
    assert not [it for it in found if it.endswith(".py")]
    assert {it.mtime for it in found.values()} == {7}


def test_chart_value_that_the_schema_lacks_is_an_error(tmp_path: Path) -> None:
    chart = shutil.copytree(MANIFESTS / "chart", tmp_path / "chart")
    with (chart / "values.yaml").open("a") as file:
        file.write("\nunknownValue: 1\n")
    with pytest.raises(ReleaseError, match=r"values.schema.json: lacks unknownValue"):
        manifest_archives.chart(tmp_path, 7)


def test_kustomize_archive_has_what_each_base_names() -> None:
    found = names(manifest_archives.kustomize(MANIFESTS, "1.2.3", 7))
    folder = "cluster-bridge-kustomize-1.2.3"
    assert {f"{folder}/base/kustomization.yaml", f"{folder}/rbac/home.yaml"} <= found.keys()
    for file in MANIFESTS.rglob("kustomization.yaml"):
        place = f"{folder}/{file.parent.relative_to(MANIFESTS).as_posix()}"
        for resource in yaml.safe_load(file.read_text("utf-8")).get("resources", ()):
            assert f"{place}/{resource}" in found
    assert not [it for it in found if "/chart/" in it]


def test_plugin_manifest_names_archives_and_their_hashes() -> None:
    text = kubectl_plugin.manifest(
        "1.2.3", {"amd64": b"one", "arm64": b"two"}, "https://example.com/project"
    )
    manifest = yaml.safe_load(text)
    assert manifest["metadata"]["name"] == "bridge"
    assert manifest["spec"]["version"] == "v1.2.3"
    assert len(manifest["spec"]["shortDescription"]) <= 50
    first, second = manifest["spec"]["platforms"]
    assert first["uri"] == (
        "https://example.com/project/releases/download/v1.2.3/"
        "kubectl-bridge-1.2.3-linux-amd64.tar.gz"
    )
    assert first["sha256"] == hashlib.sha256(b"one").hexdigest()
    assert second["selector"]["matchLabels"] == {"os": "linux", "arch": "arm64"}


def test_bill_of_materials_lists_packages_of_python_and_debian(roots: Roots) -> None:
    package = Package("libc6", "2.41-12", "ab" * 32, "pool/main/g/glibc/libc6_2.41-12_amd64.deb")
    common = Package("netbase", "6.5", "cd" * 32, "pool/main/n/netbase/netbase_6.5_all.deb")
    made = [bill_of_materials.bill(roots, [package, common], "1.2.3", 7) for _ in range(2)]
    assert made[0] == made[1]
    bill = json.loads(made[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    components = {it["purl"]: it for it in bill["components"]}
    assert components.keys() == {
        "pkg:pypi/a-package@4.5",
        "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=debian-13",
        "pkg:deb/debian/netbase@6.5?arch=all&distro=debian-13",
    }
    assert components["pkg:pypi/a-package@4.5"]["licenses"] == [{"expression": "MIT"}]
    assert bill["metadata"]["component"]["version"] == "1.2.3"


def test_object_file_of_another_architecture_or_without_its_library_is_found(
    tmp_path: Path,
) -> None:
    interpreter = Path("/proc/self/exe").resolve()
    own = elf.read(interpreter.read_bytes())
    assert own is not None
    assert own.machine == native().machine
    assert "libc.so.6" in own.needed
    shutil.copy2(interpreter, tmp_path / "program")
    others = [it.machine for it in ARCHITECTURES.values() if it != native()]
    problems = elf.problems([tmp_path], others[0])
    assert f"{tmp_path}/program: is for machine {native().machine}, not {others[0]}" in problems
    assert f"{tmp_path}/program: needs libc.so.6" in problems
    assert elf.read(b"#!/bin/sh\n") is None
