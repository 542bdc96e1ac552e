"""kind's configuration and node image, and requests to runtimes without capabilities."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.clusters import (
    Settings,
    go_recipes,
    kind,
    kind_config,
    kind_routes,
    node_image,
    node_image_prune,
    oci_runtime,
)
from e2e.clusters.addresses import Plan
from e2e.clusters.cgroups import Hierarchy
from e2e.clusters.cluster import SNAPSHOT_CONTROLLER, CsiPart, Progress, Provisioner, silent
from e2e.clusters.cluster_record import slots, write_slot
from e2e.clusters.docker_engine import Engine, Hop
from e2e.clusters.errors import CommandFailed, InvalidRequest
from e2e.clusters.kind_control import KindControl, worker_name
from e2e.clusters.node_image import NodeImage
from e2e.clusters.versions import KubernetesVersion

V34, V36 = KubernetesVersion(1, 34, 4), KubernetesVersion(1, 36, 3)
PLAN = Plan(IPv4Network("10.209.0.0/16"), 1)


def config(
    version: KubernetesVersion = V34, *, audit: Path | None = None, cgroup_v1: bool = True
) -> dict[str, Any]:
    return kind_config.cluster_config(PLAN, version, audit=audit, cgroup_v1=cgroup_v1)


def patch(of: dict[str, Any], wanted: str) -> dict[str, Any]:
    documents = [yaml.safe_load(text) for text in of["kubeadmConfigPatches"]]
    [found] = [document for document in documents if document["kind"] == wanted]
    assert isinstance(found, dict)
    return found


def test_each_cluster_of_a_set_has_addresses_of_its_own() -> None:
    assert config()["networking"] == {
        "podSubnet": "10.209.32.0/20",
        "serviceSubnet": "10.209.144.0/20",
    }


def test_nodes_beyond_the_first_are_workers() -> None:
    made = kind_config.cluster_config(PLAN, V34, audit=Path("/a"), cgroup_v1=True, node_count=3)
    control_plane, *workers = made["nodes"]
    assert control_plane["role"] == "control-plane"
    assert "extraMounts" in control_plane
    assert workers == [{"role": "worker"}] * 2
    assert [worker_name("cb-home", n) for n in (1, 2, 3)] == [
        "cb-home-worker",
        "cb-home-worker2",
        "cb-home-worker3",
    ]


def test_policies_that_change_objects_are_turned_on_where_they_are_not_by_themselves() -> None:
    assert config(V34)["featureGates"] == {"MutatingAdmissionPolicy": True}
    assert "featureGates" not in config(V36)
    assert "runtimeConfig" not in config(V36)


def test_kubelet_that_would_reject_cgroup_v1_is_configured_to_accept_it() -> None:
    failure = "failCgroupV1"
    assert failure not in patch(config(V34), "KubeletConfiguration")
    assert patch(config(V36), "KubeletConfiguration")[failure] is False
    assert failure not in patch(config(V36, cgroup_v1=False), "KubeletConfiguration")


def test_requested_audit_log_is_on_this_host() -> None:
    assert "extraMounts" not in config()["nodes"][0]
    assert "apiServer" not in patch(config(), "ClusterConfiguration")
    with_log = config(audit=Path("/state/home/audit"))
    mounts = {it["containerPath"]: it["hostPath"] for it in with_log["nodes"][0]["extraMounts"]}
    server = patch(with_log, "ClusterConfiguration")["apiServer"]
    volumes = {it["hostPath"] for it in server["extraVolumes"]}
    assert volumes == set(mounts)
    folder = server["extraArgs"]["audit-log-path"].rpartition("/")[0]
    assert mounts[folder] == "/state/home/audit"
    assert mounts[server["extraArgs"]["audit-policy-file"]] == "/state/home/audit/audit-policy.yaml"


def test_a_kubeconfig_of_kind_is_renamed_and_names_the_node() -> None:
    written = (
        "clusters: [{name: kind-cb-home, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "users: [{name: kind-cb-home, user: {token: t}}]\n"
        "contexts: [{name: kind-cb-home, context: {cluster: kind-cb-home, user: kind-cb-home}}]\n"
        "current-context: kind-cb-home\n"
    )
    renamed = kind_config.named_after(written, "home", "https://10.209.1.2:6443")
    assert "kind-cb-home" not in renamed
    assert "127.0.0.1" not in renamed
    read = yaml.safe_load(renamed)
    assert read["current-context"] == "home"
    assert read["clusters"] == [{"name": "home", "cluster": {"server": "https://10.209.1.2:6443"}}]
    with pytest.raises(InvalidRequest, match="one context"):
        kind_config.named_after("{}", "home", "s")


def test_sets_side_by_side_know_each_others_addresses() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first = Settings(prefix="a", state_root=Path(folder))
        write_slot(first, IPv4Network("10.210.0.0/16"))
        assert slots(replace(first, prefix="b")) == [IPv4Network("10.210.0.0/16")]


# -- the node image ----------------------------------------------------------------------


@dataclass(frozen=True)
class FakeEngine(Engine):
    """An engine that has some images, and can pull some."""

    has: frozenset[str] = frozenset()
    can_pull: frozenset[str] = frozenset()
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def docker(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = tuple(map(str, argv))
        self.calls.append(words)
        known = self.can_pull if words[0] == "pull" else self.has
        return subprocess.CompletedProcess(words, 0 if words[-1] in known else 1, "", "")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of images that were put together."""
    names: list[str] = []

    def make(engine: Engine, settings: Settings, name: str, say: Progress) -> None:
        names.append(name)

    monkeypatch.setattr(node_image, "build_image", make)
    return names


