"""The locks of Python packages: every version with the hashes of its files, for pip and uv.

`image.txt` has what the bridge depends on, `development.txt` also tests, linters and tools of the
release, `docs.txt` the site, `build.txt` the build back end. They hold for each supported Python
and platform, and name no index.
"""

from __future__ import annotations

import re
from pathlib import Path

from e2e.release.programs import run_tool

LOCKS = Path(__file__).parent / "locks"
#: Lock file → what it has besides the bridge's dependencies, as options of `uv pip compile`.
FILES = {
    "development.txt": ("--group", "dev"),
    "image.txt": (),
    "docs.txt": ("--group", "docs"),
    "build.txt": ("--group", "build"),
}
_WITHOUT_BRIDGE = ("docs.txt", "build.txt")
#: The oldest Python that the project supports.
OLDEST_PYTHON = "3.11"
_PINNED = re.compile(r"(?m)^([A-Za-z0-9._-]+)==([^\s;\\]+)")


def update(project: Path) -> None:
    """Resolves every lock file again, to the newest versions that fit together.

    :raises ReleaseError: the requirements contradict each other, or the index is unreachable.
    """
    above: list[str | Path] = []
    for name, options in FILES.items():
        file = LOCKS / name
        file.unlink(missing_ok=True)
        sources: list[str] = [] if name in _WITHOUT_BRIDGE else ["pyproject.toml"]
        run_tool(
            [
                *("uv", "pip", "compile", "--quiet", "--project", project, "--universal"),
                *("--directory", project, "--python-version", OLDEST_PYTHON, "--generate-hashes"),
                *("--no-header", "--no-annotate", "--no-emit-index-url"),
                *(*above, *options, *sources, "--output-file", file),
            ]
        )
        above = ["--constraints", LOCKS / "development.txt"]


def pinned(name: str) -> dict[str, str]:
    """Package → version in that lock file."""
    return dict(_PINNED.findall((LOCKS / name).read_text("utf-8")))
