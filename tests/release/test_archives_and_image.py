"""An image layout whose content differs from its digests is rejected."""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from e2e.release import oci_layout, verification
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


def test_changed_blob_is_an_error() -> None:
    blobs = members(oci_layout.archive(IMAGE))
    index = json.loads(blobs["index.json"])["manifests"][0]["digest"].removeprefix("sha256:")
    blobs[f"blobs/sha256/{index}"] += b" "
    with pytest.raises(ReleaseError, match=f"{index}: absent, or its content differs"):
        list(verification.images(blobs))
