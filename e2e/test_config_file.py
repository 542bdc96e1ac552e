"""`bridge run`: two nodes in one process, with health endpoints, metrics and logs for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workload_manifests import busybox


@dataclass
class Run(Bridge):
    """One `bridge run`."""

    config: Path = Path()

    @property
    def command(self) -> list[str | Path]:
        """The command line."""
        return [*self.through, *self.program, "run", "--config", self.config]

    def lines(self) -> list[Json]:
        """The log, in which each line is a JSON object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def several(
    clusters: dict[str, Cluster], limited: Limited, node_name: str, tmp_path: Path
) -> Iterator[Bridged]:
    """A process joins one remote as two nodes; a third join lacks its kubeconfig."""
    home, remote = clusters["home"], clusters["remote"]
    (machine,) = remote.node_names
    config = {
        "log-format": "json",
        "defaults": {"home-name": "e2e", "kubeconfig": str(limited.remote.kubeconfig)},
        "remotes": [
            {
                "name": node_name,
                "port": 0,
                "node-selector": {"kubernetes.io/hostname": machine},
            },
            {"name": f"{node_name}-b", "port": 0, "cpu": 1},
            {"name": f"{node_name}-c", "port": 0, "kubeconfig": "missing.yaml"},
        ],
    }
    file = tmp_path / "bridge.yaml"
    file.write_text(yaml.safe_dump(config))
    near = limited.at_home(node_name, f"{node_name}-b", f"{node_name}-c")
    run = Run(near, limited.remote, tmp_path / "bridge.log", config=file)
    try:
        with joined(run, node_name, home=home, remote=remote) as found:
            yield found
    finally:
        print(run.log.read_text())


def _proxied(bridged: Bridged, node: str, path: str) -> str:
    found = bridged.home.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy{path}", check=False)
    return found.stdout


def test_one_process_serves_two_independent_nodes(several: Bridged) -> None:
    first, second = several.node, f"{several.node}-b"
    run = several.bridge
    assert isinstance(run, Run)
    for node in (first, second):
        for state in ("create", "condition=Ready"):  # they are created in sequence
            several.home.kubectl("wait", f"--for={state}", f"node/{node}", "--timeout=60s")
        several.apply(busybox(node, f"on-{node}", f"echo {node} speaks; sleep 3600"))
    for node in (first, second):
        pod = f"on-{node}"
        several.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=60s")
        assert several.kubectl("logs", pod) == f"{node} speaks\n"
    ports = {
        get_one(several.home, "node", node)["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        for node in (first, second)
    }
    assert len(ports) == 2

    # The endpoints at each node's port.
    for node in (first, second):
        ready = _proxied(several, node, "/readyz?verbose")
        assert ready.splitlines()[1:] == [
            *(f"[+]{check} ok" for check in ("caches", "home", "remote")),
            "readyz check passed",
        ]
        own = _proxied(several, node, "/metrics")
        assert f'bridge_leader{{node="{node}"}} 1.0' in own
        assert "bridge_pod_start_duration_seconds_count 1.0" in own
        assert "bridge_pod_status_lag_seconds_count 0.0" not in own
    missing = [it for it in run.lines() if "missing.yaml: no such file" in it["msg"]]
    assert {(it["node"], it["level"]) for it in missing} == {(f"{first}-c", "error")}
    created = [it for it in run.lines() if "created in the remote" in it["msg"]]
    assert {(it["node"], it["name"], it["namespace"], it["kind"]) for it in created} == {
        (node, f"on-{node}", several.namespace, "Pod") for node in (first, second)
    }

    # One node leaves; the other is unaffected.
    several.kubectl("delete", "pod", f"on-{second}", "--grace-period=1")
    left = bridge_process.run(
        *("leave", "--name", second, "--yes", "--force"),
        *("--kubeconfig", run.remote.kubeconfig),
        home=run.home,
    )
    assert left.returncode == 0, left.stderr
    wait_for(
        lambda: any("has left" in it["msg"] and it["node"] == second for it in run.lines()),
        "the join of the node that left has ended",
    )
    nodes = {it["metadata"]["name"] for it in get(several.home, "nodes")}
    assert first in nodes
    assert second not in nodes
    (stays,) = several.remote_pods()
    assert is_ready(stays)
    assert _proxied(several, first, "/livez") == "ok"
    assert run.stop() == 0
    assert run.lines()[-1]["msg"] == "stopped; workloads in the remote keep running"
