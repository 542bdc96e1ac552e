"""Two real clusters and a bridge between them, for the tests of this folder.

The clusters are started once for a run (`e2e.clusters.pytest_fixture`); each test that asks for
``bridged`` gets a virtual node of its own name, a home namespace of its own, and leaves nothing
behind in either cluster. Its bridge has the permissions that `bridge rbac` prints and no others
(`e2e.service_accounts`). The API servers' audit logs show at the end of a run which it used
(`e2e.used_permissions`): a rejected request, a missing permission and an unused one each fail the
run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from e2e import bridge_process as bridge_command
from e2e import service_accounts, used_permissions
from e2e.bench.pods.audit_log import Requests
from e2e.bridge_process import Bridge, BridgeFailed
from e2e.clusters import Nodes, specs
from e2e.clusters.cluster import Backend, Cluster
from e2e.clusters.pytest_fixture import clusters, running, settings_from_environment  # noqa: F401  # a fixture
from e2e.kubectl import Json, get, wait_for

#: Seconds for a test on real clusters, without its fixtures: the first one may build the clusters'
#: programs for minutes, and each step of them has a limit of its own.
TEST_SECONDS = 300
#: Seconds until home's controllers work, also after a test that had its API server down: they try
#: again ever more seldom.
ACCOUNT_SECONDS = 90.0
#: The kinds that the bridge makes objects of in the remote.
_OURS = "pods,configmaps,secrets,services,endpointslices,leases"

#: Nodes of a remote that simulates them: each has room for 1,000 pods.
SIMULATED_NODES = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real clusters have other limits of time than the tests without, and the files that may take
    longest come first: with workers side by side, none waits for them at the end."""
    here = Path(__file__).parent
    limits: dict[Path, list[int]] = {}
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))
            limits.setdefault(item.path, []).append(_limit(item))
    order = {path: (-max(each), -len(each)) for path, each in limits.items()}
    items.sort(key=lambda item: order.get(item.path, (0, 0)))


def _limit(item: pytest.Item) -> int:
    """Seconds; the mark that is nearest to the test counts."""
    marks = [mark.args[0] for mark in item.iter_markers("timeout") if mark.args]
    return int(marks[0])


# -- rights, at the end of a run -------------------------------------------------------------

_RIGHTS = pytest.StashKey[used_permissions.Report]()


