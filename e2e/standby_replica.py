"""A second bridge of a virtual node: with its own user name, so that audit logs identify the writer
of each change, and behind a proxy that can be cut."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.faulty_server import FaultyServer
from e2e.kubectl import Json
from translators.timestamps import parse_time

#: Verbs of changes.
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
#: Resources of reviews, which use POST but change nothing, and of the bridge's own Leases.
_ASIDE = frozenset({"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "leases"})


@contextmanager
def administrator(cluster: Cluster, name: str, folder: Path, server: str = "") -> Iterator[Cluster]:
    """A handle of the cluster for a new ServiceAccount with all permissions."""
    namespace = "default"
    binding = f"{namespace}-{name}"
    cluster.kubectl("create", "serviceaccount", "-n", namespace, name)
    try:
        subject = f"--serviceaccount={namespace}:{name}"
        admin = ("--clusterrole=cluster-admin", subject)
        cluster.kubectl("create", "clusterrolebinding", binding, *admin)
        token = cluster.kubectl("create", "token", "-n", namespace, name, "--duration=2h").stdout
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token.strip()}
        if server:
            config["clusters"][0]["cluster"]["server"] = server
        path = folder / f"{cluster.name}-{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        yield replace(cluster, kubeconfig=path)
    finally:
        cluster.kubectl("delete", "clusterrolebinding", binding, "--ignore-not-found")
        cluster.kubectl("delete", "serviceaccount", "-n", namespace, name, "--ignore-not-found")


@dataclass(frozen=True, slots=True)
class Write:
    """An answered request for a change."""

    at: float
    """Time of its receipt by the server (`time.time`)."""
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    user: str


def writes(cluster: Cluster, *, since: float, namespace: str = "") -> list[Write]:
    """Changes that bridges have requested since then, Leases aside; ``namespace`` selects one
    namespace."""
    assert cluster.audit_log is not None
    found = []
    with cluster.audit_log.open("rb") as log:
        for line in log:
            if b'"userAgent":"cluster-bridge"' in line and line.endswith(b"\n"):
                one = _write(json.loads(line))
                wanted = not namespace or one.namespace == namespace
                is_write = one.verb in _WRITES and one.resource not in _ASIDE
                if one.at >= since and wanted and is_write:
                    found.append(one)
    return found


def _write(event: Json) -> Write:
    ref = event.get("objectRef") or {}
    sub = f"/{ref['subresource']}" if ref.get("subresource") else ""
    return Write(
        at=parse_time(event["requestReceivedTimestamp"]).timestamp(),
        verb=event["verb"],
        resource=f"{ref.get('resource', '')}{sub}",
        namespace=ref.get("namespace", ""),
        name=ref.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        # A request that is rejected before authentication has no user.
        user=(event.get("user") or {}).get("username", ""),
    )


@dataclass(frozen=True, slots=True)
class StandbyBridge:
    """A second bridge of a node; ``user`` is its user name in both clusters."""

    bridge: Bridge
    user: str
    home_proxy: FaultyServer

    def stand_by(self) -> None:
        """Joins, and waits until the bridge is the standby replica."""
        self.bridge.start(until="standing by")


@contextmanager
def standby_bridge(bridged: Bridged, folder: Path) -> Iterator[StandbyBridge]:
    """A bridge that has not joined yet. It reaches home through a proxy."""
    name = f"second-{bridged.namespace}"
    relay = FaultyServer(bridged.home.server)
    with (
        administrator(bridged.home, name, folder, relay.server) as home,
        administrator(bridged.remote, name, folder) as remote,
    ):
        # Home's API server must reach it; the proxy's address is on loopback.
        args = (*bridged.bridge.args, "--address", bridged.home.host_address)
        bridge = Bridge(home, remote, folder / "second.log", args)
        try:
            yield StandbyBridge(bridge, f"system:serviceaccount:default:{name}", relay)
        finally:
            relay.heal()
            bridge.kill()
            relay.close()
            print(bridge.log.read_text() if bridge.log.exists() else "")


def now() -> float:
    """The time on the clock of the audit logs."""
    return time.time()
