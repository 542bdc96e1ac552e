"""Fixtures of the end-to-end tests: two real clusters and a bridge between them.

The clusters are started once per run (`e2e.clusters.pytest_fixture`). Each test with the fixture
``bridged`` has its own virtual node and home namespace, and leaves nothing behind in either
cluster. Its bridge has exactly the permissions that `bridge rbac` prints (`e2e.service_accounts`).
At the end of a run, the API servers' audit logs show which of them it used
(`e2e.used_permissions`): a rejected request and an undeclared permission fail the run, and an
unused permission fails `make test-long`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e import bridge_process, certificate_approver, service_accounts, used_permissions
from e2e.bench.pods.audit_log import Requests
from e2e.bridge_process import Bridge, BridgeFailed
from e2e.clusters import Nodes, specs
from e2e.clusters.cluster import Backend, Cluster, Provisioner
from e2e.clusters.errors import CommandFailed
from e2e.clusters.pytest_fixture import clusters, running, settings_from_environment  # noqa: F401  # a fixture
from e2e.helm_chart import helm  # noqa: F401  # a fixture
from e2e.installed_bridge import installing, loaded  # noqa: F401  # fixtures
from e2e.kubectl import Json, create_namespace, get, get_one, uids, wait_for
from e2e.revisions import with_linger
from e2e.volume_snapshots import snapshots  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from e2e.provisioned_storage import ProvisionedStorage

#: Timeout of a test, without its fixtures: the first test may build the clusters' programs for
#: minutes, and each step of that has its own limit.
TEST_SECONDS = 300
#: How long each test of `make test` took, by node ID: `python -m e2e.gate durations`.
DURATIONS = Path(__file__).parent / "gate" / "durations.json"
#: Estimate for a test that the file does not have.
UNKNOWN_SECONDS = 60.0
#: Seconds that unneeded copies and namespaces remain with ``@pytest.mark.short_linger``.
SHORT_LINGER = 2.0
#: Resources that the bridge creates in the remote.
_MANAGED_RESOURCES = "pods,configmaps,secrets,services,endpointslices,leases"

#: Nodes of a simulated remote: each has room for 1,000 pods.
SIMULATED_NODES = 5


def pytest_itemcollected(item: pytest.Item) -> None:
    """Sets the timeout of these tests, and keeps tests that share a fixture of their module in one
    pytest-xdist worker, which sets it up once."""
    if _is_end_to_end(item):
        item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
        if _has_module_fixture(item.path):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests, these and those that run beside them: the longest start first, so that no
    pytest-xdist worker waits for one at the end."""
    recorded: dict[str, float] = json.loads(DURATIONS.read_text())
    seconds: dict[str, float] = {}
    for item in items:
        unit = _unit(item)
        seconds[unit] = seconds.get(unit, 0.0) + recorded.get(_node_id(item), UNKNOWN_SECONDS)
    items.sort(key=lambda item: -seconds[_unit(item)])


def _is_end_to_end(item: pytest.Item) -> bool:
    return Path(__file__).parent in item.path.parents


def _unit(item: pytest.Item) -> str:
    """Returns the name of the work for one worker: a test, or all tests of a file."""
    return item.path.name if _has_module_fixture(item.path) else _node_id(item)


def _node_id(item: pytest.Item) -> str:
    """Without the name of the group, which pytest-xdist appends."""
    return item.nodeid.removesuffix(f"@{item.path.name}")


