"""A stand-in for the image ``debian:13-slim``, the default of `bridge volume copy`: no registry is
needed.

It has the programs that the copy uses, from Debian's own packages of that release. apt verifies
their signatures, and the cache keeps the archive.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from e2e.clusters.cluster import Cluster, Progress
from e2e.clusters.image_archives import Entry, Image, write_archive_once
from e2e.clusters.run_command import run

NAME = "docker.io/library/debian:13-slim"

_PACKAGES = (
    *("coreutils", "dash", "findutils", "grep", "mawk", "tar"),
    *("libacl1", "libattr1", "libc6", "libcap2", "libgcc-s1", "libgmp10", "libpcre2-8-0"),
    *("libselinux1", "libssl3t64", "libsystemd0", "libzstd1", "zlib1g"),
)
_SOURCE = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    "http://deb.debian.org/debian trixie main\n"
)
#: Seconds for the package lists, and for the packages.
_PATIENCE = 300.0
#: Entries that Debian's installer creates.
_BASE = (
    *(Entry(name) for name in ("dev", "etc", "proc", "root", "sys", "usr", "usr/bin", "var")),
    Entry("tmp", 0o1777),
    *(Entry(name, 0o777, link=f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
    Entry("usr/bin/awk", 0o777, link="mawk"),
    Entry("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n"),
)


def load(clusters: tuple[Cluster, ...], cache: Path, say: Progress) -> str:
    """Builds the image unless the cache has it, and loads it into the clusters' nodes; returns its
    name.

    :raises CommandFailed: apt does not get the packages.
    """
    path = cache / "images" / "debian-13-slim.tar"
    with TemporaryDirectory() as folder:
        write_archive_once(path, lambda: [_image(Path(folder))], NAME, say)
    for cluster in clusters:
        cluster.load_images(path)
    return NAME


def _image(folder: Path) -> Image:
    """Gets the packages with lists of its own, next to those of the system; a layer for each."""
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
    apt = ["apt-get", *(f"-o{option}" for option in options)]
    run([*apt, "update"], timeout=_PATIENCE)
    named = [f"{package}/trixie" for package in _PACKAGES]
    run(["sh", "-c", 'cd "$1" && shift && "$@"', "sh", folder, *apt, "download", *named])
    layers = []
    for package in sorted(folder.glob("*.deb")):
        layers.append(package.with_suffix(".tar"))
        run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1" >"$2"', "sh", package, layers[-1]])
    return Image((NAME,), (_BASE, *layers), command=("sh",))
