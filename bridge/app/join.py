"""A join, from the first question to the last line: wires the parts and runs them in order.

1. Checks (`bridge.checks.join_checks`); nothing has been made when one fails. With a health port,
   probes are answered from here on, and clusters that are away are waited for.
2. The kubelet API listens, so that the Node never names a port that nobody serves.
3. The engine's caches fill; when the node's lease is this bridge's, the Node is registered and pods
   are worked, and until then it stands by (`bridge.app.replica`).
4. Until SIGINT or SIGTERM (`stop`), or until a part fails, which ends all.
5. The parts are cancelled, the Leases are given back, streams are ended within the bound of
   `bridge.app.node_kubelet`. Workloads in the remote go on.

`stop` ends it at whatever step, checks that wait for a cluster among them, within the bounds of
`bridge.app.replica` and that. (`bridge.cli.runner` bounds what cannot be ended so.)
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from bridge.app import replica
from bridge.app.node_kubelet import NodeKubelet, cert_dir, create_node_kubelet
from bridge.app.probe_server import ProbeHandler, serve_probes
from bridge.app.replica import ReplicaTerm
from bridge.base import memory
from bridge.base.settings import JoinSettings
from bridge.base.version import version
from bridge.checks.join_checks import JoinFacts, checked_clusters
from bridge.election.election_record import Candidate
from bridge.election.elector import LeaderElector
from bridge.election.reachability import InformerReachability
from bridge.node import join_record, node_object
from bridge.node.controller import NodeController
from bridge.node.field_ownership import NodeMetadata
from bridge.node.namespace_record import NamespaceRecord
from bridge.node.node_object import NodeFacts
from bridge.observability.recent_errors import RecentErrors
from bridge.relay.metrics import RelayMetrics
from bridge.remote_claim.claim_keeper import RemoteClaim
from sync.base.callbacks import expire_now
from sync.engine.engine import Engine, utc_now
from sync.kube import in_cluster
from sync.kube.client import KubeClient
from sync.kube.write_fence import Fence
from sync.runtime.log_fields import NODE
from translators.translation_policy import Policy


async def join(
    settings: JoinSettings, *, report: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Serves the virtual node, or stands by for it, until ``stop``.

    ``told`` gets a line for each step. Raises PreflightError, NodeTaken, NodeLeft, ClaimRefused,
    KubeError and what the kubelet API raises when it cannot listen; all are for the person who
    asked.
    """
    async with cancel_when_set(stop), giving_back():
        await serve_node(settings, report)


@asynccontextmanager
async def giving_back() -> AsyncIterator[None]:
    """Gives memory back that is not needed, while the block runs."""
    giving = asyncio.create_task(memory.release_memory(), name="memory")
    try:
        yield
    finally:
        giving.cancel()


@asynccontextmanager
async def cancel_when_set(stop: asyncio.Event) -> AsyncIterator[None]:
    """Ends its block when ``stop`` is set: what waits in there is cancelled."""

    async def end(limit: asyncio.Timeout) -> None:
        await stop.wait()
        expire_now(limit)

    limit = asyncio.timeout(None)
    try:
        async with limit:
            watching = asyncio.create_task(end(limit), name="stop")
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not limit.expired():
            raise


async def serve_node(settings: JoinSettings, report: Callable[[str], None]) -> NoReturn:
    """`join` until it is cancelled."""
    recent = RecentErrors()
    with recent.collect():
        await _serve_node(settings, report, recent)
    raise AssertionError("it serves until it is cancelled")


async def _serve_node(
    settings: JoinSettings, told: Callable[[str], None], recent: RecentErrors
) -> None:
    health = ProbeHandler()
    async with (
        serve_probes(health, settings.address, settings.health_port),
        checked_clusters(
            settings,
            notify=told,
            on_wait=None if settings.health_port is None else health.set_waiting,
        ) as both,
    ):
        home, remote, found = both.home, both.remote, both.facts
        NODE.set(found.identity.node)
        me = Candidate.local(found.address)
        carried = RelayMetrics()
        election = LeaderElector(home, found.identity.node, candidate=me, notify=told)

        def claimed() -> RemoteClaim:
            """The claim of one life, with its two fences."""
            return RemoteClaim(
                remote,
                found.identity,
                election,
                candidate=me,
                home_fence=Fence(),
                take_over=settings.take_over_claim or "",
                notify=told,
            )

        claim = claimed()
        record = NamespaceRecord(home.fenced(claim.home_fence), found.identity.node)
        engine = _engine(settings, found, claim, carried, record, home=home, remote=remote)
        api = await create_node_kubelet(
            settings,
            found,
            engine,
            home=home,
            remote=remote,
            election=election,
            recent=recent,
            carried=carried,
            told=told,
        )

        health.use_engine(engine)

        def life(engine: Engine, claim: RemoteClaim) -> ReplicaTerm:
            way, fence = InformerReachability(remote, engine.informers), claim.home_fence
            node = _node(settings, found, engine, api)
            tidy = functools.partial(_tidy, found, home.fenced(fence))
            return ReplicaTerm(engine, node, fence, claim, way, tidy=tidy)

        def another() -> ReplicaTerm:
            claim = claimed()
            record = NamespaceRecord(home.fenced(claim.home_fence), found.identity.node)
            engine = _engine(settings, found, claim, carried, record, home=home, remote=remote)
            health.use_engine(engine)
            return life(engine, claim)

        await api.start()
        try:
            first = life(engine, claim)
            api.use_engine(engine, first.node.node)
            record.fresh = await first.node.is_name_free()
            await election.observe(node_exists=not record.fresh)
            serving = replica.run_replica(first, another, api=api, election=election, report=told)
            await _serve(serving, api)
        finally:
            await api.stop()


