"""Builds the bridge's image without Docker, for clusters whose nodes have their own containerd.

    python -m e2e.bridge_image            builds it, prints the archive's path and the image's name
    python -m e2e.bridge_image --load     also loads it into the home cluster

It equals the Containerfile's image for the bridge: Python, the packages that the bridge depends on
(those of this environment), the bridge, and an unprivileged user. The root file system is copied
from this machine's: the interpreter with its standard library, the shared libraries that these
load, and nothing else, not even a shell. The cache keeps the lower layer, named after the versions
of its content; the upper layer, the bridge itself, is built each time.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import platform
import py_compile
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from e2e.clusters import find
from e2e.clusters.cluster import Cluster, Progress
from e2e.clusters.go_build import locked
from e2e.clusters.image_archives import Image, write_archive
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.clusters.run_command import run

#: Repository of the image; a hash of the content is its tag.
REPOSITORY = "docker.io/library/cluster-bridge"
PACKAGES = ("bridge", "sync", "translators", "manifests")
USER = "65532:65532"
# Part of the cached layer's name: increase it when the layer's construction changes.
_EDITION = 1

_ROOT = Path(__file__).parent.parent
_PREFIX = Path("usr/local")
_LIBRARY = _PREFIX / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
#: Packages of the standard library that the bridge does not import.
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "__pycache__")
_LEFT_OUT_GLOBS = ("site-packages", "dist-packages", "config-*", "*.a")
#: Models of the kubernetes package, which the bridge does not import.
_NOT_COMPILED = re.compile(r"kubernetes/(aio/)?client")
_SHARED = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)")

_SCRIPT = """\
#!/usr/local/bin/python3
from bridge.cli import main

main()
"""


def archive(cache: Path, folder: Path, say: Progress) -> tuple[Path, str]:
    """Builds the image's archive in the folder from the current sources; also returns its name."""
    base = base_archive(cache, say)
    own = folder / "bridge.tar"
    _pack(own, _lay_out_bridge)
    path = folder / "cluster-bridge.tar"
    content = base.name.encode() + own.read_bytes()
    name = f"{REPOSITORY}:e2e-{hashlib.sha256(content).hexdigest()[:12]}"
    image = Image(
        (name,),
        (base, own),
        entrypoint=("/usr/local/bin/bridge",),
        command=("--help",),
        user=USER,
        environment=("PATH=/usr/local/bin", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"),
    )
    write_archive(path, [image])
    return path, name


def load(cluster: Cluster, cache: Path, say: Progress) -> str:
    """Builds the image and loads it into the cluster's node; returns its name. Safe in parallel."""
    with tempfile.TemporaryDirectory(prefix="cluster-bridge-image-") as folder:
        path, name = archive(cache, Path(folder), say)
        say(f"loading {name} into {cluster.name}")
        cluster.load_images(path)
    return name


# -- the layer below -----------------------------------------------------------------------


def base_archive(cache: Path, say: Progress) -> Path:
    """The archive of the layer with Python and all dependencies; built once per cache."""
    wanted = sorted(f"{package.name}-{package.version}" for package in _dependencies())
    content = repr((_EDITION, sys.version, platform.machine(), wanted))
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    path = cache / "images" / f"python-{key}.tar"
    with locked(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            say(f"building the layer of Python and {len(wanted)} packages in {path.parent}")
            _pack(path, _lay_out_base)
    return path


def _dependencies() -> list[metadata.Distribution]:
    """The bridge's dependencies, with theirs."""
    found: dict[str, metadata.Distribution] = {}
    waiting = ["cluster-bridge"]
    while waiting:
        name = waiting.pop()
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in found:
            continue
        try:
            found[plain] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        waiting += [
            re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            for requirement in found[plain].requires or ()
            if "extra ==" not in requirement
        ]
    del found["cluster-bridge"]
    return list(found.values())


def _lay_out_base(root: Path) -> None:
    (root / _PREFIX / "bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "tmp").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/sbin/nologin\n")
    program = Path(sys.executable).resolve()
    shutil.copy2(program, root / _PREFIX / "bin/python3")
    left_out = shutil.ignore_patterns(*_LEFT_OUT, *_LEFT_OUT_GLOBS)
    shutil.copytree(sysconfig.get_path("stdlib"), root / _LIBRARY, ignore=left_out)
    packages = root / _LIBRARY / "site-packages"
    for distribution in _dependencies():
        _copy_distribution(distribution, packages)
    for library in _shared_libraries(root, program):
        target = root / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), target)
    _compile(root / _LIBRARY)


def _copy_distribution(distribution: metadata.Distribution, packages: Path) -> None:
    for file in distribution.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:  # scripts are re-created below
            continue
        source = Path(str(distribution.locate_file(file)))
        if source.is_file():
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _shared_libraries(root: Path, program: Path) -> set[Path]:
    """Libraries that the interpreter and all extension modules load, except those in packages."""
    found: set[Path] = set()
    for file in (program, *root.rglob("*.so"), *root.rglob("*.so.*")):
        loaded = run(["ldd", file], check=False).stdout
        found |= {Path(path) for path in _SHARED.findall(loaded)}
    return {library for library in found if root not in library.parents}


# -- the bridge itself ---------------------------------------------------------------------


def _lay_out_bridge(root: Path) -> None:
    packages = root / _LIBRARY / "site-packages"
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / name, packages / name, ignore=ignored)
    version = metadata.version("cluster-bridge")
    dist_info = packages / f"cluster_bridge-{version}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: cluster-bridge\nVersion: {version}\n"
    )
    script = root / _PREFIX / "bin/bridge"
    script.parent.mkdir(parents=True)
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    _compile(packages)


# -- archives ------------------------------------------------------------------------------


def _compile(folder: Path) -> None:
    """Compiles all modules now: the root file system is read-only at run time."""
    compileall.compile_dir(
        folder,
        quiet=2,
        rx=_NOT_COMPILED,
        stripdir=str(folder.parents[2]),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _pack(path: Path, lay_out: Callable[[Path], None]) -> None:
    """Writes the tar archive of the folder that ``lay_out`` fills; renamed when complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        root = Path(folder) / "root"
        root.mkdir()
        lay_out(root)
        partial = Path(folder) / "partial"
        with tarfile.open(partial, "w") as packed:
            for file in _ordered(root):
                packed.add(file, str(file.relative_to(root)), recursive=False, filter=_plain)
        partial.replace(path)


def _ordered(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.iterdir()):
        yield file
        if file.is_dir() and not file.is_symlink():
            yield from _ordered(file)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Makes a member reproducible: owned by root, readable by all users, without a time."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o1777 if info.name == "tmp" else info.mode | 0o444 | (0o111 * info.isdir())
    return info


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bridge_image", description=__doc__)
    parser.add_argument("--load", action="store_true", help="load it into the running home cluster")
    settings = settings_from_environment()
    if parser.parse_args().load:
        clusters = find(settings)
        if "home" not in clusters:
            raise SystemExit("error: no cluster is up; start some with python -m e2e.clusters up")
        print(load(clusters["home"], settings.cache, _say))
    else:
        print(*archive(settings.cache, settings.cache / "images", _say))


if __name__ == "__main__":
    main()
