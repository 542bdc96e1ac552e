"""Several processes install packages at once: one does, the others wait, and none fails."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.clusters.system_packages import INSTALL

#: Two that run at once fail, as apt-get does; what is installed is a file in a folder.
APT_GET = """#!/bin/sh
if ! mkdir "$STATE/running" 2>/dev/null; then
    echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)' >&2
    echo overlap >>"$STATE/log"
    exit 100
fi
echo "$1" >>"$STATE/log"
[ ! -e "$STATE/policy" ] || echo "no services" >>"$STATE/log"
sleep 0.2
if [ -e "$STATE/broken" ]; then echo 'E: Unable to locate package' >&2; code=100; fi
if [ "$1" = install ]; then
    for word in "$@"; do
        case $word in -* | install) ;; *) touch "$STATE/installed-$word" ;; esac
    done
fi
rmdir "$STATE/running"
exit "${code:-0}"
"""
DPKG_QUERY = """#!/bin/sh
for package; do :; done
[ -e "$STATE/installed-$package" ] && printf installed
"""


@dataclass(frozen=True)
class Machine:
    """Programs of a machine that are not the real ones."""

    folder: Path

    @property
    def log(self) -> list[str]:
        """The arguments of the apt-get calls."""
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    def begin(self, *packages: str) -> subprocess.Popen[str]:
        """Starts an installation."""
        environment = {
            **os.environ,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "STATE": str(self.folder),
            "APT_INSTALL_LOCK": str(self.folder / "lock"),
            "APT_INSTALL_POLICY": str(self.folder / "policy"),
        }
        return subprocess.Popen(
            ["sh", INSTALL, *packages], env=environment, stderr=subprocess.PIPE, text=True
        )

    def has(self, package: str) -> bool:
        """Whether it is installed."""
        return (self.folder / f"installed-{package}").exists()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and standard error of the script."""
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One without packages."""
    for name, script in (("apt-get", APT_GET), ("dpkg-query", DPKG_QUERY)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    return Machine(tmp_path)


def test_of_several_installations_at_once_one_installs_and_the_others_wait(
    machine: Machine,
) -> None:
    several = [machine.begin("socat", "runc") for _ in range(4)]
    assert [ended(it) for it in several] == [(0, "")] * 4
    assert machine.log == ["update", "install", "no services"]
    assert machine.has("socat")
    assert machine.has("runc")
    assert not (machine.folder / "policy").exists(), "services may start again"


def test_installations_of_other_packages_come_one_after_the_other(machine: Machine) -> None:
    several = [machine.begin(name) for name in ("socat", "runc")]
    assert [ended(it) for it in several] == [(0, "")] * 2
    assert "overlap" not in machine.log
    assert machine.log.count("install") == 2


def test_a_lock_of_another_program_is_waited_for(machine: Machine) -> None:
    (machine.folder / "running").mkdir()
    waiting = machine.begin("socat")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(1)
    (machine.folder / "running").rmdir()
    assert ended(waiting) == (0, "")
    assert machine.has("socat")


def test_a_failure_is_reported_and_leaves_no_policy(machine: Machine) -> None:
    (machine.folder / "broken").touch()
    code, errors = ended(machine.begin("socat"))
    assert code == 100
    assert "Unable to locate package" in errors
    assert not (machine.folder / "policy").exists()


def test_a_policy_of_the_machine_stays(machine: Machine) -> None:
    (machine.folder / "policy").write_text("theirs")
    assert ended(machine.begin("socat")) == (0, "")
    assert (machine.folder / "policy").read_text() == "theirs"


@pytest.mark.parametrize("file", ["e2e/setup.sh", ".ci/run"])
def test_nothing_else_installs_packages(file: str) -> None:
    text = (INSTALL.parents[1] / file).read_text()
    assert "apt-install.sh" in text
    assert "apt-get -" not in text
    assert "apt-get update" not in text
