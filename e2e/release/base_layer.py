"""The lowest layer of the image: glibc, OpenSSL and Python from Debian, and nothing that runs else.

As in distroless images, packages are unpacked without their scripts, and there is no shell and no
package manager; `/var/lib/dpkg/status.d` lets scanners find the packages. The layer depends on the
locked packages and this module alone, so its digest is locked too.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from e2e.release import archives
from e2e.release.architectures import Architecture
from e2e.release.debian_packages import PYTHON
from e2e.release.errors import ReleaseError
from e2e.release.programs import run_tool

USER = "65532"
_STDLIB = f"usr/lib/{PYTHON}"
#: Documentation, data for conversions of character sets, and modules that the bridge does not
#: import.
_LEFT_OUT = (
    *("boot", "home", "srv", "media", "mnt", "opt", "etc/cron*", "etc/binfmt.d", "etc/apt"),
    *("usr/games", "usr/include", "usr/libexec", "usr/src", "usr/local/*", "usr/sbin"),
    *("usr/lib/binfmt.d", "usr/lib/*/gconv", "usr/lib/*/perl*", "usr/lib/*/audit"),
    *("usr/share/base-files", "usr/share/bug", "usr/share/debconf", "usr/share/dict"),
    *("usr/share/info", "usr/share/lintian", "usr/share/man", "usr/share/misc"),
    *("usr/share/applications", "usr/share/binfmts", "usr/share/pixmaps", "usr/share/python3"),
    *("var/backups", "var/cache", "var/local", "var/mail", "var/opt", "var/spool"),
    *(f"{_STDLIB}/{it}" for it in ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test")),
    *(f"{_STDLIB}/{it}" for it in ("tkinter", "turtle*", "venv", "curses", "dbm", "sqlite3")),
    *(f"{_STDLIB}/lib-dynload/{it}*.so" for it in ("_curses", "_dbm", "_sqlite3", "readline")),
    *(f"{_STDLIB}/lib-dynload/{it}*.so" for it in ("*test", "_xxtestfuzz", "xxlimited", "xxsub")),
)
_PASSWD = f"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/:/sbin/nologin\n"
_GROUP = f"root:x:0:\nnonroot:x:{USER}:\n"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"


class Interpreter:
    """Python of a laid out base, run on this machine: by the base's own loader and libraries."""

    def __init__(self, root: Path, architecture: Architecture) -> None:
        program = root / "usr/bin" / PYTHON
        self.argv: tuple[str | Path, ...] = (
            *(
                root / architecture.loader,
                "--library-path",
                root / "usr/lib" / architecture.triplet,
            ),
            *("--argv0", program, program),
        )

    def compile(self, root: Path, folder: str) -> None:
        """Compiles all modules below that folder, for a root file system that is read-only.

        The result depends on the sources alone: it contains no time, and is not checked again.

        :raises ReleaseError: the interpreter failed.
        """
        run_tool(
            [
                *(
                    *self.argv,
                    "-I",
                    "-B",
                    "-m",
                    "compileall",
                    "-q",
                    "-j",
                    "1",
                    "-s",
                    root,
                    "-p",
                    "/",
                ),
                *("--invalidation-mode", "unchecked-hash", root / folder),
            ],
            env={"PYTHONHASHSEED": "0"},
        )


def lay_out(packages: Sequence[Path], root: Path) -> None:
    """Unpacks the packages into the root, less what the bridge does not need.

    :raises ReleaseError: dpkg-deb cannot read a package.
    """
    root.mkdir(parents=True)
    for package in packages:
        run_tool(["dpkg-deb", "--extract", package, root])
    for file in sorted(archives.ordered(root), reverse=True):
        name = file.relative_to(root).as_posix()
        if any(fnmatch(name, it) for it in _LEFT_OUT) or _is_document(name):
            _remove(file)
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for package in packages:
        control = run_tool(["dpkg-deb", "--field", package]).stdout
        found = re.search(r"(?m)^Package: (\S+)$", control)
        if found is None:
            raise ReleaseError(f"{package}: has no name")
        (status / found[1]).write_text(control)
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text(_GROUP)
    (root / "tmp").mkdir(exist_ok=True)
    _write_certificates(root)


def layer(root: Path) -> tuple[bytes, str]:
    """The uncompressed layer of a base whose modules are compiled, and its digest."""
    content = archives.tar_of_folder(root, epoch=0)
    return content, f"sha256:{hashlib.sha256(content).hexdigest()}"


def _write_certificates(root: Path) -> None:
    """Writes the bundle that a script of ca-certificates would, and OpenSSL's link to it."""
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / _BUNDLE
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(it.read_text("ascii").rstrip("\n") + "\n" for it in certificates))
    shutil.rmtree(root / "usr/share/ca-certificates")
    openssl = root / "usr/lib/ssl"
    openssl.mkdir(exist_ok=True)
    (openssl / "cert.pem").symlink_to(f"/{_BUNDLE}")
    (openssl / "certs").symlink_to("/etc/ssl/certs")


def _is_document(name: str) -> bool:
    """Whether it is documentation; the licenses of the packages are kept."""
    return fnmatch(name, "usr/share/doc/*/*") and not name.endswith("/copyright")


def _remove(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink()
