"""A machine that cannot run clusters is rejected with one line before anything is built."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "e2e" / "check-machine.sh"
#: Programs of the script itself.
OWN = ("sh", "awk", "grep", "dirname")
NODE = [
    "ip",
    "nsenter",
    "containerd",
    "runc",
    "ptp",
    "busybox",
    "iptables",
    "conntrack",
    "socat",
    "mount",
]
DISK = "printf 'Filesystem 1024-blocks Used Available\\ndisk 9 9 {}\\n'"
ROOMY, FULL = DISK.format(9 * 2**20), DISK.format(7 * 2**20)


def checked(folder: Path, **programs: str) -> tuple[int, str]:
    """Exit code and standard error of the script on a machine with these programs, by their shell
    code."""
    for name in OWN:
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, code in programs.items():
        program = folder / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{code}\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", SCRIPT],
        env={"PATH": str(folder), "HOME": str(folder), "SYSTEM_PROGRAMS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


ROOT, USER = "echo 0", "echo 1000"
FAILS = "exit 1"


def test_root_with_apt_is_enough(tmp_path: Path) -> None:
    assert checked(tmp_path, df=ROOMY, id=ROOT, apt_get="") == (0, "")


def test_docker_needs_no_root(tmp_path: Path) -> None:
    assert checked(tmp_path, df=ROOMY, id=USER, docker="") == (0, "")


def test_all_programs_need_no_apt(tmp_path: Path) -> None:
    assert checked(tmp_path, df=ROOMY, id=ROOT, **dict.fromkeys(NODE, "")) == (0, "")


@pytest.mark.parametrize(
    ("programs", "named"),
    [
        ({"df": FULL, "id": ROOT, "apt_get": ""}, "7 GB are free"),
        ({"df": ROOMY, "id": USER, "docker": FAILS, "apt_get": ""}, "root"),
        ({"df": ROOMY, "id": ROOT, **dict.fromkeys(NODE[1:], "")}, ": ip;"),
    ],
    ids=["disk", "root", "packages"],
)
def test_unsuitable_machine_has_one_line(
    tmp_path: Path, programs: dict[str, str], named: str
) -> None:
    code, error = checked(tmp_path, **programs)
    assert code == 1
    assert named in error
    assert error.count("\n") == 1