def _policy(settings: JoinSettings, found: JoinFacts) -> Policy:
    return Policy(
        found.identity,
        found.address,
        network=found.network,
        relay_address=found.relay_address,
        relay_cidr=found.relay_cidr,
        relay_image=settings.relay.image if found.network == "relay" else "",
        daemonsets=settings.daemonsets,
        service_accounts=settings.service_accounts,
        home_api=found.home_api,
        node_selector=settings.node_selector,
        unschedulable_timeout=settings.unschedulable_timeout,
    )


def _engine(
    settings: JoinSettings,
    found: JoinFacts,
    claim: RemoteClaim,
    carried: RelayMetrics,
    record: NamespaceRecord,
    *,
    home: KubeClient,
    remote: KubeClient,
) -> Engine:
    listeners = forwarder = None
    policy = _policy(settings, found)
    if found.network == "relay":
        from bridge.net.limits import fit_to_open_files
        from bridge.relay.forward.service_listeners import ServiceListeners

        listeners = ServiceListeners(
            remote.config,
            address=found.relay_address,
            settings=fit_to_open_files(settings.relay),
            metrics=carried,
        )
    if policy.relay_image:
        from bridge.relay.reverse.forwarder import ReverseForwarder

        forwarder = ReverseForwarder(
            remote.config,
            settings=settings.relay,
            metrics=carried.reverse,
            is_leader=lambda: claim.fence.is_open,
        )
    return Engine(
        home.fenced(claim.home_fence),
        remote.fenced(claim.fence),
        policy=policy,
        record=record,
        namespace_linger=settings.namespace_linger,
        copy_linger=settings.namespace_linger,
        limits=settings.limits,
        listeners=listeners,
        forwarder=forwarder,
    )


async def _tidy(found: JoinFacts, home: KubeClient) -> None:
    if found.network != "relay":
        from bridge.relay.forward import stale_slices

        await stale_slices.remove_stale_slices(home, found.identity)


def _node(
    settings: JoinSettings, found: JoinFacts, engine: Engine, api: NodeKubelet
) -> NodeController:
    controller = NodeController(
        engine.home_pods.client,
        _facts(settings, found, engine, api.port),
        capacity=engine.capacity,
        remote_nodes=engine.remote_nodes,
        watched=[engine.remote_pods, engine.remote_nodes],
        unschedulable_pods=engine.unschedulable_pods,
        events=engine.events,
        now=utc_now,
        lease_annotation=api.lease_note,
    )
    engine.pods.admission.cached_node = controller.current_node
    return controller


def _facts(settings: JoinSettings, found: JoinFacts, engine: Engine, port: int) -> NodeFacts:
    access = engine.remote_nodes.client.config
    files = access.ref.files().split(os.pathsep)
    is_installed = engine.home_pods.client.config.in_cluster
    # `bridge leave` may be run in another folder.
    remembered = os.pathsep.join(str(Path(file).expanduser().absolute()) for file in files if file)
    annotations = {
        node_object.ANNOTATION_KUBECONFIG: remembered,
        node_object.ANNOTATION_CONTEXT: access.context,
        node_object.ANNOTATION_HOME_NAME: found.identity.home_name,
        join_record.ANNOTATION_OPTIONS: join_record.encode_settings(
            settings, _policy(settings, found)
        ),
        # "" replaces what an installed bridge recorded.
        node_object.ANNOTATION_INSTALLATION: in_cluster.namespace() if is_installed else "",
    }
    if settings.serving == "csr":
        annotations[node_object.ANNOTATION_CERT_DIR] = str(cert_dir(settings, found))
    return NodeFacts(
        name=found.identity.node,
        remote_id=found.remote_id,
        address=found.address,
        port=port,
        version=version(),
        configured=NodeMetadata(settings.labels, settings.annotations, settings.taints),
        annotations=annotations,
    )


async def _serve(serving: Coroutine[Any, Any, NoReturn], api: NodeKubelet) -> None:
    """Until cancelled, or until a part fails."""
    async with asyncio.TaskGroup() as group:
        group.create_task(serving, name="replica")
        group.create_task(api.run(), name="kubelet-api")
