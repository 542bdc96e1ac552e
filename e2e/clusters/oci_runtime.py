"""An OCI runtime for engines without CAP_SYS_RESOURCE: runc, asked for no more than can be had.

    oci_runtime.py RUNC ARGUMENT…

A privileged container asks for every capability, and an engine may ask for limits and for an
out-of-memory score. Without CAP_SYS_RESOURCE the kernel refuses some of these, and runc gives up
("unable to apply caps"). Before runc is called, the file that it will read is changed: config.json
of a bundle (`create`, `run`), or the process of an `exec`.

Run by dockerd for each container and each exec: standard library only, and quick to start.
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
    """Become runc."""
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
    """The file that describes what is to run, and whether it describes a whole container."""
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
    """Ask for less in the description of a process; `lowest` is the score that we have ourselves.

    Without the capability nobody may lower a score, or raise a limit.
    """
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names if name != MISSING]
    if process.get("oomScoreAdj") is not None:
        process["oomScoreAdj"] = max(process["oomScoreAdj"], lowest)
    process.pop("rlimits", None)


def needed() -> bool:
    """Whether this process may not have the capability either."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapBnd":
            return not int(value, 16) >> MISSING_BIT & 1
    return False


if __name__ == "__main__":
    main()
