"""Preloads the control plane's images into a composed node image.

Each image has one static program; kube-proxy's also has the node's iptables. A containerd whose
root is the node's imports them, so that they exist before the node first starts.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters import image_archives
from e2e.clusters.cluster import Progress, Settings
from e2e.clusters.errors import ClusterError, CommandFailed
from e2e.clusters.go_build import go_program
from e2e.clusters.image_archives import Entry, Image, Layer
from e2e.clusters.native_node import CRI_NAMESPACE
from e2e.clusters.node_image_prune import PARTIAL
from e2e.clusters.processes import POLL
from e2e.clusters.run_command import run
from e2e.clusters.versions import KubernetesVersion

_CONTAINERD_TIMEOUT = 30.0
_SANDBOX_IMAGE = re.compile(r"""(sandbox_image|sandbox) = ["']([^"']+)["']""")
_SHARED = re.compile(r"(?:=> )?(/\S+) \(0x[0-9a-f]+\)")


@dataclass(frozen=True, slots=True)
class Parts:
    """Folders of built programs, and of kind's module."""

    kubernetes: Path
    kubeadm: Path
    etcd: Path
    coredns: Path
    kind: Path


def preload(root: Path, parts: Parts, settings: Settings, say: Progress) -> None:
    """Imports the images into the node's containerd; `root` is the node's root file system.

    :raises CommandFailed: containerd does not start, or rejects an image.
    """
    with tempfile.TemporaryDirectory(dir=settings.cache, prefix=PARTIAL) as folder:
        pause = Path(folder, "pause")
        go_program(image_archives.PAUSE_SOURCE, "pause", pause, settings.cache, say)
        archive = Path(folder, "images.tar")
        image_archives.write_archive(
            archive, list(_images(root, parts, settings.kubernetes, pause))
        )
        with _containerd(root / "var/lib/containerd", Path(folder)) as ctr:
            run([*ctr, "--namespace", CRI_NAMESPACE, "images", "import", archive])


def _images(root: Path, parts: Parts, version: KubernetesVersion, pause: Path) -> Iterator[Image]:
    programs = {
        "kube-apiserver": parts.kubernetes,
        "kube-controller-manager": parts.kubernetes,
        "kube-scheduler": parts.kubernetes,
        "kube-proxy": parts.kubernetes,
        "etcd": parts.etcd,
        "coredns": parts.coredns,
    }
    wanted: list[str | Path] = [parts.kubeadm / "kubeadm", "config", "images", "list"]
    listed = run([*wanted, "--kubernetes-version", str(version)]).stdout.split()
    for reference in listed:
        name = reference.rpartition("/")[2].partition(":")[0]
        if name == "pause":
            continue  # kind's containerd uses another version
        program = Entry(f"usr/local/bin/{name}", content=(programs[name] / name).read_bytes())
        below = (_packet_filter(root),) if name == "kube-proxy" else ()
        # Only CoreDNS is started by its image alone; kubeadm gives it arguments.
        folders = (Entry("usr"), Entry("usr/local"), Entry("usr/local/bin"), Entry("tmp", 0o1777))
        layers: tuple[Layer | Path, ...] = (*below, (*folders, program))
        yield Image((reference,), layers, entrypoint=(f"/usr/local/bin/{name}",))
    config = (root / "etc/containerd/config.toml").read_text()
    sandbox = _SANDBOX_IMAGE.search(config)
    if sandbox is None:
        raise ClusterError("no sandbox image is named in kind's files", where="config.toml")
    layer = (Entry("pause", content=pause.read_bytes()),)
    yield Image((sandbox[2],), (layer,), ("/pause",), user="65535:65535")


def _packet_filter(root: Path) -> Layer:
    """The iptables commands of the node, with the libraries that they load."""
    multi = ("xtables-nft-multi", "xtables-legacy-multi")
    extensions = sorted(root.glob("usr/lib/*/xtables/*.so"))
    programs = [root / "usr/sbin" / name for name in multi]
    files = {*programs, *extensions}
    for file in (*programs, *extensions):
        libraries = run(["chroot", root, "ldd", f"/{file.relative_to(root)}"], check=False).stdout
        for library in _SHARED.findall(libraries):
            # Debian's /lib and /lib64 are links into /usr.
            files.add(root / "usr" / library.removeprefix("/usr").lstrip("/"))
    commands = ("iptables", "iptables-save", "iptables-restore")
    links = [
        f"{ip}{command.removeprefix('iptables')}"
        for command in commands
        for ip in ("iptables", "ip6tables")
    ]
    folders = {parent for file in files for parent in file.relative_to(root).parents}
    return (
        *(Entry(str(folder)) for folder in sorted(folders) if str(folder) != "."),
        *(Entry(name, 0o777, link=f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")),
        *(Entry(str(f.relative_to(root)), content=_content(root, f)) for f in sorted(files)),
        *(Entry(f"usr/sbin/{link}", 0o777, link=multi[0]) for link in links),
        Entry("run"),
    )


def _content(root: Path, file: Path) -> bytes:
    """The content of a file of a root file system; resolves absolute links within it."""
    while file.is_symlink() and file.readlink().is_absolute():
        file = root / file.readlink().relative_to("/")
    return file.read_bytes()


@contextmanager
def _containerd(root: Path, folder: Path) -> Iterator[list[str]]:
    """A containerd on that root while the block runs; yields the command of its client."""
    socket = folder / "containerd.sock"
    config = folder / "config.toml"
    config.write_text(
        "version = 2\n"
        f'root = "{root}"\nstate = "{folder / "state"}"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        f'[grpc]\naddress = "{socket}"\n'
    )
    with (folder / "containerd.log").open("w") as log:
        process = subprocess.Popen(["containerd", "--config", str(config)], stdout=log, stderr=log)
        try:
            ctr = ["ctr", "--address", str(socket)]
            deadline = time.monotonic() + _CONTAINERD_TIMEOUT
            while run([*ctr, "version"], check=False).returncode != 0:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise CommandFailed(f"containerd: {(folder / 'containerd.log').read_text()}")
                time.sleep(POLL)
            yield ctr
        finally:
            process.terminate()
            process.wait()
