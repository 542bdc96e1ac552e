"""Installs and runs the artefacts of a release as a user would, and compares two builds.

Wheel and source distribution are installed in bare environments by pip, pipx and uv. The image runs
from its layers as its user on a read-only root file system, which needs root; the architecture that
this machine is not, is checked by its object files, as the build does.
"""

from __future__ import annotations

import filecmp
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.release import elf, signing
from e2e.release.architectures import ARCHITECTURES, native
from e2e.release.errors import ReleaseError
from e2e.release.kubectl_plugin import archive_name
from e2e.release.programs import run_tool

Progress = Callable[[str], None]

#: Runs a command in the image's root: a private mount namespace, read-only, the image's user.
_IN_IMAGE = """\
set -eu
/bin/mount --bind "$1" "$1"
/bin/mount -o remount,bind,ro "$1"
root=$1; user=$2; shift 2
exec /usr/sbin/chroot --userspec="$user" "$root" "$@"
"""
#: Imports what has native code, and tries to write.
_IMAGE_TEST = """\
import errno, os, ssl, sys
import aiohttp, cryptography.hazmat.bindings._rust, h2, orjson, rich, typer, uvloop, yaml
assert os.getuid() == 65532, os.getuid()
assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 50
for folder in ("/", "/tmp", "/usr/lib"):
    try:
        open(os.path.join(folder, "written"), "w")
    except OSError as error:
        assert folder != "/tmp" or error.errno == errno.EROFS, error
    else:
        sys.exit(f"{folder} is writable")
"""

#: The bridge starts its own interpreter again to free memory.
_RESTART_TEST = """\
import subprocess, sys
subprocess.run([sys.executable, "-c", "import uvloop"], check=True)
"""


def verify(version: str, dist: Path, folder: Path, progress: Progress) -> None:
    """Verifies every artefact.

    :raises ReleaseError: an artefact is absent, differs from its checksum, does not install, or
    does
        not run.
    """
    signing.check(dist)
    steps: dict[str, Callable[[Path], None]] = {
        **{f"pip install {file.name}": _pip(file, version) for file in distributions(dist)},
        **{f"pipx install {file.name}": _pipx(file, version) for file in distributions(dist)},
        **{f"uv tool install {file.name}": _uv(file, version) for file in distributions(dist)},
        "kubectl plugin": lambda it: _plugin(dist, version, it),
        "image": lambda it: _image(dist / f"cluster-bridge-image-{version}.tar", version, it),
    }
    for number, (name, step) in enumerate(steps.items()):
        progress(f"verifying: {name}")
        own = folder / str(number)
        own.mkdir()
        step(own)


def distributions(dist: Path) -> list[Path]:
    """The wheel and the source distribution."""
    found = [*dist.glob("cluster_bridge-*.whl"), *dist.glob("cluster_bridge-*.tar.gz")]
    if len(found) != 2:
        raise ReleaseError(f"{dist}: not one wheel and one source distribution; build again")
    return found


@contextmanager
def other_circumstances() -> Iterator[None]:
    """Another time zone, language, order of hashing and mask of permissions, for a second build."""
    changed = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    before = dict(os.environ)
    mask = os.umask(0o077)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.umask(mask)
        os.environ.clear()
        os.environ.update(before)


def unpack(file: Path, folder: Path) -> None:
    """Unpacks an archive of the release."""
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")


def compare(first: Path, second: Path) -> int:
    """Compares two builds; returns the number of equal files.

    :raises ReleaseError: a file differs or is in one build alone.
    """
    names = sorted({it.name for folder in (first, second) for it in folder.iterdir()})
    _, different, absent = filecmp.cmpfiles(first, second, names, shallow=False)
    if different or absent:
        raise ReleaseError(f"two builds differ in {', '.join([*different, *absent])}")
    return len(names)


# -- packages of Python --------------------------------------------------------------------