@cache
def _has_module_fixture(path: Path) -> bool:
    return 'pytest.fixture(scope="module")' in path.read_text()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the state of both clusters to the report of a failed test."""
    report = yield
    bridged = getattr(item, "funcargs", {}).get("bridged")
    if report.when == "call" and report.failed and isinstance(bridged, Bridged):
        report.sections.append(("clusters at the failure", bridged.summary()))
    return report


# -- permissions, at the end of a run --------------------------------------------------------

_USED_PERMISSIONS = pytest.StashKey[used_permissions.Report]()


def _permission_report(config: pytest.Config) -> used_permissions.Report:
    """The permissions that this run's bridges have used so far."""
    return config.stash.setdefault(_USED_PERMISSIONS, used_permissions.Report())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds the permissions used by a pytest-xdist worker that has ended."""
    used = getattr(node, "workeroutput", {}).get("used_permissions")
    if used is not None:
        _permission_report(node.config).add(used)


#: Exit code of pytest after a run with rejected, undeclared or unused permissions, which no second
#: attempt of a test can repair (`e2e.gate.suites`).
WRONG_PERMISSIONS = 9


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run with rejected, undeclared or unused permissions."""
    config, found = session.config, _permission_report(session.config)
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["used_permissions"] = found.as_json()
    elif session.exitstatus in (0, 1) and _permission_problems(config):
        session.exitstatus = WRONG_PERMISSIONS


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the problems with permissions."""
    if wrong := _permission_problems(config):
        terminalreporter.section(
            "permissions (python -m e2e.used_permissions prints the table)", red=True
        )
        for line in wrong:
            terminalreporter.write_line(line)


def _permission_problems(config: pytest.Config) -> list[str]:
    """The problems with the permissions that were used; empty if no bridge ran."""
    found = _permission_report(config)
    unused = found.unused if found.used and _is_whole(config) else []
    return [*found.problems(), *(f"  unused  {it}" for it in unused)]


def _is_whole(config: pytest.Config) -> bool:
    """Whether the run has all tests of this folder that can share the machine, as a part of
    `make test-long` has: only then a permission can be unused."""
    here = Path(__file__).parent
    chosen = [config.invocation_params.dir / argument for argument in config.args]
    narrowed = any(
        config.getoption(option, None)
        for option in ("keyword", "deselect", "ignore", "ignore_glob", "lf")
    ) or config.getoption("markexpr", "") not in ("", "not alone")
    return not narrowed and any(path in (here, *here.parents) for path in chosen)


@dataclass(frozen=True)
class Bridged:
    """A virtual node with a running bridge, and a namespace at home for the test."""

    home: Cluster
    remote: Cluster
    bridge: Bridge
    node: str
    namespace: str
    remote_namespace: str

    def apply(self, manifest: str) -> None:
        """Applies YAML at home, in the test's namespace."""
        self.home.kubectl("apply", "-n", self.namespace, "-f", "-", input=manifest)

    def kubectl(self, *args: str, check: bool = True) -> str:
        """Runs kubectl at home, in the test's namespace; returns its standard output."""
        return self.home.kubectl("-n", self.namespace, *args, check=check).stdout

    def home_pods(self) -> list[Json]:
        """The pods of the test's namespace at home."""
        return get(self.home, "pods", namespace=self.namespace)

    def remote_pods(self) -> list[Json]:
        """The remote pods of the test's namespace."""
        return get(self.remote, "pods", namespace=self.remote_namespace)

    def summary(self) -> str:
        """Nodes, and the test's pods and Events, on both sides as kubectl prints them."""
        taints = "jsonpath={range .items[*]}{.metadata.name} {.spec.taints}{'\\n'}{end}"
        wide = [(resources, "-o", "wide") for resources in ("nodes", "pods", "events")]
        texts = []
        for cluster, namespace in (
            (self.home, self.namespace),
            (self.remote, self.remote_namespace),
        ):
            for what in (*wide, ("nodes", "-o", taints)):
                args = ("get", *what, "-n", namespace, "--request-timeout=5s")
                texts.append(f"{cluster.name}: {what[0]}")
                try:
                    result = cluster.kubectl(*args, check=False)
                except CommandFailed as error:  # The API server hangs.
                    texts.append(str(error))
                else:
                    texts += [result.stdout, result.stderr]
        return "\n".join(filter(None, texts))

    def wait_until_schedulable(self) -> None:
        """Waits until home's controllers have seen that the new node is Ready, and have removed
        its taint: before, a scheduler binds pods that only prefer it to another node."""

        def is_new() -> bool:
            taints = get_one(self.home, "node", self.node)["spec"].get("taints") or ()
            return any(it["key"] == "node.kubernetes.io/not-ready" for it in taints)

        wait_for(lambda: not is_new(), "home's scheduler may choose the virtual node")

    def events(self, reason: str) -> list[Json]:
        """Home's Events with this reason in the test's namespace. The bridge posts an Event in the
        background, as a kubelet does: wait for one, also after the status that it explains."""
        events = get(self.home, "events", namespace=self.namespace)
        return [event for event in events if event["reason"] == reason]

    def wait_for_events(self, reason: str, kind: str, *names: str) -> dict[str, str]:
        """Waits until each of these objects has an Event with this reason; name → message."""

        def messages() -> dict[str, str]:
            found = [(it["involvedObject"], it["message"]) for it in self.events(reason)]
            by_name = {of["name"]: message for of, message in found if of["kind"] == kind}
            return by_name if by_name.keys() >= set(names) else {}

        return wait_for(messages, f"{', '.join(names)} have an Event {reason}")


