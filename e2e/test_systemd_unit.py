"""The command line of manifests/systemd/bridge@.service with real clusters, without systemd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.bridge_process import BRIDGE, Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined
from e2e.kubectl import get_one, uids
from e2e.workload_manifests import busybox
from tests.bridge.cli.systemd_unit import Instance


@dataclass
class UnitBridge(Bridge):
    """The process of an instance of the unit."""

    instance: Instance = field(kw_only=True)

    @property
    def command(self) -> list[str | Path]:
        _, *arguments = self.instance.command
        return [BRIDGE, *arguments]

    def launch(self) -> int:
        self.instance.prepare()
        return super().launch()


@pytest.fixture
def burst(
    clusters: dict[str, Cluster], limited: Limited, node_name: str, tmp_path: Path
) -> Iterator[Bridged]:
    """A virtual node that an instance of the unit serves."""
    near, far = limited.at_home(node_name), limited.remote
    instance = Instance(tmp_path / "machine", "burst")
    options = {
        "name": node_name,
        "home-name": "e2e",
        "port": 0,
        "network": "flat",
        "labels": {"team": "orders", "example.com/is-burst": True},
        "unschedulable-timeout": "15m",
    }
    instance.write_files(options, home=near.kubeconfig, remote=far.kubeconfig)
    bridge = UnitBridge(
        near, far, tmp_path / "bridge.log", env=instance.environment, instance=instance
    )
    try:
        with joined(bridge, node_name, home=clusters["home"], remote=clusters["remote"]) as bridged:
            yield bridged
    finally:
        print(bridge.log.read_text())


@pytest.mark.core
def test_unit_serves_a_node_by_its_file_and_adopts_its_pods_after_a_crash(burst: Bridged) -> None:
    """The second process uses the node's certificate of the first, from the state directory."""
    bridge = burst.bridge
    assert isinstance(bridge, UnitBridge)
    labels = get_one(burst.home, "node", burst.node)["metadata"]["labels"]
    assert labels["team"] == "orders"
    assert labels["example.com/is-burst"] == "true"
    burst.apply(busybox(burst.node, "runs", "sleep 3600"))
    burst.kubectl("wait", "--for=condition=Ready", "pod/runs", "--timeout=60s")
    running, certificates = uids(burst.remote_pods()), _files(bridge.instance.state)
    assert certificates

    bridge.kill()
    bridge.start()
    assert uids(burst.remote_pods()) == running
    assert burst.kubectl("exec", "runs", "--", "echo", "hello").strip() == "hello"
    assert _files(bridge.instance.state) == certificates


def _files(folder: Path) -> dict[Path, bytes]:
    """The content of all files below the folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
