"""What the backends need from the operating system.

What is missing is installed with apt-get where that can be done (root, on a system that has it);
otherwise everything that is missing is named at once, with the command that installs it. Several
processes may install at once, and no service is started by what they install (`INSTALL`).
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

# Administrators' programs are not on every PATH, not even on every root's.
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"

#: Installs packages; one process after the other.
INSTALL = Path(__file__).parent.parent / "apt-install.sh"


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package, and a program by which it is known to be there."""

    name: str
    program: str

    def present(self) -> bool:
        """Whether its program is there."""
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
# What test images are made of.
TEST_IMAGES = (Package("busybox-static", "busybox"),)
# A private Docker engine.
ENGINE = (
    *NETWORK,
    Package("docker.io", "dockerd"),
    Package("iptables", "iptables"),
    Package("mount", "mount"),
)
# A node image for kind that is made here.
NODE_IMAGE = (
    Package("debootstrap", "debootstrap"),
    Package("containerd", "containerd"),
    Package("runc", "runc"),
)


def ensure(packages: tuple[Package, ...], say: Progress) -> None:
    """Have all of these packages.

    :raises MissingTool: one is absent and cannot be installed, or this is not root.
    """
    missing = [package.name for package in packages if not package.present()]
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise MissingTool(
            "network namespaces and kubelets need root",
            next_step="run it as root, or have Docker and take --backend kind",
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
    """Check for what no package brings.

    :raises MissingTool: the kernel knows no overlay file system.
    """
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        raise MissingTool(
            "the kernel knows no overlay file system",
            where="/proc/filesystems",
            next_step="run `modprobe overlay`, or take --nodes simulated",
        )
