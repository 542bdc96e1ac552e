"""Source trees of other revisions of this repository, for tests that compare with them."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.bridge_process import Program

REPOSITORY = Path(__file__).parents[1]
#: The release before: its bridge is replaced by the present one, and the golden files are its own.
RELEASE_BEFORE = "5b416489"


class RevisionError(Exception):
    """The revision is not in this clone."""


def commit_of(revision: str) -> str:
    """The full name of the commit. Raises RevisionError."""
    done = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if done.returncode:
        shallow = _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"
        remedy = "git fetch --unshallow" if shallow else "git fetch --all"
        raise RevisionError(f"commit {revision} is not in this clone; fetch it: {remedy}")
    return done.stdout.decode().strip()


@contextmanager
def source_tree(revision: str) -> Iterator[Path]:
    """The files of the revision in a temporary folder, while the block runs."""
    archive = _git("archive", "--format", "tar", commit_of(revision))
    if archive.returncode:
        raise RevisionError(f"git archive {revision}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="cluster-bridge-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def bridge_program(tree: Path, *, before: str = "") -> Program:
    """The command `bridge` of a source tree, by the entry point in its pyproject.toml, with the
    packages of this Python environment. ``before`` is Python code that the process runs first."""
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"]["bridge"].partition(":")
    call = f"import sys; sys.argv[0] = 'bridge'; from {module} import {function} as main; main()"
    # -P: the working directory, which may be this tree, does not precede PYTHONPATH.
    command = (sys.executable, "-P", "-c", f"{before}\n{call}")
    return Program(command, {"PYTHONPATH": str(tree)})


def with_linger(seconds: float) -> Program:
    """This tree's command `bridge`, which keeps remote namespaces and copies for so long after the
    last pod that needs them."""
    before = "from bridge.base import join_settings; join_settings.NAMESPACE_LINGER = "
    return bridge_program(REPOSITORY, before=f"{before}{seconds}")


def _git(*args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", REPOSITORY, *args], capture_output=True, check=False)