def chosen(engine: Engine, tmp_path: Path, wanted: str = "auto") -> NodeImage:
    settings = Settings(prefix="t", kubernetes=V34, cache=tmp_path, node_image=wanted)
    return node_image.choose(engine, settings, silent)


STOCK = node_image.stock_name(V34)
LOCAL = node_image.local_name(V34)


def test_a_local_image_is_known_by_all_versions_in_it() -> None:
    assert LOCAL.startswith("cluster-bridge/node:v1.34.4-")
    assert node_image.local_name(V36) != LOCAL


@pytest.mark.parametrize(
    ("has", "can_pull", "name"),
    [
        ({STOCK}, set(), STOCK),
        (set(), {STOCK}, STOCK),
        ({LOCAL}, {STOCK}, LOCAL),
        (set(), set(), LOCAL),
    ],
)
def test_the_published_image_is_taken_where_it_can_be_had(
    tmp_path: Path,
    made: list[str],
    has: set[str],
    can_pull: set[str],
    name: str,
) -> None:
    found = chosen(FakeEngine("", frozenset(has), frozenset(can_pull)), tmp_path)
    version = "v1.34.4" if name == LOCAL else V34.kind_node
    assert (found.name, str(found.kubernetes), found.local) == (name, version, name == LOCAL)
    assert made == ([] if {name} & (has | can_pull) else [name])


def test_private_engine_does_not_pull(tmp_path: Path, made: list[str]) -> None:
    engine = FakeEngine("unix:///x", can_pull=frozenset({STOCK}))
    assert chosen(engine, tmp_path).name == LOCAL
    assert not [words for words in engine.calls if words[0] == "pull"]


def test_an_image_that_is_named_is_taken(tmp_path: Path, made: list[str]) -> None:
    assert chosen(FakeEngine(""), tmp_path, "stock").name == STOCK
    assert chosen(FakeEngine("", frozenset({STOCK})), tmp_path, "local").name == LOCAL
    assert chosen(FakeEngine(""), tmp_path, "mine:1") == NodeImage("mine:1", V34)
    assert made == [LOCAL]