@pytest.fixture(autouse=True)
def _clusters_work(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """Lets no outage of the last test delay controllers, schedulers and kubelets in this one, and
    starts what has ended by itself; the report of the run (JUnit) has its last output."""
    if "clusters" in request.fixturenames:
        for cluster in request.getfixturevalue("clusters").values():
            cluster.restart_api_clients()
            for component, output in cluster.restart_ended().items():
                record_property(f"{component} of {cluster.name} had ended", output)


@pytest.fixture
def home(clusters: dict[str, Cluster]) -> Cluster:  # noqa: F811
    """The cluster of the users."""
    return clusters["home"]


@pytest.fixture
def remote(clusters: dict[str, Cluster]) -> Cluster:  # noqa: F811
    """The cluster that runs the offloaded pods."""
    return clusters["remote"]


@pytest.fixture(scope="session")
def provisioners(clusters: dict[str, Cluster]) -> None:  # noqa: F811
    """The remote has all provisioners of volumes; see `e2e.storage_classes` for their classes.
    Their first build takes minutes, which count for no test."""
    for provisioner in Provisioner:
        clusters["remote"].provision_volumes(provisioner, print)


@pytest.fixture(scope="session")
def home_provisioner(clusters: dict[str, Cluster]) -> None:  # noqa: F811
    """Home has local-path-provisioner."""
    clusters["home"].provision_volumes(Provisioner.LOCAL_PATH, print)


@dataclass(frozen=True)
class Limited:
    """Handles of both clusters with the credentials of the bridge's ServiceAccounts."""

    remote: Cluster
    _home: Cluster
    _folder: Path
    _nodes: list[str] = field(default_factory=list)

    def at_home(self, node: str) -> Cluster:
        """Home's, for a new account of this virtual node, which is removed after the test."""
        self._nodes.append(node)
        return service_accounts.at_home(self._home, self._folder, node)

    def take_away(self) -> None:
        """Removes the accounts at home."""
        for node in self._nodes:
            service_accounts.take_away_at_home(self._home, node)


@pytest.fixture
def limited(
    clusters: dict[str, Cluster],  # noqa: F811
    limited_remote: Cluster,
    tmp_path: Path,
) -> Iterator[Limited]:
    """The clusters with the permissions that `bridge rbac` prints."""
    found = Limited(limited_remote, clusters["home"], tmp_path)
    yield found
    found.take_away()


@pytest.fixture(scope="session")
def limited_remote(
    request: pytest.FixtureRequest,
    clusters: dict[str, Cluster],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """The remote for the account that all bridges share; afterwards the permissions that these used
    in both clusters are reported."""
    folder = tmp_path_factory.mktemp("accounts")
    # kind clusters have an audit log only if root starts them.
    logs = {it.name: it.audit_log for it in clusters.values() if it.audit_log is not None}
    requests = {name: Requests(log) for name, log in logs.items()}
    with certificate_approver.approving(clusters["home"]):
        yield service_accounts.in_remote(clusters["remote"], folder)
    _permission_report(request.config).add(used_permissions.report(requests).as_json())


@pytest.fixture(scope="module")
def simulated(request: pytest.FixtureRequest) -> Iterator[dict[str, Cluster]]:
    """Clusters with simulated nodes: a separate set beside that of the other tests, and only while
    a module needs it, since idle clusters take a tenth of a processor."""
    usual = settings_from_environment()
    settings = replace(usual, prefix=f"{usual.prefix[:5]}many", backend=Backend.NATIVE)
    home = specs(["home"], nodes=Nodes.SIMULATED)
    remote = specs(["remote"], nodes=Nodes.SIMULATED, node_count=SIMULATED_NODES)
    with running(request, [*home, *remote], settings) as found:
        yield found


@pytest.fixture
def node_name() -> str:
    """A unique name of a virtual node."""
    return f"virtual-{uuid.uuid4().hex[:6]}"


def _stop(bridge: Bridge) -> None:
    """Stops the bridge, if possible with Ctrl-C, so that its Lease is released at once."""
    try:
        bridge.stop()
    except BridgeFailed:
        bridge.kill()


@pytest.fixture
def bridged(
    request: pytest.FixtureRequest,
    clusters: dict[str, Cluster],  # noqa: F811
    limited: Limited,
    node_name: str,
    tmp_path: Path,
) -> Iterator[Bridged]:
    """A joined remote cluster. Afterwards it has left, and nothing remains in the remote.

    ``@pytest.mark.join("--option", …)`` adds options of the command; with ``@pytest.mark.unbound``
    the bridge may not read the test's namespace; with ``@pytest.mark.short_linger`` unneeded
    copies and namespaces remain for `SHORT_LINGER` instead of a minute.
    """
    home, remote = clusters["home"], clusters["remote"]
    unbound = request.node.get_closest_marker("unbound") is not None
    options = [option for mark in request.node.iter_markers("join") for option in mark.args]
    args = (*usual_options(node_name), *options)
    near = limited.at_home(node_name)
    bridge = Bridge(near, limited.remote, tmp_path / "bridge.log", args)
    if request.node.get_closest_marker("short_linger") is not None:
        bridge.use(with_linger(SHORT_LINGER))
    try:
        with joined(bridge, node_name, home=home, remote=remote, unbound=unbound) as found:
            yield found
    finally:
        print(bridge.log.read_text())


def usual_options(node: str) -> tuple[str, ...]:
    """Options of a join that coexists with others."""
    return ("--name", node, "--home-name", "e2e", "--port", "0")


@contextmanager
def joined(
    bridge: Bridge,
    node: str,
    *,
    home: Cluster,
    remote: Cluster,
    account: str | None = None,
    unbound: bool = False,
    leave_options: Sequence[str] = (),
) -> Iterator[Bridged]:
    """Starts the bridge with a new namespace at home, which it may read unless ``unbound``;
    afterwards removes both, and further nodes that the bridge has joined, whose names begin with
    that of the node. ``account`` is the bridge's at home; None is that of the node.
    ``leave_options`` are further options of `bridge leave`."""
    namespace = (used_permissions.UNBOUND if unbound else "test-") + node.rpartition("-")[2]
    # A test may change these of the bridge.
    near, far = bridge.home, bridge.remote
    create_namespace(home, namespace)
    if not unbound:
        service_accounts.bind(home, account or node, namespace)
    bridge.start()
    try:
        yield Bridged(home, remote, bridge, node, namespace, f"{namespace}-e2e")
    finally:
        _stop(bridge)
        left = [
            # With --kubeconfig, since a test may have left, so that no Node has the join record.
            bridge_process.run(
                *("leave", it, "--yes", "--force"),
                *("--kubeconfig", far.kubeconfig),
                *leave_options,
                home=near,
            )
            for it in (node, *_further_nodes(home, node))
        ]
        home.kubectl("delete", "namespace", namespace, "--wait=false")
    assert all(it.returncode == 0 for it in left), [it.stderr for it in left]
    selector = f"cluster-bridge.io/node={node}"
    wait_for(
        lambda: not get(remote, _MANAGED_RESOURCES, selector=selector, all_namespaces=True),
        "no managed object is left in the remote",
    )


@contextmanager
def another_node(bridge: Bridge, node: str) -> Iterator[Bridge]:
    """Starts the bridge of another virtual node; afterwards kills it, and the node has left."""
    # A test may change these of the bridge.
    near, far = bridge.home, bridge.remote
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.kill()
        print(bridge.log.read_text())
        leave = ("leave", node, "--yes", "--force", "--kubeconfig", far.kubeconfig)
        left = bridge_process.run(*leave, home=near)
    assert left.returncode == 0, left.stderr


@contextmanager
def second_node(
    bridged: Bridged, limited: Limited, name: str, folder: Path, *options: str
) -> Iterator[Bridge]:
    """Another virtual node of the same clusters, whose bridge may read the same namespace.
    ``options`` are further options of its join."""
    near = limited.at_home(name)
    service_accounts.bind(bridged.home, name, bridged.namespace)
    args = (*usual_options(name), *options)
    with another_node(Bridge(near, limited.remote, folder / "second.log", args), name) as bridge:
        yield bridge


def _further_nodes(home: Cluster, node: str) -> list[str]:
    names = sorted(uids(get(home, "nodes")))
    return [name for name in names if name.startswith(f"{node}-")]


@pytest.fixture
def storage(bridged: Bridged) -> Iterator[ProvisionedStorage]:
    """A virtual node that provisions volumes; afterwards the test's volumes are deleted."""
    from e2e.provisioned_storage import ProvisionedStorage  # It needs this module's `Bridged`.

    bridged.wait_until_schedulable()
    made = ProvisionedStorage(bridged)
    yield made
    made.clear()
