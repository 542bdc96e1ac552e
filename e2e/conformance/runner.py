"""Runs a selection of the upstream tests on home's real node, on the virtual node, or on both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from e2e.clusters import Cluster, InvalidRequest, Settings
from e2e.clusters.cluster import Progress
from e2e.clusters.go_build import programs
from e2e.clusters.go_recipes import kubernetes, kubernetes_e2e
from e2e.conformance import exceptions as exempt
from e2e.conformance import image_stand_ins
from e2e.conformance.node_under_test import NODE, require_real_alone, virtual_alone
from e2e.conformance.report import Json, Report, Run, run_from_json
from e2e.conformance.selection import Selection, select
from e2e.conformance.storage import Storage
from e2e.conformance.upstream_suite import Suite

#: The provisioner that supports more.
DEFAULT_STORAGE = Storage.HOSTPATH


class Node(StrEnum):
    """The node on which the tests run."""

    REAL = "real"
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a run; `output` is the folder for logs and JUnit files.

    `nodes` are run in this order. `baseline` is an earlier report that replaces a run on the real
    node. With `storage` only the tests of volumes run, on a class of that provisioner; without, all
    tests run, those of volumes on a class of `DEFAULT_STORAGE`.
    """

    nodes: tuple[Node, ...]
    focus: str
    smoke: bool
    procs: int
    repeat_failed: bool
    output: Path
    baseline: Json | None = None
    storage: Storage | None = None


def conduct(
    request: Request, clusters: dict[str, Cluster], settings: Settings, say: Progress
) -> tuple[Report, Selection]:
    """Runs the requested tests.

    :raises InvalidRequest: no test matches, or the baseline or an exception is invalid.
    :raises ClusterError: the tests could not run; see `e2e.clusters.errors`.
    :raises BridgeFailed: the bridge did not join.
    """
    require_real_alone(clusters["home"])
    storage = request.storage or DEFAULT_STORAGE
    suite = _provide(clusters, settings, storage, say)
    names = suite.names()
    selection = select(
        names, focus=request.focus, smoke=request.smoke, storage=request.storage is not None
    )
    if not selection.names:
        raise InvalidRequest("no test of the selection matches", where="--focus")
    try:
        exceptions = exempt.load(exempt.FILE.read_text())
        exempt.require_known(exceptions, names)
        runs = {}
        if request.baseline is not None:
            runs[Node.REAL] = run_from_json(request.baseline, Node.REAL, selection.names)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    served = storage if selection.needs_storage else None
    for node in request.nodes:
        with _prepared(node, clusters, request.output / node, served, say):
            runs[node] = _run(suite, selection, node, request)
    return (
        Report(selection.names, runs.get(Node.REAL), runs.get(Node.VIRTUAL), exceptions),
        selection,
    )


@contextmanager
def _prepared(
    node: Node, clusters: dict[str, Cluster], folder: Path, storage: Storage | None, say: Progress
) -> Iterator[None]:
    """Home has only this node for tests and, with `storage`, its StorageClass."""
    home, remote = clusters["home"], clusters["remote"]
    with ExitStack() as prepared:
        if node is Node.VIRTUAL:
            joined = virtual_alone(home, remote, folder, say, storage=storage is not None)
            prepared.enter_context(joined)
            if storage is not None:
                prepared.enter_context(storage.served_by_bridge(home, remote, NODE, say))
        elif storage is not None:
            prepared.enter_context(storage.served(home))
        yield


def _provide(
    clusters: dict[str, Cluster], settings: Settings, storage: Storage, say: Progress
) -> Suite:
    """Builds the programs, and loads the images of the tests into every node."""
    version, cache = settings.kubernetes, settings.cache
    e2e = programs(kubernetes_e2e(version), cache, say)
    components = programs(kubernetes(version), cache, say)
    archive = image_stand_ins.archive(cache, version, components, e2e, say)
    for cluster in clusters.values():
        cluster.load_images(archive)
    return Suite(e2e, clusters["home"], say, storage.definition)


def _run(suite: Suite, selection: Selection, node: Node, request: Request) -> Run:
    folder = request.output / node
    title = f"{node} node"
    first = suite.run(selection.names, title=title, folder=folder, procs=request.procs)
    failed = Run(first).failed()
    if not (failed and request.repeat_failed):
        return Run(first)
    again = folder / "again"
    return Run(first, suite.run(failed, title=f"{title}, again", folder=again, procs=1))