def _pip(file: Path, version: str) -> Callable[[Path], None]:
    def step(folder: Path) -> None:
        run_tool([sys.executable, "-m", "venv", folder / "venv"])
        run_tool([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", file])
        _runs(folder / "venv/bin", version)

    return step


def _pipx(file: Path, version: str) -> Callable[[Path], None]:
    def step(folder: Path) -> None:
        places = {
            "PIPX_HOME": str(folder / "home"),
            "PIPX_BIN_DIR": str(folder / "bin"),
            "PIPX_MAN_DIR": str(folder / "man"),
        }
        run_tool(["pipx", "install", "--quiet", "--python", sys.executable, file], env=places)
        _runs(folder / "bin", version)

    return step


def _uv(file: Path, version: str) -> Callable[[Path], None]:
    def step(folder: Path) -> None:
        places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
        run_tool(["uv", "tool", "install", "--quiet", "--python", sys.executable, file], env=places)
        _runs(folder / "bin", version)

    return step


def _runs(programs: Path, version: str) -> None:
    """Both names of the command run, outside the checkout, and report the version."""
    for name in ("bridge", "kubectl-bridge"):
        _expect(run_tool([programs / name, "version", "--client"]).stdout, version)
    report = run_tool(
        [programs / "bridge", "version", "-o", "json"], env={"KUBECONFIG": "/nonexistent"}
    ).stdout
    _expect(json.loads(report)["client"]["version"], version)


def _expect(printed: str, version: str) -> None:
    if printed.strip() != version:
        raise ReleaseError(f"bridge version prints {printed.strip()}, not {version}")


# -- the kubectl plugin --------------------------------------------------------------------


def _plugin(dist: Path, version: str, folder: Path) -> None:
    """The manifest names the archives; this machine's runs through a link, as krew creates it."""
    manifest = yaml.safe_load((dist / "bridge.yaml").read_text("utf-8"))
    sums = signing.checksums(dist)
    for platform in manifest["spec"]["platforms"]:
        name = archive_name(version, platform["selector"]["matchLabels"]["arch"])
        if platform["sha256"] != sums[name] or not platform["uri"].endswith(f"/{name}"):
            raise ReleaseError(f"bridge.yaml: does not name {name} and its checksum")
    with tarfile.open(dist / archive_name(version, native().name)) as archive:
        if any(not member.isreg() for member in archive):
            raise ReleaseError("kubectl plugin: krew unpacks regular files only")
        archive.extractall(folder / "store", filter="data")
    (folder / "bin").mkdir()
    program = folder / "bin/kubectl-bridge"
    program.symlink_to(folder / "store/kubectl-bridge")
    _expect(run_tool([program, "version", "--client"]).stdout, version)
    run_tool([folder / "store/usr/bin/python3", "-c", _RESTART_TEST])


# -- the image -----------------------------------------------------------------------------


def _image(file: Path, version: str, folder: Path) -> None:
    with tarfile.open(file) as archive:
        blobs = {
            member.name: content.read()
            for member in archive
            if (content := archive.extractfile(member)) is not None
        }
    found = {}
    for name, manifest, config in images(blobs):
        root = folder / name
        for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            _unpack(_blob(blobs, layer), diff_id, root)
        machine = ARCHITECTURES[name].machine
        if problems := elf.problems([root], machine):
            raise ReleaseError("\n".join([f"the image for {name}:", *problems]))
        found[name] = (root, config["config"])
    if found.keys() != ARCHITECTURES.keys():
        raise ReleaseError(f"the image is for {', '.join(found)} only")
    root, config = found[native().name]
    if os.geteuid() != 0:
        raise ReleaseError("running the image needs root: run make release-verify by sudo")
    printed = _in_image(root, config, [*config["Entrypoint"], "version", "--client"])
    _expect(printed, version)
    python = next(it for it in (root / "usr/bin").glob("python3.*"))
    _in_image(root, config, [f"/usr/bin/{python.name}", "-c", _IMAGE_TEST])


def images(
    blobs: Mapping[str, bytes],
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Architecture, manifest and configuration of each image of a layout (path → content).

    :raises ReleaseError: a blob is absent or differs from its digest, or the layout has not one
    image.
    """
    top = json.loads(blobs["index.json"])["manifests"]
    if len(top) != 1:
        raise ReleaseError(f"index.json: has {len(top)} images")
    for descriptor in json.loads(_blob(blobs, top[0]))["manifests"]:
        manifest = json.loads(_blob(blobs, descriptor))
        config = json.loads(_blob(blobs, manifest["config"]))
        yield descriptor["platform"]["architecture"], manifest, config


def _blob(blobs: Mapping[str, bytes], descriptor: Mapping[str, Any]) -> bytes:
    algorithm, _, digest = descriptor["digest"].partition(":")
    content = blobs.get(f"blobs/{algorithm}/{digest}")
    if content is None or _sha256(content) != digest or len(content) != descriptor["size"]:
        raise ReleaseError(f"{descriptor['digest']}: absent, or its content differs")
    return content


def _unpack(layer: bytes, diff_id: str, root: Path) -> None:
    tar = gzip.decompress(layer)
    if f"sha256:{_sha256(tar)}" != diff_id:
        raise ReleaseError(f"{diff_id}: the layer's content differs")
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extractall(root, filter="tar")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _in_image(root: Path, config: Mapping[str, Any], command: list[str]) -> str:
    """Output of a command in the image, as its user, on a read-only root file system."""
    return run_tool(
        [
            *("unshare", "--mount", "--fork", "env", "-i", *config["Env"], "/bin/sh", "-c"),
            *(_IN_IMAGE, "sh", root, config["User"], *command),
        ]
    ).stdout
