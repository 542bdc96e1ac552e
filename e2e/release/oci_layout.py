"""Writes an OCI image layout with one image for several architectures, as a tar archive.

Formats: the OCI image specification 1.1 (image index, manifest, configuration, layout). containerd
imports the archive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from e2e.release import archives

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its compressed archive, the digest before compression, and its history."""

    blob: bytes
    diff_id: str
    created_by: str

    @classmethod
    def of(cls, tar: bytes, created_by: str) -> Layer:
        """The layer with that uncompressed archive."""
        digest = f"sha256:{hashlib.sha256(tar).hexdigest()}"
        return cls(archives.compressed(tar), digest, created_by)


@dataclass(frozen=True, slots=True)
class Process:
    """How a container starts."""

    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    environment: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """An image: layers for each architecture, labels that are annotations too, its name and tag.

    The lowest layer is the base; ``base_name`` describes it in the annotations.
    """

    name: str
    tag: str
    layers: Mapping[str, Sequence[Layer]]
    process: Process
    labels: Mapping[str, str]
    base_name: str
    #: Seconds since 1970, of the commit.
    epoch: int


def archive(image: Image) -> bytes:
    """The layout as an uncompressed archive (the layers in it are compressed).

    The manifest of each base is among the blobs, and the annotation ``image.base.digest`` names it.
    """
    blobs: dict[str, bytes] = {}
    created = datetime.fromtimestamp(image.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    manifests = []
    for architecture, layers in image.layers.items():
        base = _manifest(blobs, _config(architecture, layers[:1]), layers[:1], {})
        annotations = {
            **image.labels,
            "org.opencontainers.image.created": created,
            "org.opencontainers.image.base.name": image.base_name,
            "org.opencontainers.image.base.digest": base["digest"],
        }
        container = _container(image.process, annotations)
        config = _config(architecture, layers, created=created, config=container)
        made = _manifest(blobs, config, layers, annotations)
        manifests.append({**made, "platform": {"architecture": architecture, "os": "linux"}})
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": manifests,
        "annotations": dict(image.labels),
    }
    names = {
        "io.containerd.image.name": f"{image.name}:{image.tag}",
        "org.opencontainers.image.ref.name": image.tag,
    }
    top = {**_json_blob(blobs, _INDEX, index), "annotations": names}
    return archives.tar_of_files(
        {
            "oci-layout": _encoded({"imageLayoutVersion": "1.0.0"}),
            "index.json": _encoded(
                {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [top]},
            ),
            **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
        },
        epoch=image.epoch,
    )


def _manifest(
    blobs: dict[str, bytes], config: Json, layers: Sequence[Layer], annotations: Mapping[str, str]
) -> Json:
    """Adds a manifest with configuration and layers to the blobs; returns its descriptor."""
    content = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _json_blob(blobs, _CONFIG, config),
        "layers": [_blob(blobs, _LAYER, it.blob) for it in layers],
        "annotations": dict(annotations),
    }
    return _json_blob(blobs, _MANIFEST, content)


def _config(architecture: str, layers: Sequence[Layer], **more: Any) -> Json:
    return {
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [it.diff_id for it in layers]},
        "history": [{"created_by": it.created_by} for it in layers],
        **more,
    }


def _container(process: Process, labels: Mapping[str, str]) -> Json:
    return {
        "User": process.user,
        "Env": list(process.environment),
        "Entrypoint": list(process.entrypoint),
        "Cmd": list(process.command),
        "WorkingDir": "/",
        "Labels": dict(labels),
    }


def _json_blob(blobs: dict[str, bytes], media_type: str, content: Json) -> Json:
    return _blob(blobs, media_type, _encoded(content))


def _blob(blobs: dict[str, bytes], media_type: str, content: bytes) -> Json:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _encoded(content: Json) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
