"""manifests/systemd/bridge@.service, and the process that systemd starts for an instance of it."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from translators.object_accessors import Object

UNIT = Path(__file__).parents[3] / "manifests" / "systemd" / "bridge@.service"
TEXT = UNIT.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of the unit on a machine whose root directory is ``root``."""

    root: Path
    name: str

    @property
    def credentials(self) -> Path:
        """The directory of its credentials."""
        return self.root / "run" / "credentials" / f"bridge@{self.name}.service"

    @property
    def state(self) -> Path:
        """Its state directory."""
        return self.root / "var" / "lib" / f"cluster-bridge-{self.name}"

    def write_files(self, options: Object, *, home: Path, remote: Path) -> None:
        """Writes what docs/how-to/systemd.md asks an administrator to write: the options of the
        join, and copies of the kubeconfigs ``home`` and ``remote``."""
        folder = self.root / "etc" / "cluster-bridge"
        folder.mkdir(parents=True)
        (folder / f"{self.name}.yaml").write_text(yaml.safe_dump(options))
        shutil.copy(home, folder / "home.kubeconfig")
        shutil.copy(remote, folder / f"{self.name}.kubeconfig")

    def prepare(self) -> None:
        """Creates the state directory and copies the credentials, as systemd does at a start."""
        for directory in (self.state, self.credentials):
            directory.mkdir(parents=True, exist_ok=True)
        for loaded in values("LoadCredential"):
            name, _, source = self._resolved(loaded).partition(":")
            shutil.copy(source, self.credentials / name)

    @property
    def command(self) -> list[str]:
        """The program of the unit with its arguments."""
        (command,) = values("ExecStart")
        return shlex.split(self._resolved(command))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the unit sets."""
        pairs = (self._resolved(pair).partition("=") for pair in values("Environment"))
        return {name: value for name, _, value in pairs}

    def _resolved(self, text: str) -> str:
        specifiers = {
            "%i": self.name,
            "%S": str(self.state.parent),
            "${CREDENTIALS_DIRECTORY}": str(self.credentials),
            "/etc/": f"{self.root}/etc/",
        }
        for specifier, value in specifiers.items():
            text = text.replace(specifier, value)
        return text


def values(key: str) -> list[str]:
    """All values of a key of the unit."""
    return re.findall(rf"(?m)^{key}=(.+)$", TEXT.replace("\\\n", ""))
