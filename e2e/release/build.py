"""Builds the artefacts of a release into a folder.

`artefacts` computes, `write` writes them with `SHA256SUMS` and the provenance, and replaces the
folder's previous content only when everything was built.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.release import (
    bill_of_materials,
    debian_packages,
    image_roots,
    kubectl_plugin,
    manifest_archives,
    oci_layout,
    provenance,
    source,
)
from e2e.release.base_layer import USER
from e2e.release.image_roots import Roots
from e2e.release.oci_layout import Image, Layer, Process
from e2e.release.programs import run_tool
from e2e.release.source import Source

NAME = "cluster-bridge"
CHECKSUMS = "SHA256SUMS"
PROVENANCE = "provenance.intoto.json"
#: Address of the project where none is given: a placeholder, for local builds.
LOCAL_ADDRESS = "https://example.com/cluster-bridge"
Progress = Callable[[str], None]

_PROCESS = Process(
    entrypoint=("/usr/bin/bridge",),
    command=("--help",),
    user=f"{USER}:{USER}",
    environment=("PATH=/usr/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"),
)


def build(version: str, target: Path, *, address: str, cache: Path, progress: Progress) -> None:
    """Builds the release of that version from the commit that is checked out.

    :raises ReleaseError: the commit has another version, or an input is unavailable or differs.
    """
    with tempfile.TemporaryDirectory(prefix="cluster-bridge-release-") as folder:
        exported = source.export(version, Path(folder) / "source")
        if changes := source.uncommitted():
            progress(f"not in the release, since not committed:\n{changes.rstrip()}")
        made = artefacts(exported, Path(folder), address=address, cache=cache, progress=progress)
        write(made, exported, target, address=address)


def artefacts(
    exported: Source, folder: Path, *, address: str, cache: Path, progress: Progress
) -> Mapping[str, bytes]:
    """File name → content of everything but checksums and provenance."""
    version, epoch = exported.version, exported.epoch
    manifests = exported.folder / "manifests"
    progress("building wheel and source distribution")
    made = _distributions(exported, folder / "python")
    progress("packing chart and kustomize bases")
    made[f"{NAME}-{version}.tgz"] = manifest_archives.chart(manifests, epoch)
    made[f"{NAME}-kustomize-{version}.tar.gz"] = manifest_archives.kustomize(
        manifests, version, epoch
    )
    progress("laying out the image for each architecture")
    wheel = next((folder / "python").glob("*.whl"))
    roots = image_roots.lay_out(wheel, folder / "roots", cache)
    progress("packing the image")
    made[f"{NAME}-image-{version}.tar"] = oci_layout.archive(image(exported, roots, address))
    packages = debian_packages.locked()
    plugins = {}
    for root in roots:
        name = root.architecture.name
        progress(f"packing the kubectl plugin for {name}")
        license_text = (exported.folder / "LICENSE").read_text("utf-8")
        plugins[name] = kubectl_plugin.archive(root, license_text, epoch)
        made[kubectl_plugin.archive_name(version, name)] = plugins[name]
        made[f"{NAME}-{version}-{name}.cdx.json"] = bill_of_materials.bill(
            root, packages[name], version, epoch
        ).encode()
    made["bridge.yaml"] = kubectl_plugin.manifest(version, plugins, address).encode()
    return made


def image(exported: Source, roots: tuple[Roots, ...], address: str) -> Image:
    """The image with the layers of all architectures.

    :raises ReleaseError: a base differs from its locked digest.
    """
    steps = (
        f"packages of Debian {debian_packages.NUMBER} in e2e/release/locks/base.json",
        "packages of Python in e2e/release/locks/image.txt",
        f"{NAME} {exported.version}",
    )
    layers = {
        root.architecture.name: [
            Layer.of(tar, step) for tar, step in zip(image_roots.tars(root), steps, strict=True)
        ]
        for root in roots
    }
    image_roots.check_base({name: found[0].diff_id for name, found in layers.items()})
    labels = {
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.description": "A remote Kubernetes cluster as one virtual node",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.revision": exported.commit,
        "org.opencontainers.image.source": address,
        "org.opencontainers.image.version": exported.version,
    }
    return Image(
        name=f"docker.io/library/{NAME}",
        tag=exported.version,
        layers=layers,
        process=_PROCESS,
        labels=labels,
        base_name=f"debian-{debian_packages.SUITE}-{debian_packages.PYTHON}",
        epoch=exported.epoch,
    )


def write(made: Mapping[str, bytes], exported: Source, target: Path, *, address: str) -> None:
    """Writes artefacts, checksums and provenance; the folder's previous content is removed."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in made.items()}
    statement = provenance.statement(
        exported, digests, debian_packages.locked(), address=address, environment=os.environ
    )
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, content in made.items():
        (target / name).write_bytes(content)
    sums = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    (target / CHECKSUMS).write_text(sums)
    (target / PROVENANCE).write_text(provenance.encoded(statement))


def _distributions(exported: Source, folder: Path) -> dict[str, bytes]:
    """The source distribution, and the wheel that is built from it."""
    run_tool(
        ["python", "-m", "build", "--no-isolation", "--outdir", folder, exported.folder],
        env={"SOURCE_DATE_EPOCH": str(exported.epoch)},
    )
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
