"""Operating system packages of the backends.

Missing packages are installed with apt-get if possible (root, on a system with apt); otherwise an
error names all of them with the command that installs them. Several processes may install at once;
no installed service is started (`INSTALL`).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import Progress
from e2e.clusters.errors import MissingTool
from e2e.clusters.run_command import run

# Debian puts the CNI plugins here.
CNI_PLUGINS = Path("/usr/lib/cni")

# Administrators' programs are not on every PATH, not even on root's.
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

#: Installs packages; one process after the other.
INSTALL = Path(__file__).parent.parent / "apt-install.sh"


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package, and a program that indicates that it is installed."""

    name: str
    program: str

    def present(self) -> bool:
        """Whether its program exists."""
        path = f"{os.environ.get('PATH', '')}:{_SBIN}:{CNI_PLUGINS}"
        return shutil.which(self.program, path=path) is not None


NETWORK = (Package("iproute2", "ip"), Package("util-linux", "nsenter"))
NODE = (
    Package("containerd", "containerd"),
    Package("runc", "runc"),
    Package("containernetworking-plugins", "ptp"),
    Package("busybox-static", "busybox"),
    Package("iptables", "iptables"),
    Package("conntrack", "conntrack"),
    Package("socat", "socat"),
    Package("mount", "mount"),
)
# Content of test images.
TEST_IMAGES = (Package("busybox-static", "busybox"),)
# A private Docker engine.
ENGINE = (
    *NETWORK,
    Package("docker.io", "dockerd"),
    Package("iptables", "iptables"),
    Package("mount", "mount"),
)
# Composition of a node image for kind.
NODE_IMAGE = (
    Package("debootstrap", "debootstrap"),
    Package("containerd", "containerd"),
    Package("runc", "runc"),
)


def ensure(packages: tuple[Package, ...], say: Progress) -> None:
    """Installs these packages unless they are present.

    :raises MissingTool: a package is absent and cannot be installed, or this process is not root.
    """
    missing = [package.name for package in packages if not package.present()]
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise MissingTool(
            "network namespaces and kubelets need root",
            next_step="run it as root, or start Docker and use --backend kind",
        )
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise MissingTool(
            f"missing: {', '.join(missing)}",
            next_step=f"install them; on Debian that is: {' '.join(command)}",
        )
    say(f"installing {', '.join(missing)}")
    run(["sh", INSTALL, *missing])


def require_overlay() -> None:
    """Verifies that the kernel supports overlay file systems.

    :raises MissingTool: it does not.
    """
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        raise MissingTool(
            "the kernel does not support overlay file systems",
            where="/proc/filesystems",
            next_step="run `modprobe overlay`, or use --nodes simulated",
        )
