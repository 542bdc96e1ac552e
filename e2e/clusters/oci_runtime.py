"""An OCI runtime for engines without CAP_SYS_RESOURCE: runs runc with fewer privileges requested.

    oci_runtime.py RUNC ARGUMENT…

A privileged container requests every capability, and an engine may request limits and an
out-of-memory score. Without CAP_SYS_RESOURCE the kernel rejects some of these, and runc fails
("unable to apply caps"). So the file that runc is about to read is changed first: config.json of a
bundle (`create`, `run`), or the process of an `exec`.

dockerd runs it for each container and each exec: standard library only, and quick to start.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MISSING = "CAP_SYS_RESOURCE"
#: Its number among the kernel's capabilities.
MISSING_BIT = 24


def main() -> None:
    """Adapts the request and replaces this process by runc."""
    runc, *arguments = sys.argv[1:]
    found = described(arguments)
    if found is not None:
        path, whole = found
        document = json.loads(path.read_text())
        lowest = int(Path("/proc/self/oom_score_adj").read_text())
        adapt(document.get("process") or {} if whole else document, lowest=lowest)
        path.write_text(json.dumps(document))
    os.execvp(runc, [runc, *arguments])


def described(arguments: Sequence[str]) -> tuple[Path, bool] | None:
    """The file that describes the process to run, and whether it describes a whole container."""
    for command, names, file in (
        ("create", ("--bundle", "-b"), "config.json"),
        ("run", ("--bundle", "-b"), "config.json"),
        ("exec", ("--process", "-p"), ""),
    ):
        if command in arguments:
            value = _option(arguments[arguments.index(command) + 1 :], names)
            if value is not None:
                return Path(value, file), bool(file)
    return None


def _option(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else next(iter(arguments[index + 1 :]), None)
    return None


def adapt(process: dict[str, Any], *, lowest: int) -> None:
    """Reduces the request in the description of a process; `lowest` is this process's score.

    Without the capability a process cannot lower a score or raise a limit.
    """
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names if name != MISSING]
    if process.get("oomScoreAdj") is not None:
        process["oomScoreAdj"] = max(process["oomScoreAdj"], lowest)
    process.pop("rlimits", None)


def needed() -> bool:
    """Whether this process lacks the capability."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapBnd":
            return not int(value, 16) >> MISSING_BIT & 1
    return False


if __name__ == "__main__":
    main()