# -- how long one is kept ----------------------------------------------------------------


@dataclass(frozen=True)
class Images(Engine):
    """An engine with images: name → (made, named last); some cannot be removed."""

    made: dict[str, tuple[str, str]] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()
    removed: list[str] = field(default_factory=list)

    def docker(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = tuple(map(str, argv))
        output, code = "", 0
        if words[1] == "ls":
            output = "\n".join(self.made)
        elif words[1] == "inspect":
            output = json.dumps([self._described(name) for name in words[2:]])
        elif words[1] == "rm":
            code = 1 if words[2] in self.busy else 0
            self.removed.extend(words[2:] if code == 0 else [])
        return subprocess.CompletedProcess(words, code, output, "")

    def _described(self, name: str) -> dict[str, Any]:
        created, tagged = self.made[name]
        metadata = {"LastTagTime": tagged}
        return {"RepoTags": [name, "other:1"], "Created": created, "Metadata": metadata}


def images(count: int) -> dict[str, tuple[str, str]]:
    """The first one was made first, and named again later than any other but the last."""
    days = {f"repo:{n}": f"2026-01-{n + 1:02}T10:00:00.123456789Z" for n in range(count)}
    named = {name: (day, day) for name, day in days.items()}
    return named | {"repo:0": (days["repo:0"], f"2026-01-{count:02}T09:00:00Z")}


def test_the_images_that_were_used_last_are_kept() -> None:
    engine = Images("", made=images(node_image_prune.KEPT + 2))
    output: list[str] = []
    node_image_prune.prune(engine, "repo", output.append)
    assert sorted(engine.removed) == ["repo:1", "repo:2"]
    assert [line.partition(":")[0] for line in output] == ["removed repo"] * 2


def test_an_image_that_a_container_is_made_of_stays() -> None:
    engine = Images("", made=images(node_image_prune.KEPT + 2), busy=frozenset({"repo:1"}))
    node_image_prune.prune(engine, "repo", silent)
    assert engine.removed == ["repo:2"]


def test_nothing_is_removed_below_the_bound() -> None:
    for count in (0, node_image_prune.KEPT):
        engine = Images("", made=images(count) if count else {})
        node_image_prune.prune(engine, "repo", silent)
        assert engine.removed == []


def test_what_a_killed_run_had_put_together_goes(tmp_path: Path) -> None:
    (tmp_path / f"{node_image_prune.PARTIAL}x/root").mkdir(parents=True)
    (tmp_path / ".node-image.lock").touch()
    node_image_prune.remove_partial(tmp_path)
    assert [it.name for it in tmp_path.iterdir()] == [".node-image.lock"]


def test_kubeadms_dns_server_knows_what_kubeadm_writes() -> None:
    ((_, source),) = go_recipes.kubeadm_coredns().sources
    for plugin in ("forward", "health", "metrics", "ready", "reload"):
        assert f'"github.com/coredns/coredns/plugin/{plugin}"' in source
    assert go_recipes.kubeadm_coredns().folder != go_recipes.coredns().folder


# -- a runtime that asks for less --------------------------------------------------------


def test_process_requests_only_available_capabilities() -> None:
    process = {
        "capabilities": {
            "bounding": ["CAP_NET_ADMIN", "CAP_SYS_RESOURCE"],
            "effective": ["CAP_SYS_RESOURCE"],
            "ambient": [],
        },
        "oomScoreAdj": -999,
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1 << 20, "soft": 1 << 20}],
        "args": ["/sbin/init"],
    }
    oci_runtime.adapt(process, lowest=-100)
    assert process == {
        "capabilities": {"bounding": ["CAP_NET_ADMIN"], "effective": [], "ambient": []},
        "oomScoreAdj": -100,
        "args": ["/sbin/init"],
    }


