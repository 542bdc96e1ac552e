"""A stand-in for the image of transfer pods, ``busybox:1.37``, with a program of that version.

The test images have Debian 12's busybox, 1.35, which computes SHA-256 without the processor's
instructions for it, at a sixth of the speed. Debian 13's package has 1.37; apt verifies its
signature, and the cache keeps the archive.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from e2e.clusters.cluster import Cluster, Progress
from e2e.clusters.image_archives import Image, busybox_layer, write_archive_once
from e2e.clusters.run_command import run

NAME = "docker.io/library/busybox:1.37.0"

_PACKAGE = "busybox-static"
_SOURCE = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    "http://deb.debian.org/debian trixie main\n"
)
#: Seconds for the package lists, and for the package.
_PATIENCE = 300.0


def load(clusters: tuple[Cluster, ...], cache: Path, say: Progress) -> str:
    """Builds the image unless the cache has it, and loads it into the clusters' nodes; returns its
    name.

    :raises CommandFailed: apt does not get the package.
    """
    path = cache / "images" / f"{NAME.rpartition('/')[2].replace(':', '-')}.tar"
    write_archive_once(path, _images, NAME, say)
    for cluster in clusters:
        cluster.load_images(path)
    return NAME


def _images() -> list[Image]:
    with TemporaryDirectory() as folder:
        layer = busybox_layer(_program(Path(folder)))
    return [Image((NAME,), (layer,), command=("sh",))]


def _program(folder: Path) -> Path:
    """Gets the package with lists of its own, beside those of the system; the program."""
    source, lists = folder / "sources.list", folder / "lists"
    source.write_text(_SOURCE)
    (lists / "partial").mkdir(parents=True)
    options = [
        f"Dir::Etc::SourceList={source}",
        "Dir::Etc::SourceParts=-",
        f"Dir::State::Lists={lists}",
        "Dir::Cache::PkgCache=",
        "Dir::Cache::SrcPkgCache=",
        "APT::Sandbox::User=root",
    ]
    apt = ["apt-get", *(f"-o{it}" for it in options)]
    run([*apt, "update"], timeout=_PATIENCE)
    run(["sh", "-c", 'cd "$1" && shift && "$@"', "sh", folder, *apt, "download", _PACKAGE])
    (package,) = folder.glob(f"{_PACKAGE}_*.deb")
    run(["dpkg-deb", "--extract", package, folder / "content"])
    return folder / "content/usr/bin/busybox"
