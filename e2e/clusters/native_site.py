"""Names, addresses, folders and processes of one native cluster.

Every part of a native cluster receives its `Site`. It is derived from settings and address plan
alone, so every run of the command line computes the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.addresses import Plan
from e2e.clusters.certificates import Pair
from e2e.clusters.cgroups import Cgroups
from e2e.clusters.cluster import ClusterSpec, Settings
from e2e.clusters.native_network import Network
from e2e.clusters.processes import POLL, Supervisor
from e2e.clusters.startup_client import StartupClient


@dataclass(frozen=True, slots=True)
class Site:
    """One native cluster."""

    settings: Settings
    spec: ClusterSpec
    plan: Plan

    @property
    def folder(self) -> Path:
        """The cluster's own folder."""
        return self.settings.folder(self.spec.name)

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.folder / "pki"

    @property
    def network(self) -> Network:
        """The cluster's network namespace."""
        return Network(self.settings.prefix, self.spec.name, self.plan)

    @property
    def cgroups(self) -> Cgroups:
        """The cluster's cgroups."""
        return Cgroups.named(f"cluster-bridge-{self.settings.prefix}-{self.spec.name}")

    @property
    def supervisor(self) -> Supervisor:
        """The cluster's processes."""
        return Supervisor(
            self.folder / "processes", self.folder / "logs", self.cgroups.join, self.network.path
        )

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.plan.node.ip}:6443"

    @property
    def api(self) -> StartupClient:
        """A client with all permissions."""
        return StartupClient(str(self.plan.node.ip), self.pki / "ca.crt", self.pair("admin"))

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the cluster's nodes."""
        return tuple(f"{self.spec.name}-node-{n}" for n in range(self.spec.node_count))

    def pair(self, name: str) -> Pair:
        """A certificate of the cluster."""
        return Pair(self.pki / f"{name}.crt", self.pki / f"{name}.key")

    def kubeconfig(self, component: str) -> Path:
        """The path of a component's kubeconfig."""
        return self.folder / f"{component}.kubeconfig"

    def wait(
        self, what: str, condition: Callable[[], bool], components: Iterable[str], timeout: float
    ) -> None:
        """Waits for a condition that these components bring about.

        :raises StartFailed: a component ended, or the time is up; with the end of the log of the
            ended component, or of the first.
        """
        names = list(components)
        deadline = time.monotonic() + timeout
        while True:
            started = time.monotonic()
            if condition():
                return
            cost = time.monotonic() - started
            for name in names:
                if not self.supervisor.running(name):
                    raise self.supervisor.failure(
                        name, f"{self.spec.name}: {name} ended before {what}"
                    )
            if time.monotonic() > deadline:
                raise self.supervisor.failure(
                    names[0], f"{self.spec.name}: no {what} within {timeout:g} s"
                )
            # Conditions that cost the server much (a list of many nodes) are checked less often.
            time.sleep(max(POLL, 3 * cost))
