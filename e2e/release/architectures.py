"""The architectures of the image and of the kubectl plugin."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from e2e.release.errors import ReleaseError


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture of Linux under its various names."""

    #: As in OCI images and in Debian: ``amd64``.
    name: str
    #: Debian's folder of libraries.
    triplet: str
    #: The field ``e_machine`` of ELF headers.
    machine: int
    #: The platform of wheels as uv names it: no newer than the image's glibc (2.41).
    wheels: str
    #: The dynamic loader, from the root of the file system.
    loader: str
    #: As `uname -m` prints it.
    kernel: str


ARCHITECTURES = {
    "amd64": Architecture(
        name="amd64",
        triplet="x86_64-linux-gnu",
        machine=62,
        wheels="x86_64-manylinux_2_40",
        loader="usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        kernel="x86_64",
    ),
    "arm64": Architecture(
        name="arm64",
        triplet="aarch64-linux-gnu",
        machine=183,
        wheels="aarch64-manylinux_2_40",
        loader="usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
        kernel="aarch64",
    ),
}


def native() -> Architecture:
    """The architecture of this machine, whose interpreter of the image runs here.

    :raises ReleaseError: no image is built for it.
    """
    machine = platform.machine()
    for architecture in ARCHITECTURES.values():
        if architecture.kernel == machine:
            return architecture
    raise ReleaseError(f"no image is built for {machine}; build the release on x86_64 or aarch64")
