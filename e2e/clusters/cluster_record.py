"""Records of a set of clusters, kept between two runs of the command line.

Each cluster has a file, written before any part of it starts, so that the remains of an interrupted
run can be found and removed; `ready` is true after a complete start. Each set has a file with its
addresses.
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
    """The record of one cluster."""

    name: str
    backend: Backend
    nodes: Nodes
    node_count: int
    kubernetes: str
    index: int
    boot: str
    ready: bool = False
    runs: str = ""
    """The running version, if it is not the requested one."""
    dns: bool = True

    @property
    def spec(self) -> ClusterSpec:
        """The specification of the cluster."""
        return ClusterSpec(self.name, self.nodes, self.node_count, self.dns)

    @property
    def this_boot(self) -> bool:
        """Whether the machine has not been rebooted since."""
        return self.boot == boot_id()

    @classmethod
    def new(cls, settings: Settings, spec: ClusterSpec, backend: Backend, index: int) -> Record:
        """The record of a cluster that is about to be started."""
        return cls(
            name=spec.name,
            backend=backend,
            nodes=spec.nodes,
            node_count=spec.node_count,
            dns=spec.dns,
            kubernetes=str(settings.kubernetes),
            index=index,
            boot=boot_id(),
        )

    @property
    def requested_version(self) -> KubernetesVersion:
        """The requested version."""
        return KubernetesVersion.parse(self.kubernetes)

    def require_same(self, settings: Settings, spec: ClusterSpec) -> None:
        """Rejects another specification for the name of a running cluster.

        :raises InvalidRequest: node kind, count or version differ.
        """
        if self.spec != spec or self.kubernetes != str(settings.kubernetes):
            raise InvalidRequest(
                f"{self.name} is up with {self.node_count} {self.nodes} node(s) of "
                f"{self.kubernetes}, and {spec.node_count} {spec.nodes} of "
                f"{settings.kubernetes} are requested",
                where=str(settings.folder(self.name)),
                next_step=f"`down {self.name}` first, or take another --prefix",
            )

    def write(self, settings: Settings) -> None:
        """Writes the record in place of the previous one."""
        folder = settings.folder(self.name)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / _CLUSTER, asdict(self))


def read_all(settings: Settings) -> dict[str, Record]:
    """The records of all clusters of the set, by name."""
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
    """The addresses of all sets in this state folder."""
    found = settings.state_root.glob(f"*/{_SET}")
    return [IPv4Network(json.loads(path.read_text())["slot"]) for path in found]


def write_slot(settings: Settings, slot: IPv4Network) -> None:
    """Records the addresses of the set."""
    settings.state.mkdir(parents=True, exist_ok=True)
    _write(settings.state / _SET, {"slot": str(slot)})


def forget(settings: Settings, name: str) -> None:
    """Removes a cluster's folder, its record last: an interrupted removal can be repeated."""
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
    """Removes the record of a set without clusters."""
    (settings.state / _SET).unlink(missing_ok=True)
    settings.state.rmdir()


def _write(path: Path, content: dict[str, object]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
