"""What is remembered about a set of clusters between two runs of the command line.

One file a cluster, written before anything of it is started, so that whatever an interrupted run
left can be found and removed; `ready` turns true when everything had started. One file a set, with
the addresses it was given.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path

from e2e.clusters.cluster import Backend, ClusterSpec, Nodes, Settings
from e2e.clusters.errors import InvalidRequest
from e2e.clusters.processes import boot_id
from e2e.clusters.versions import KubernetesVersion

_CLUSTER = "cluster.json"
_SET = "set.json"


@dataclass(frozen=True, slots=True)
class Record:
    """One cluster as it was started."""

    name: str
    backend: Backend
    nodes: Nodes
    node_count: int
    kubernetes: str
    index: int
    boot: str
    ready: bool = False
    runs: str = ""
    """The version that runs, where it is not the one that was asked for."""

    @property
    def spec(self) -> ClusterSpec:
        """What was asked for."""
        return ClusterSpec(self.name, self.nodes, self.node_count)

    @property
    def this_boot(self) -> bool:
        """Whether the machine has not been started anew since."""
        return self.boot == boot_id()

    @classmethod
    def new(cls, settings: Settings, spec: ClusterSpec, backend: Backend, index: int) -> Record:
        """A cluster that is about to be started."""
        return cls(
            name=spec.name,
            backend=backend,
            nodes=spec.nodes,
            node_count=spec.node_count,
            kubernetes=str(settings.kubernetes),
            index=index,
            boot=boot_id(),
        )

    @property
    def asked(self) -> KubernetesVersion:
        """The version that was asked for."""
        return KubernetesVersion.parse(self.kubernetes)

    def require_same(self, settings: Settings, spec: ClusterSpec) -> None:
        """Refuse a request for another cluster under the name of one that is up.

        :raises InvalidRequest: node kind, count or version differ.
        """
        if self.spec != spec or self.kubernetes != str(settings.kubernetes):
            raise InvalidRequest(
                f"{self.name} is up with {self.node_count} {self.nodes} node(s) of "
                f"{self.kubernetes}, and {spec.node_count} {spec.nodes} of "
                f"{settings.kubernetes} are asked for",
                where=str(settings.folder(self.name)),
                next_step=f"`down {self.name}` first, or take another --prefix",
            )

    def write(self, settings: Settings) -> None:
        """Remember it, in place of what was remembered under its name."""
        folder = settings.folder(self.name)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / _CLUSTER, asdict(self))


def read_all(settings: Settings) -> dict[str, Record]:
    """All clusters of the set that were started and not taken down, by name."""
    found = {}
    for path in sorted(settings.state.glob(f"*/{_CLUSTER}")):
        fields = json.loads(path.read_text())
        fields["backend"], fields["nodes"] = Backend(fields["backend"]), Nodes(fields["nodes"])
        found[path.parent.name] = Record(**fields)
    return found


def read_slot(settings: Settings) -> IPv4Network | None:
    """The addresses of the set, if it has any."""
    path = settings.state / _SET
    return IPv4Network(json.loads(path.read_text())["slot"]) if path.exists() else None


def slots(settings: Settings) -> list[IPv4Network]:
    """The addresses of all sets that are kept beside this one."""
    found = settings.state_root.glob(f"*/{_SET}")
    return [IPv4Network(json.loads(path.read_text())["slot"]) for path in found]


def write_slot(settings: Settings, slot: IPv4Network) -> None:
    """Remember the addresses of the set."""
    settings.state.mkdir(parents=True, exist_ok=True)
    _write(settings.state / _SET, {"slot": str(slot)})


def forget(settings: Settings, name: str) -> None:
    """Remove a cluster's folder, its record last: an interrupted removal can be found again."""
    folder = settings.folder(name)
    for path in folder.iterdir():
        if path.name == _CLUSTER:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.rmtree(folder)


def forget_set(settings: Settings) -> None:
    """Forget a set that has no cluster left."""
    (settings.state / _SET).unlink(missing_ok=True)
    settings.state.rmdir()


def _write(path: Path, content: dict[str, object]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
