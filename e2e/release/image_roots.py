"""The root file systems of the image: for each architecture the base, the dependencies, the bridge.

Each part is a folder of its own that becomes a layer; `Roots.parts` has them from the lowest up.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.release import archives, base_layer, debian_packages, elf
from e2e.release.architectures import ARCHITECTURES, Architecture, native
from e2e.release.base_layer import Interpreter
from e2e.release.errors import ReleaseError
from e2e.release.programs import run_tool
from e2e.release.python_locks import LOCKS

#: Debian's Python looks for packages there, wherever its prefix is.
PACKAGES = "usr/lib/python3/dist-packages"
_PYTHON_VERSION = debian_packages.PYTHON.removeprefix("python")
_SCRIPT = f"""\
#!/usr/bin/{debian_packages.PYTHON}
import sys

from bridge.cli import main

sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Roots:
    """The parts of one architecture's root file system."""

    architecture: Architecture
    base: Path
    dependencies: Path
    bridge: Path

    @property
    def parts(self) -> tuple[Path, ...]:
        """The folders of the layers, from the lowest up."""
        return (self.base, self.dependencies, self.bridge)


def lay_out(wheel: Path, folder: Path, cache: Path) -> tuple[Roots, ...]:
    """Lays out all architectures below the folder, with the bridge from the wheel.

    :raises ReleaseError: a package is unavailable or differs from its hash, the base differs from
    its
        locked digest, or a shared object is of another architecture or lacks a library.
    """
    roots = tuple(
        Roots(it, *(folder / it.name / part for part in ("base", "dependencies", "bridge")))
        for it in ARCHITECTURES.values()
    )
    packages = debian_packages.locked()
    for root in roots:
        files = debian_packages.fetch(packages[root.architecture.name], cache)
        base_layer.lay_out(files, root.base)
    interpreter = Interpreter(folder / native().name / "base", native())
    for root in roots:
        interpreter.compile(root.base, f"usr/lib/{debian_packages.PYTHON}")
        _install(
            root.architecture, root.dependencies, "--require-hashes", "-r", LOCKS / "image.txt"
        )
        _install(root.architecture, root.bridge, wheel)
        _write_programs(root.bridge)
        for part in (root.dependencies, root.bridge):
            interpreter.compile(part, PACKAGES)
        if problems := elf.problems(root.parts, root.architecture.machine):
            raise ReleaseError("\n".join(["the image lacks libraries:", *problems]))
    return roots


def check_base(digests: Mapping[str, str]) -> None:
    """Compares the digests with the locked ones.

    :raises ReleaseError: a base differs.
    """
    expected = debian_packages.locked_digests()
    for name, digest in digests.items():
        if digest != expected[name]:
            raise ReleaseError(
                f"the base for {name} is {digest}, not {expected[name]} as locked; "
                "if its construction changed, run make release-lock and commit the result"
            )


def _install(architecture: Architecture, root: Path, *what: str | Path) -> None:
    """Installs packages for that architecture, from wheels alone; nothing of them runs."""
    target = root / PACKAGES
    run_tool(
        [
            *("uv", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"),
            *("--python-platform", architecture.wheels, "--python-version", _PYTHON_VERSION),
            *("--link-mode", "copy", "--no-compile-bytecode", "--target", target, *what),
        ]
    )
    # Scripts for the interpreter of this environment, and files that name the wheel's path.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in ("direct_url.json", "REQUESTED", "uv_cache.json", "RECORD"):
        for file in target.glob(f"*.dist-info/{name}"):
            file.unlink()
    (target / ".lock").unlink(missing_ok=True)


def _write_programs(root: Path) -> None:
    """Writes `bridge` and `kubectl-bridge` into the image's search path."""
    for name in ("bridge", "kubectl-bridge"):
        script = root / "usr/bin" / name
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(_SCRIPT)
        script.chmod(0o755)


def tars(root: Roots) -> list[bytes]:
    """The uncompressed layers, from the lowest up. No layer contains a time."""
    return [archives.tar_of_folder(part, epoch=0) for part in root.parts]
