"""`bridge run`: two nodes in one process, with health endpoints, metrics and logs for each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process
from e2e.bridge_process import REGISTERED, Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined
from e2e.kubectl import Json, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import busybox


@dataclass
class Run(Bridge):
    """One `bridge run`."""

    config: Path = Path()
    defaults: Json = field(default_factory=dict)

    def write(self, *remotes: Json) -> None:
        """Writes the file as an editor does, with these remotes, each at any free port."""
        entries = [{"port": 0, **it} for it in remotes]
        content = {"log-format": "json", "defaults": self.defaults, "remotes": entries}
        new = self.config.with_suffix(".new")
        new.write_text(yaml.safe_dump(content))
        new.rename(self.config)

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
    near = limited.at_home(node_name, f"{node_name}-b", f"{node_name}-c")
    run = Run(
        near,
        limited.remote,
        tmp_path / "bridge.log",
        config=tmp_path / "bridge.yaml",
        defaults={"home-name": "e2e", "kubeconfig": str(limited.remote.kubeconfig)},
    )
    run.write(
        {"name": node_name, "node-selector": {"kubernetes.io/hostname": machine}},
        {"name": f"{node_name}-b", "cpu": 1},
        {"name": f"{node_name}-c", "kubeconfig": "missing.yaml"},
    )
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


def _watches(several: Bridged) -> float:
    """The number of watches that the first node's bridge has opened."""
    lines = _proxied(several, several.node, "/metrics").splitlines()
    counts = [it.rpartition(" ")[2] for it in lines if it.startswith("bridge_watches_total{")]
    assert counts
    return sum(map(float, counts))


def _fleet(several: Bridged) -> dict[str, str]:
    """The states of all remotes."""
    status = json.loads(_proxied(several, several.node, "/bridge/v1/status"))
    return {it["name"]: it["state"] for it in status["bridge"]["fleet"]["remotes"]}


def test_remotes_come_change_and_go_in_the_file(several: Bridged) -> None:
    first, second, third = several.node, f"{several.node}-b", f"{several.node}-c"
    run = several.bridge
    assert isinstance(run, Run)
    (machine,) = several.remote.node_names
    stays = {"name": first, "node-selector": {"kubernetes.io/hostname": machine}}
    for state in ("create", "condition=Ready"):
        several.home.kubectl("wait", f"--for={state}", f"node/{second}", "--timeout=60s")
    several.apply(busybox(first, "stays", "sleep 3600"))
    several.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    several.apply(busybox(second, "restarted", "sleep 3600"))
    several.kubectl("wait", "--for=condition=Ready", "pod/restarted", "--timeout=60s")
    before, watches = uids(several.remote_pods()), _watches(several)

    # One changes, and the one that never joined is removed.
    run.write(stays, {"name": second, "cpu": 1, "labels": {"tier": "gold"}})
    wait_for(
        lambda: "gold" in several.home.kubectl("get", "node", second, "--show-labels").stdout,
        "the node has its new label",
    )
    wait_for(lambda: _fleet(several) == {first: "running", second: "running"}, "both run")

    # The third joins, with an invalid file in between that changes nothing.
    run.config.write_text("remotes:\n- kubeconfig: a\n  prot: 1\n")
    run.wait_for_log("did you mean port? (line 3)")
    assert "bridge_config_valid 0.0" in _proxied(several, first, "/metrics")
    joined_now = {"name": second, "cpu": 1, "labels": {"tier": "gold"}}, {"name": third, "cpu": 1}
    run.write(stays, *joined_now)
    for state in ("create", "condition=Ready"):
        several.home.kubectl("wait", f"--for={state}", f"node/{third}", "--timeout=60s")

    # It is removed from the file: its node stays. Then both leave.
    run.write(stays, joined_now[0])
    run.wait_for_log(f"`bridge leave {third}` removes the node")
    assert third in {it["metadata"]["name"] for it in get(several.home, "nodes")}
    assert uids(several.remote_pods()) == before
    leaving = [{"name": it, "state": "left"} for it in (second, third)]
    run.write(stays, *leaving)
    left = {first: "running", second: "left", third: "left"}
    wait_for(lambda: _fleet(several) == left, "both have left")
    nodes = {it["metadata"]["name"] for it in get(several.home, "nodes")}
    assert not nodes & {second, third}

    # The first has not noticed.
    (pod,) = several.remote_pods()
    assert is_ready(pod)
    assert uids([pod]).items() <= before.items()
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert _watches(several) == watches
    assert "bridge_config_valid 1.0" in _proxied(several, first, "/metrics")
    assert run.stop() == 0


def _states(several: Bridged, node: str) -> dict[str, str]:
    """The states of all remotes in the process that serves the node; {} without an answer."""
    try:
        status = json.loads(_proxied(several, node, "/bridge/v1/status"))
        return {it["name"]: it["state"] for it in status["bridge"]["fleet"]["remotes"]}
    except (ValueError, KeyError):
        return {}


def test_two_replicas_divide_the_remotes_and_one_takes_over(
    several: Bridged, tmp_path: Path
) -> None:
    nodes = several.node, f"{several.node}-b"
    run = several.bridge
    assert isinstance(run, Run)
    (machine,) = several.remote.node_names
    run.write(
        {"name": nodes[0], "node-selector": {"kubernetes.io/hostname": machine}},
        {"name": nodes[1], "cpu": 1},
    )
    for node in nodes:
        for state in ("create", "condition=Ready"):
            several.home.kubectl("wait", f"--for={state}", f"node/{node}", "--timeout=60s")
        several.apply(busybox(node, f"on-{node}", "sleep 3600"))
    several.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    before = uids(several.remote_pods())

    env = {"XDG_STATE_HOME": str(tmp_path / "second")}
    second = Run(run.home, run.remote, tmp_path / "second.log", env=env, config=run.config)
    second.launch()
    try:
        both = {"running", "elsewhere"}
        wait_for(
            lambda: all(set(_states(several, node).values()) == both for node in nodes),
            "each replica serves one of the nodes",
        )
        taken = next(node for node in nodes if REGISTERED in _log_of(second, node))
        second.kill()
        wait_for(
            lambda: set(_states(several, taken).values()) == {"running"},
            "the first replica serves both nodes",
        )
    finally:
        second.kill()
        print(second.log.read_text())
    for node in nodes:
        assert is_ready(get_one(several.home, "node", node))
    several.apply(busybox(taken, "new", "sleep 3600"))
    several.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
    assert before.items() <= uids(several.remote_pods()).items()


def _log_of(run: Run, node: str) -> str:
    """The messages about one node."""
    return "\n".join(it["msg"] for it in run.lines() if it.get("node") == node)
