"""Archives are reproducible, and the image layout is what its digests state."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from e2e.release import archives, oci_layout, verification
from e2e.release.errors import ReleaseError
from e2e.release.oci_layout import Image, Layer, Process

IMAGE = Image(
    name="docker.io/library/cluster-bridge",
    tag="1.2.3",
    layers={
        name: [Layer.of(b"base of " + name.encode(), "base"), Layer.of(b"bridge", "bridge")]
        for name in ("amd64", "arm64")
    },
    process=Process(("/usr/bin/bridge",), ("--help",), "65532:65532", ("PATH=/usr/bin",)),
    labels={"org.opencontainers.image.version": "1.2.3"},
    base_name="base",
    epoch=1_700_000_000,
)


def members(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {
            it.name: file.read() for it in archive if (file := archive.extractfile(it)) is not None
        }


def folder(root: Path, mode: int, time: int) -> Path:
    (root / "b").mkdir(parents=True)
    (root / "tmp").mkdir()
    for name in ("b/z", "b/a", "run"):
        (root / name).write_text(name)
        (root / name).chmod(mode if name == "run" else mode & 0o666)
        os.utime(root / name, (time, time))
    (root / "link").symlink_to("run")
    return root


def test_archives_of_equal_folders_are_equal(tmp_path: Path) -> None:
    first = archives.tar_of_folder(folder(tmp_path / "one", 0o755, 1_000), epoch=5)
    second = archives.tar_of_folder(folder(tmp_path / "two", 0o700, 2_000), epoch=5)
    assert first == second
    assert archives.compressed(first) == archives.compressed(second)
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        listed = {it.name: it for it in archive}
    assert [*listed] == ["b", "b/a", "b/z", "link", "run", "tmp"]
    assert {name: it.mode for name, it in listed.items()} == {
        "b": 0o755,
        "b/a": 0o644,
        "b/z": 0o644,
        "link": 0o777,
        "run": 0o755,
        "tmp": 0o1777,
    }
    assert {(it.uid, it.gid, it.uname, it.mtime) for it in listed.values()} == {(0, 0, "", 5)}


def test_image_has_both_architectures_and_names_its_base() -> None:
    blobs = members(oci_layout.archive(IMAGE))
    assert json.loads(blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    found = {name: (manifest, config) for name, manifest, config in verification.images(blobs)}
    assert found.keys() == {"amd64", "arm64"}
    for name, (manifest, config) in found.items():
        assert config["architecture"] == name
        assert config["config"]["User"] == "65532:65532"
        assert config["config"]["Labels"] == manifest["annotations"]
        assert config["created"] == "2023-11-14T22:13:20Z"
        digest = manifest["annotations"]["org.opencontainers.image.base.digest"]
        base = json.loads(blobs[f"blobs/sha256/{digest.removeprefix('sha256:')}"])
        assert base["layers"] == manifest["layers"][:1]
        expected = hashlib.sha256(b"base of " + name.encode()).hexdigest()
        assert config["rootfs"]["diff_ids"][0] == f"sha256:{expected}"


def test_blobs_have_the_name_of_their_digest() -> None:
    for name, content in members(oci_layout.archive(IMAGE)).items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def test_changed_blob_is_an_error() -> None:
    blobs = members(oci_layout.archive(IMAGE))
    index = json.loads(blobs["index.json"])["manifests"][0]["digest"].removeprefix("sha256:")
    blobs[f"blobs/sha256/{index}"] += b" "
    with pytest.raises(ReleaseError, match=f"{index}: absent, or its content differs"):
        list(verification.images(blobs))
