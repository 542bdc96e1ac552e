"""Writes image archives without a container engine.

`write_archive` writes a Docker archive (manifest.json, one config and the layers of each image)
that containerd imports. Archives are reproducible: no times, no owners, members in a fixed order.
`archive_of_test_images` has the few images that tests on real nodes use, under their upstream
names, built from a Go program of twenty lines, Debian's busybox and upstream's agnhost. Debian's
busybox 1.35 crashes on `wget -T`: write `timeout 5 wget` in tests.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import Progress
from e2e.clusters.go_build import go_program, locked
from e2e.clusters.run_command import run

PAUSE = "registry.k8s.io/pause:3.10.1"
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
BUSYBOX_SHORT = "docker.io/library/busybox:1.37"
AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.56"

# Part of the cached archive's name: increase it when the images below change.
_EDITION = 1

# Upstream's pause images run as this user.
_NOBODY = "65535:65535"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

# Ends on the signals that a runtime sends, and reaps orphans in a shared process namespace.
PAUSE_SOURCE = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for pid := 1; pid > 0; {
			pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a layer: a link if it has a target, a file if it has content, else a folder."""

    path: str
    mode: int = 0o755
    content: bytes | None = None
    link: str | None = None
    hard: bool = False


Layer = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its names, its layers from the lowest up, and how it starts. A layer that is a
    file is an uncompressed tar archive."""

    names: tuple[str, ...]
    layers: tuple[Layer | Path, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    environment: tuple[str, ...] = (_PATH,)


def write_archive(path: Path, images: Sequence[Image]) -> None:
    """Writes one Docker archive with all of these images; shared layers are stored once."""
    manifest = []
    written: set[str] = set()
    with tarfile.open(path, "w") as archive:
        for image in images:
            digests = []
            for layer in image.layers:
                content = layer.read_bytes() if isinstance(layer, Path) else layer_bytes(layer)
                digest = hashlib.sha256(content).hexdigest()
                digests.append(digest)
                if digest not in written:
                    _add(archive, f"{digest}/layer.tar", content)
                    written.add(digest)
            config = json.dumps(_config(image, digests), sort_keys=True).encode()
            config_name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, config_name, config)
            layers = [f"{digest}/layer.tar" for digest in digests]
            names = list(image.names)
            manifest.append({"Config": config_name, "RepoTags": names, "Layers": layers})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def layer_bytes(layer: Layer) -> bytes:
    """A layer as an uncompressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in layer:
            info = tarfile.TarInfo(entry.path)
            info.mode = entry.mode
            if entry.link is not None:
                info.type = tarfile.LNKTYPE if entry.hard else tarfile.SYMTYPE
                info.linkname = entry.link
            elif entry.content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(entry.content)
            archive.addfile(info, io.BytesIO(entry.content or b""))
    return buffer.getvalue()


def archive_of_test_images(cache: Path, programs: Path, say: Progress) -> Path:
    """The archive of the test images for the programs of one Kubernetes version.

    It is written once for each version of busybox and agnhost, and renamed when complete.
    """
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    key = hashlib.sha256(busybox.read_bytes()).hexdigest()[:12]
    path = cache / "images" / f"{programs.name}-busybox-{key}-{_EDITION}.tar"

    def images() -> list[Image]:
        pause = path.with_name(f".{path.name}.pause")
        go_program(PAUSE_SOURCE, "pause", pause, cache, say)
        agnhost = (programs / "agnhost").read_bytes()
        made = _test_images(pause.read_bytes(), busybox, agnhost)
        pause.unlink()
        return made

    write_archive_once(path, images, "test images", say)
    return path


def write_archive_once(
    path: Path, images: Callable[[], Sequence[Image]], what: str, say: Progress
) -> None:
    """Writes the archive unless it exists; safe in parallel. ``what`` is for a person."""
    if path.exists():
        return
    with locked(path.with_name(f".{path.name}.lock")):
        if path.exists():
            return
        say(f"building {what} in {path.parent}")
        partial = path.with_name(f".{path.name}.partial")
        write_archive(partial, images())
        partial.rename(path)


def _test_images(pause: bytes, busybox: Path, agnhost: bytes) -> list[Image]:
    base = busybox_layer(busybox)
    programs: Layer = (
        Entry("agnhost", content=agnhost),
        Entry("agnhost-2", link="agnhost", hard=True),
        Entry("uploads", 0o1777),
    )
    return [
        Image((PAUSE,), ((Entry("pause", content=pause),),), ("/pause",), user=_NOBODY),
        Image((BUSYBOX, BUSYBOX_SHORT), (base,), command=("sh",)),
        Image((AGNHOST,), (base, programs), ("/agnhost",), ("pause",)),
    ]


def busybox_layer(busybox: Path) -> Layer:
    """A small root file system: busybox under the names of all its applets."""
    applets = run([busybox, "--list"]).stdout.split()
    folders = ("bin", "dev", "etc", "home", "proc", "root", "sbin", "sys", "usr", "usr/bin", "var")
    return (
        *(Entry(folder) for folder in folders),
        Entry("tmp", 0o1777),
        Entry("bin/busybox", content=busybox.read_bytes()),
        *(
            Entry(f"bin/{name}", 0o777, link="/bin/busybox")
            for name in applets
            if name != "busybox"
        ),
        Entry("usr/bin/env", 0o777, link="/bin/busybox"),
        Entry(
            "etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
        ),
        Entry("etc/group", 0o644, b"root:x:0:\nnobody:x:65534:\n"),
    )


def _config(image: Image, digests: Sequence[str]) -> dict[str, object]:
    machine = platform.machine()
    return {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {
            "Env": list(image.environment),
            "Entrypoint": list(image.entrypoint) or None,
            "Cmd": list(image.command) or None,
            "User": image.user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "cluster-bridge e2e"} for _ in digests],
    }


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o644
    archive.addfile(info, io.BytesIO(content))
