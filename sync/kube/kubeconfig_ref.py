"""Which kubeconfig is meant: a name for it, light enough for a command line's options."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KubeconfigRef:
    """Which kubeconfig and which context of it; None means what kubectl would take."""

    path: Path | None = None
    context: str | None = None

    def __str__(self) -> str:
        where = self.files()
        return where if self.context is None else f"{where} (context {self.context})"

    def files(self) -> str:
        """The file, or the list of files in the form of ``KUBECONFIG``, as kubectl finds it."""
        if self.path is not None:
            return str(self.path)
        return os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
