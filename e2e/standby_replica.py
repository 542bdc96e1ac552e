"""A second bridge of a virtual node: with its own user name, so that audit logs identify the writer
of each change, and behind a proxy that can be cut."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
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


class CuttableProxy:
    """Forwards TCP connections to one address. While cut, connections stay open and are silent."""

    def __init__(self, server: str) -> None:
        url = urlsplit(server)
        self._target = (url.hostname or "", url.port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.server = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Forwards nothing until `heal`."""
        self._open.clear()

    def heal(self) -> None:
        """Forwards again."""
        self._open.set()

    def close(self) -> None:
        """Stops the proxy."""
        self._ended = True
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended:
            with suppress(OSError):
                near, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        self._open.wait()
        with suppress(OSError), near, socket.create_connection(self._target) as far:
            while not self._ended:
                ready, _, _ = select.select([near, far], [], [], 0.2)
                self._open.wait()
                for one in ready:
                    data = one.recv(65536)
                    if not data:
                        return
                    (far if one is near else near).sendall(data)


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
    home_proxy: CuttableProxy

    def stand_by(self) -> None:
        """Joins, and waits until the bridge is the standby replica."""
        self.bridge.start(until="standing by")


@contextmanager
def standby_bridge(bridged: Bridged, folder: Path) -> Iterator[StandbyBridge]:
    """A bridge that has not joined yet. It reaches home through a proxy."""
    name = f"second-{bridged.namespace}"
    relay = CuttableProxy(bridged.home.server)
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