def test_a_process_that_asks_for_nothing_stays_as_it_is() -> None:
    process: dict[str, Any] = {"args": ["true"], "oomScoreAdj": 500}
    oci_runtime.adapt(process, lowest=0)
    assert process == {"args": ["true"], "oomScoreAdj": 500}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--root /r --log /l create --bundle /b --pid-file /p id", (Path("/b/config.json"), True)),
        ("run -b /b id", (Path("/b/config.json"), True)),
        ("--root /r exec --process /tmp/p1 --detach id", (Path("/tmp/p1"), False)),
        ("exec --process=/tmp/p1 id", (Path("/tmp/p1"), False)),
        ("exec id sh", None),
        ("--root /r delete --force id", None),
        ("state id", None),
    ],
)
def test_the_file_is_found_that_runc_will_read(line: str, found: tuple[Path, bool] | None) -> None:
    assert oci_runtime.described(line.split()) == found


# -- this machine's ways to pods ---------------------------------------------------------

WAYS = {"10.209.32.0/24": "10.210.1.3", "10.209.33.0/24": "10.210.1.4"}
HOP = Hop("engine", IPv4Address("10.210.0.2"))


@pytest.fixture
def ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `ip` that writes down how it was called and what with, in place of the machine's."""
    written = tmp_path / "written"
    written.touch()
    program = tmp_path / "ip"
    program.write_text(
        f'#!/bin/sh\necho ip "$@" >>{written}\n'
        f'while read -r line; do echo "  $line" >>{written}; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return program


def written(ip: Path) -> list[str]:
    return ip.with_name("written").read_text().splitlines()


def test_pods_of_a_private_engine_are_reached_through_its_namespace(ip: Path) -> None:
    kind_routes.add(WAYS, HOP, "home", silent)
    assert written(ip) == [
        "ip -netns engine -batch -",
        "  route replace 10.209.32.0/24 via 10.210.1.3",
        "  route replace 10.209.33.0/24 via 10.210.1.4",
        "ip -batch -",
        "  route replace 10.209.32.0/24 via 10.210.0.2",
        "  route replace 10.209.33.0/24 via 10.210.0.2",
    ]


def test_pods_of_another_engine_are_reached_through_their_nodes(ip: Path) -> None:
    kind_routes.add(WAYS, None, "home", silent)
    assert written(ip) == ["ip -batch -", *(f"  route replace {it} via {WAYS[it]}" for it in WAYS)]


def test_ways_to_all_of_a_clusters_pods_are_taken_away(ip: Path) -> None:
    kind_routes.remove(PLAN.pods, HOP)
    assert written(ip) == [
        "ip route flush root 10.209.32.0/20",
        "ip -netns engine route flush root 10.209.32.0/20",
    ]
    kind_routes.remove(PLAN.pods, None)
    assert written(ip)[2:] == ["ip route flush root 10.209.32.0/20"]


@pytest.mark.parametrize("there", [True, False])
def test_missing_route_is_reported_with_its_consequence(ip: Path, *, there: bool) -> None:
    if there:
        ip.write_text("#!/bin/sh\necho RTNETLINK answers: Operation not permitted >&2\nexit 2\n")
    else:
        ip.unlink()
    output: list[str] = []
    kind_routes.add(WAYS, None, "home", output.append)
    [line] = output
    assert line.startswith("home: this machine has no route to its pods (ip ")
    assert ("Operation not permitted" in line) == there
    assert "--relay-image" in line
    kind_routes.remove(PLAN.pods, None)


def test_a_private_engine_without_a_way_is_an_error(ip: Path) -> None:
    ip.write_text("#!/bin/sh\nexit 2\n")
    with pytest.raises(CommandFailed, match="ip ended with 2"):
        kind_routes.add(WAYS, HOP, "home", silent)


@dataclass(frozen=True)
class Routed(Engine):
    """Containers with a known gateway; records the commands that run in them."""

    done: list[str] = field(default_factory=list)

    def docker(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = " ".join(map(str, argv[1:]))
        if "show" not in words:
            self.done.append(words)
        return subprocess.CompletedProcess(words, 0, "default via 10.210.1.1 dev eth0\n", "")


def test_nodes_lead_a_range_of_this_machines_through_a_private_engine(
    ip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.clusters.docker_engine.hop", lambda engine: HOP)
    monkeypatch.setattr("e2e.clusters.docker_engine.host_address", lambda engine: "10.210.0.1")
    engine = Routed("unix:///private")
    control = KindControl(Path("kind"), engine, "c", Path(), ("kubectl",))
    control.route("198.18.7.0/24", "10.210.0.1")
    control.route("10.209.32.0/24", "10.210.1.4")
    assert written(ip) == [
        "ip -netns engine -batch -",
        "  route replace 198.18.7.0/24 via 10.210.0.1",
    ]
    assert engine.done == [
        "c-control-plane ip route replace 198.18.7.0/24 via 10.210.1.1",
        "c-control-plane ip route replace 10.209.32.0/24 via 10.210.1.4",
    ]


# -- a cluster that is cut off -----------------------------------------------------------


@dataclass(frozen=True)
class Nodes(Engine):
    """Containers with an address each, and with packet rules as iptables has them."""

    rules: dict[str, list[str]] = field(default_factory=dict)

    def docker(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        _, node, *words = map(str, argv)
        rules = self.rules.setdefault(node, [])
        if words[0] == "hostname":
            return subprocess.CompletedProcess(words, 0, f"ip-of-{node}\n", "")
        _, _, _, table, what, *rule = words
        line = " ".join([table, *rule])
        if what == "-I":
            rules.insert(0, line)
        elif what == "-D":
            rules.remove(line)
        return subprocess.CompletedProcess(words, 0 if what != "-C" or line in rules else 1, "", "")


def cut_off(node_count: int) -> tuple[KindControl, Nodes]:
    engine = Nodes("")
    control = KindControl(Path("kind"), engine, "c", Path(), ("kubectl",), node_count)
    for _ in range(2):  # once is enough
        control.connect(connected=False)
    return control, engine


def test_a_cluster_that_is_cut_off_loses_all_packets_but_those_between_its_nodes() -> None:
    control, engine = cut_off(2)
    assert engine.rules["c-worker"] == [
        "mangle POSTROUTING -o eth0 -d ip-of-c-control-plane -j ACCEPT",
        "mangle POSTROUTING -o eth0 -j DROP",
        "raw PREROUTING -i eth0 -s ip-of-c-control-plane -j ACCEPT",
        "raw PREROUTING -i eth0 -j DROP",
    ]
    control.connect(connected=True)
    assert engine.rules == {"c-control-plane": [], "c-worker": []}


def test_a_cluster_of_one_node_that_is_cut_off_loses_all() -> None:
    _, engine = cut_off(1)
    assert engine.rules == {
        "c-control-plane": [
            "mangle POSTROUTING -o eth0 -j DROP",
            "raw PREROUTING -i eth0 -j DROP",
        ]
    }


# -- provisioners ------------------------------------------------------------------------


@dataclass(frozen=True)
class Systemd(Engine):
    """A node with files and systemd."""

    files: dict[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def docker(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in argv]
        found = True
        if words[0] == "cp":
            self.files[words[2].partition(":")[2]] = words[1]
        elif "test" in words:
            found = words[-1] in self.files
        elif "rm" in words:
            del self.files[words[-1]]
        elif "systemctl" in words and "start" in words:
            self.started.append(words[-1])
        elif input is not None:
            self.files[words[-1].removeprefix("cat >")] = input
        return subprocess.CompletedProcess(words, 0 if found else 1, "", "")


@pytest.mark.parametrize("present", [False, True])
def test_provisioner_is_a_service_of_the_node_unless_the_node_image_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, present: bool
) -> None:
    monkeypatch.setattr("e2e.clusters.go_build.programs", lambda *_: tmp_path / "built")
    kubectl, log = tmp_path / "kubectl", tmp_path / "created"
    deployment = "deployment.apps/local-path-provisioner" if present else ""
    there = f"[ $1 = get ] && printf '%s' '{deployment}'"
    kubectl.write_text(f'#!/bin/sh\n{there}\necho "$@" >>{log}\n')
    kubectl.chmod(0o755)
    engine = Systemd("")
    control = KindControl(Path("kind"), engine, "c", tmp_path, (kubectl,), node_count=2)
    for _ in range(2):
        control.provision_volumes(Provisioner.LOCAL_PATH, silent)
    unit = "/etc/systemd/system/local-path-provisioner.service"
    assert (unit in engine.files) is not present
    if not present:
        assert engine.files["/usr/local/bin/local-path-provisioner"].startswith(str(tmp_path))
        assert "--kubeconfig=/etc/kubernetes/admin.conf" in engine.files[unit]
        assert engine.started == ["local-path-provisioner"] * 2
        assert log.read_text().count("configmaps") == 1
    control.provision_volumes(Provisioner.HOSTPATH, silent)
    assert "--node=c-worker" in engine.files[unit.replace("local-path", "hostpath")]
    assert engine.started[-1] == "hostpath-provisioner"


def test_snapshot_controller_is_a_service_of_the_node_until_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.clusters.go_build.programs", lambda *_: tmp_path / "built")
    engine = Systemd("")
    control = KindControl(Path("kind"), engine, "c", tmp_path, ("kubectl",))
    unit = "/etc/systemd/system/snapshot-controller.service"
    control.control_snapshots(silent)
    assert "--kubeconfig=/etc/kubernetes/admin.conf" in engine.files[unit]
    assert engine.started == [SNAPSHOT_CONTROLLER]
    control.remove(SNAPSHOT_CONTROLLER)
    assert unit not in engine.files
    control.remove(SNAPSHOT_CONTROLLER)


def test_csi_driver_and_its_sidecars_are_services_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.clusters.go_build.programs", lambda *_: tmp_path / "built")
    kubectl, log = tmp_path / "kubectl", tmp_path / "created"
    kubectl.write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
    kubectl.chmod(0o755)
    engine = Systemd("")
    control = KindControl(Path("kind"), engine, "c", tmp_path, (kubectl,))
    for part in (*CsiPart, CsiPart.DRIVER):
        control.run_csi(part, silent)
    assert engine.started == [*CsiPart, CsiPart.DRIVER]
    driver = engine.files["/etc/systemd/system/csi-driver.service"]
    assert "--registry=/var/lib/kubelet/plugins_registry" in driver
    socket = "/var/lib/cluster-bridge-csi/csi.sock"
    assert f"--socket={socket}" in driver
    for part in (CsiPart.PROVISIONER, CsiPart.ATTACHER, CsiPart.SNAPSHOTTER):
        assert f"--csi-address={socket}" in engine.files[f"/etc/systemd/system/{part}.service"]
    assert log.read_text().count("csidrivers") == 1


# -- removal -----------------------------------------------------------------------------


def test_what_a_killed_node_left_frozen_is_let_go_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "engine/abc/kubelet/pod", tmp_path / "engine/def"
    for folder in (own, other):
        folder.mkdir(parents=True)
        (folder / "freezer.state").write_text("FROZEN")
    trees = [Hierarchy(tmp_path, unified=False, options=frozenset({"rw", "freezer"}))]
    monkeypatch.setattr(kind, "hierarchies", lambda: trees)
    kind.thaw("abc")
    assert (own / "freezer.state").read_text() == "THAWED"
    assert (other / "freezer.state").read_text() == "FROZEN"
    kind.thaw("")  # one that was gone already
    assert (other / "freezer.state").read_text() == "FROZEN"
