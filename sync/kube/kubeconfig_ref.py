"""`KubeconfigRef` names a kubeconfig and a context.

A module of its own because command-line options need it: `sync.kube.kubeconfig` takes 0.3 s to
import (aiohttp, yaml), for which `bridge --help` would wait; this takes 0.04 s.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KubeconfigRef:
    """A kubeconfig and a context in it; None means kubectl's default."""

    path: Path | None = None
    context: str | None = None

    def __str__(self) -> str:
        where = self.files()
        return where if self.context is None else f"{where} (context {self.context})"

    def files(self) -> str:
        """The file, or the list of files as in ``KUBECONFIG``, as kubectl finds it."""
        if self.path is not None:
            return str(self.path)
        return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")

    def paths(self) -> list[Path]:
        """The files of that list, which may not exist."""
        return [Path(file).expanduser() for file in self.files().split(os.pathsep) if file]
