"""A stand-in for the image ``postgres`` under its upstream name, from Debian's package: no registry
is needed.

It has the server, psql and the libraries that these load, and an entrypoint that knows what the
documentation uses of upstream's: POSTGRES_PASSWORD, PGDATA, an arbitrary user, and ``/bin/sh``. The
cache keeps the archive.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from e2e.clusters.cluster import Cluster, Progress
from e2e.clusters.errors import MissingTool
from e2e.clusters.image_archives import Entry, Image, busybox_layer, write_archive_once
from e2e.clusters.run_command import run
from e2e.clusters.system_packages import Package, ensure

NAME = "docker.io/library/postgres:15"
#: The user of upstream's image.
UID = 999

_PACKAGES = (Package("postgresql", "pg_ctlcluster"), Package("busybox-static", "busybox"))
_PROGRAMS = ("initdb", "pg_isready", "postgres", "psql")
# Part of the cached archive's name: increase it when the image's construction changes.
_EDITION = 1
_SHARED = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)")
_USERS = f"root:x:0:0:root:/root:/bin/sh\npostgres:x:{UID}:{UID}::/:/bin/sh\n"
_ENTRYPOINT = """\
#!/bin/sh
set -e
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    echo "${POSTGRES_PASSWORD:?}" > /tmp/password
    initdb --username=postgres --pwfile=/tmp/password --locale=C --encoding=UTF8
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
fi
exec "$@"
"""


def load(cluster: Cluster, cache: Path, say: Progress) -> str:
    """Builds the image unless the cache has it, and loads it into the cluster's node; returns its
    name."""
    path = archive(cache, say)
    say(f"loading {NAME} into {cluster.name}")
    cluster.load_images(path)
    return NAME


def archive(cache: Path, say: Progress) -> Path:
    """The image's archive, built once for each version of the package.

    :raises MissingTool: the package is absent and cannot be installed.
    """
    if not all(package.present() for package in _PACKAGES):
        ensure(_PACKAGES, say)
    folder = _installed()
    server = folder / "bin/postgres"
    content = repr((_EDITION, folder, server.stat().st_size, server.stat().st_mtime_ns))
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    path = cache / "images" / f"postgres-{key}.tar"
    write_archive_once(path, lambda: [_image(folder)], f"{NAME} from {folder}", say)
    return path


def _installed() -> Path:
    """The folder of the newest installed version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise MissingTool(
            "no PostgreSQL server is installed",
            where="/usr/lib/postgresql",
            next_step="install Debian's package postgresql",
        )
    return found[-1].parents[1]


def _image(folder: Path) -> Image:
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    own = (
        Entry("etc/passwd", 0o644, _USERS.encode()),
        Entry("run"),
        Entry("run/postgresql", 0o1777),
        Entry("var/run", 0o777, link="/run"),
        Entry("entrypoint.sh", 0o755, _ENTRYPOINT.encode()),
    )
    return Image(
        (NAME,),
        (busybox_layer(busybox), (*_with_folders(_files(folder)), *own)),
        ("/entrypoint.sh",),
        ("postgres", "-c", "listen_addresses=*"),
        environment=(
            f"PATH={folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PGDATA=/var/lib/postgresql/data",
            "PGUSER=postgres",
        ),
    )


def _files(folder: Path) -> dict[str, Path]:
    """The path in the image of each file of the package, of time zones and of libraries."""
    programs = [folder / "bin" / name for name in _PROGRAMS]
    # LLVM, for compiled queries, is larger than all the rest.
    modules = [it for it in (folder / "lib").glob("*.so") if "llvm" not in it.name]
    shared = [
        it
        for parent in (Path("/usr/share/postgresql", folder.name), Path("/usr/share/zoneinfo"))
        for it in parent.rglob("*")
        if it.is_file() and "man" not in it.parts
    ]
    loaded = {
        Path(found)
        for file in (*programs, *modules)
        for found in _SHARED.findall(run(["ldd", file], check=False).stdout)
    }
    files = (*programs, *modules, *shared, *sorted(loaded))
    return {str(it).lstrip("/"): it.resolve() for it in files}


def _with_folders(files: dict[str, Path]) -> Iterator[Entry]:
    """The entries of files, after those of their folders."""
    folders = {str(parent) for name in files for parent in Path(name).parents}
    for folder in sorted(folders - {"."}):
        yield Entry(folder)
    for name, file in files.items():
        yield Entry(name, 0o755, file.read_bytes())
