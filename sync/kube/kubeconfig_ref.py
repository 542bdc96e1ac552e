"""`KubeconfigRef` names a kubeconfig and a context.

A module of its own because command-line options need it, for which `bridge --help` would import
yaml.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

#: The name of the file with a renewed token (`sync.kube.bearer_token`) beside a kubeconfig, and of
#: the key in an installation's state Secret.
RENEWED_TOKEN_FILE = "renewed-token"  # noqa: S105


@dataclass(frozen=True, slots=True)
class KubeconfigRef:
    """A kubeconfig and a context in it; None means kubectl's default."""

    path: Path | None = None
    context: str | None = None
    renewed_token: Path | None = None
    """The file of the token that replaces the kubeconfig's; None: the one beside the kubeconfig."""
    origin: str = ""
    """Where the kubeconfig of a file in memory is from, for messages."""

    def __str__(self) -> str:
        where = self.origin or self.files()
        return where if self.context is None else f"{where} (context {self.context})"

    def files(self) -> str:
        """The file, or the list of files as in ``KUBECONFIG``, as kubectl finds it."""
        if self.path is not None:
            return str(self.path)
        return os.environ.get("KUBECONFIG") or _expanded("~/.kube/config")

    def paths(self) -> list[Path]:
        """The files of that list, which may not exist."""
        return [Path(_expanded(file)) for file in self.files().split(os.pathsep) if file]

    def existing(self) -> list[Path]:
        """Those of them that are not missing. One in a folder that the user may not read is among
        them, as for kubectl: reading it fails with the cause."""
        return [path for path in self.paths() if not _is_missing(path)]

    def renewed_token_files(self) -> list[Path]:
        """The files in which there may be a renewed token."""
        if self.renewed_token is not None:
            return [self.renewed_token]
        return [path.absolute().with_name(RENEWED_TOKEN_FILE) for path in self.paths()]


def _expanded(file: str) -> str:
    """Unlike Path.expanduser, it leaves the tilde of a user without a home directory."""
    return os.path.expanduser(file)  # noqa: PTH111


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    except ValueError:  # NUL in the path
        return True
    return False