def _found(config: pytest.Config) -> used_permissions.Report:
    """What this run's bridges used, as far as it is known."""
    return config.stash.setdefault(_RIGHTS, used_permissions.Report())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: what its bridges used."""
    told = getattr(node, "workeroutput", {}).get("rights")
    if told is not None:
        _found(node.config).add(told)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run for a right that is wrong."""
    config, found = session.config, _found(session.config)
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["rights"] = found.as_json()
    elif session.exitstatus == 0 and _wrong(config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says what is wrong with the rights."""
    if wrong := _wrong(config):
        terminalreporter.section("rights (python -m e2e.used_permissions has the table)", red=True)
        for line in wrong:
            terminalreporter.write_line(line)


def _wrong(config: pytest.Config) -> list[str]:
    """What is wrong with the rights that were used; nothing where no bridge ran."""
    found = _found(config)
    unused = found.unused if found.used and _is_whole(config) else []
    return [*found.wrong(), *(f"  unused  {it}" for it in unused)]


def _is_whole(config: pytest.Config) -> bool:
    """Whether all tests of this folder were to be run: only then a right can be called unused."""
    here = Path(__file__).parent
    chosen = [config.invocation_params.dir / argument for argument in config.args]
    narrowed = any(
        config.getoption(option, None)
        for option in ("keyword", "deselect", "ignore", "ignore_glob", "lf")
    ) or config.getoption("markexpr", "") not in ("", "not long")
    return not narrowed and any(path in (here, *here.parents) for path in chosen)


@dataclass(frozen=True)
class Bridged:
    """A virtual node with a running bridge, and a namespace at home to work in."""

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
        """Runs kubectl at home, in the test's namespace; its standard output."""
        return self.home.kubectl("-n", self.namespace, *args, check=check).stdout

    def home_pods(self) -> list[Json]:
        """The pods of the test's namespace at home."""
        return get(self.home, "pods", namespace=self.namespace)

    def remote_pods(self) -> list[Json]:
        """The pods that stand for them."""
        return get(self.remote, "pods", namespace=self.remote_namespace)


@pytest.fixture
def home(clusters: dict[str, Cluster]) -> Cluster:  # noqa: F811
    """The cluster that people use."""
    return clusters["home"]


@pytest.fixture
def remote(clusters: dict[str, Cluster]) -> Cluster:  # noqa: F811
    """The cluster that workloads burst to."""
    return clusters["remote"]


@dataclass(frozen=True)
class Limited:
    """Both clusters for the bridge's ServiceAccounts."""

    home: Cluster
    remote: Cluster


@pytest.fixture(scope="session")
def limited(
    request: pytest.FixtureRequest,
    clusters: dict[str, Cluster],  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Limited]:
    """The clusters with the rights that `bridge rbac` prints."""
    folder = tmp_path_factory.mktemp("accounts")
    # kind's clusters keep one where root starts them.
    logs = {it.name: it.audit_log for it in clusters.values() if it.audit_log is not None}
    asked = {name: Requests(log) for name, log in logs.items()}
    home = service_accounts.at_home(clusters["home"], folder)
    yield Limited(home, service_accounts.in_remote(clusters["remote"], folder))
    _found(request.config).add(used_permissions.report(asked).as_json())


@pytest.fixture(scope="session")
def simulated(request: pytest.FixtureRequest) -> Iterator[dict[str, Cluster]]:
    """Clusters with simulated nodes: a set of its own beside that of the other tests."""
    usual = settings_from_environment()
    settings = replace(usual, prefix=f"{usual.prefix[:5]}many", backend=Backend.NATIVE)
    home = specs(["home"], nodes=Nodes.SIMULATED)
    remote = specs(["remote"], nodes=Nodes.SIMULATED, node_count=SIMULATED_NODES)
    with running(request, [*home, *remote], settings) as found:
        yield found


@pytest.fixture
def node_name() -> str:
    """A name that no other test has used."""
    return f"virtual-{uuid.uuid4().hex[:6]}"


def _end(bridge: Bridge) -> None:
    """By Ctrl-C where that can be, so that nobody has to wait for the end of its lease."""
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
    """A joined remote. Afterwards it has left, and nothing is left over in the remote.

    ``@pytest.mark.join("--option", …)`` adds options to the command; with ``@pytest.mark.unbound``
    the bridge may not read the test's namespace.
    """
    home, remote = clusters["home"], clusters["remote"]
    unbound = request.node.get_closest_marker("unbound") is not None
    options = [option for mark in request.node.iter_markers("join") for option in mark.args]
    args = (*usual_options(node_name), *options)
    bridge = Bridge(limited.home, limited.remote, tmp_path / "bridge.log", args)
    try:
        with joined(bridge, node_name, home=home, remote=remote, unbound=unbound) as found:
            yield found
    finally:
        print(bridge.log.read_text())


def usual_options(node: str) -> tuple[str, ...]:
    """Options of a join that stands beside others, at the same time and one after the other."""
    return ("--name", node, "--home-name", "e2e", "--port", "0")


@contextmanager
def joined(
    bridge: Bridge, node: str, *, home: Cluster, remote: Cluster, unbound: bool = False
) -> Iterator[Bridged]:
    """Starts the bridge, with a new namespace at home that it may read, unless it is to be
    ``unbound``, and afterwards removes what both have."""
    namespace = (used_permissions.UNBOUND if unbound else "test-") + node.rpartition("-")[2]
    # A test may take these from the bridge.
    near, far = bridge.home, bridge.remote
    home.kubectl("create", "namespace", namespace)
    wait_for(
        lambda: get(home, "serviceaccounts", namespace=namespace),
        "home makes the service account of a new namespace",
        seconds=ACCOUNT_SECONDS,
    )
    if not unbound:
        service_accounts.bind(home, namespace)
    bridge.start()
    try:
        yield Bridged(home, remote, bridge, node, namespace, f"{namespace}-e2e")
    finally:
        _end(bridge)
        # With the kubeconfig named: a test may have left already, so that no Node remembers it.
        left = bridge_command.run(
            *("leave", "--name", node, "--yes", "--force"),
            *("--kubeconfig", far.kubeconfig),
            home=near,
        )
        home.kubectl("delete", "namespace", namespace, "--wait=false")
    assert left.returncode == 0, left.stderr
    selector = f"cluster-bridge.io/node={node}"
    wait_for(
        lambda: not get(remote, _OURS, selector=selector, every=True),
        "nothing of ours is left in the remote",
    )
