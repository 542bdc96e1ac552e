"""The handle of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.clusters.cluster import API_SERVER
from tests.clusters.cluster_handle import cluster_handle


@dataclass
class _Components:
    """The control of a cluster with real nodes; it records the calls."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    def components(self) -> dict[str, bool]:
        return dict.fromkeys(("etcd", "kubelet", API_SERVER, "kube-scheduler"), True)

    def stop(self, component: str, *, grace: float) -> None:
        self.calls.append(("stop", component))

    def start(self, component: str) -> None:
        self.calls.append(("start", component))

    def suspend(self, component: str, *, suspended: bool) -> None:
        self.calls.append(("suspend" if suspended else "resume", component))


@pytest.mark.parametrize("hangs", [False, True], ids=["stopped", "suspended"])
def test_clients_are_restarted_once_after_an_outage_of_the_api_server(
    tmp_path: Path, hangs: bool
) -> None:
    """They would retry only after ever longer pauses."""
    control = _Components()
    cluster = cluster_handle(tmp_path, control=control)
    if hangs:
        cluster.suspend_component(API_SERVER)
        cluster.resume_component(API_SERVER)
    else:
        cluster.stop_component(API_SERVER)
        cluster.start_component(API_SERVER)
    control.calls.clear()

    cluster.restart_api_clients()
    cluster.restart_api_clients()

    clients = ("kube-scheduler", "kubelet")
    assert control.calls == [(verb, name) for name in clients for verb in ("stop", "start")]


def test_clients_run_on_while_the_api_server_does(tmp_path: Path) -> None:
    control = _Components()
    cluster = cluster_handle(tmp_path, control=control)
    cluster.stop_component("kubelet")
    cluster.start_component("kubelet")
    control.calls.clear()

    cluster.restart_api_clients()

    assert not control.calls
