"""A join, from the first question to the last line: wires the parts and runs them in order.

1. Checks (`bridge.preflight`); nothing has been made when one fails.
2. The kubelet API listens, so that the Node never names a port that nobody serves.
3. The engine's caches fill; then the Node is registered and pods are worked.
4. Until SIGINT or SIGTERM (`stop`), or until a part fails, which ends all.
5. The parts are cancelled, streams are ended within `STREAMS_SECONDS`, the Lease is released.
   Workloads in the remote go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from bridge.kubelet.active import descriptors, streams_for
from bridge.kubelet.certdir import CertDir
from bridge.kubelet.certificate import ServingCertificate
from bridge.kubelet.clientca import ClientCa
from bridge.kubelet.directory import Placed, RemotePod
from bridge.kubelet.routing import Route
from bridge.kubelet.server import KubeletServer
from bridge.kubelet.serving import Files, Requested, SelfSigned, ServingSource, state_folder
from bridge.metrics.endpoints import Metrics
from bridge.node import model
from bridge.node.controller import NodeController
from bridge.node.marks import Marks
from bridge.node.model import NodeFacts
from bridge.node.note import Note
from bridge.observability.metrics import Exporter, Parts
from bridge.preflight import checks
from bridge.preflight.checks import Found, connected
from bridge.settings import JoinSettings
from sync.engine import Engine, utc_now
from sync.kube.client import KubeClient
from sync.store import Key
from translators import naming, references
from translators.policy import Policy
from translators.types import Object, name_of, namespace_of, uid_of

#: Seconds for open exec, log and port-forward streams to end after the stop.
STREAMS_SECONDS = 3.0
#: Seconds for the last writes; a stop must not hang on a cluster that is away.
RELEASE_SECONDS = 3.0


class Directory:
    """Finds the remote pod of a home pod for the kubelet API: only pods of this node."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, namespace: str, name: str, uid: str | None) -> RemotePod | None:
        """The remote pod, or None where no such pod is on this node or it is not made yet."""
        home = self._engine.home_pods.store.get(Key(namespace, name))
        if home is None or (uid and uid_of(home) != uid):
            return None
        remote = self._engine.pods.remote_of(home)
        if remote is None:
            return None
        containers = references.containers(remote.get("spec") or {})
        names = frozenset(str(container["name"]) for container in containers)
        return RemotePod(namespace=namespace_of(remote), name=name_of(remote), containers=names)

    def pods(self) -> list[Object]:
        """The home pods on this node."""
        return list(self._engine.home_pods.store)

    def placed(self) -> list[Placed]:
        """Where the remote pods of this node are."""
        found = []
        for home in self._engine.home_pods.store:
            remote = self._engine.pods.remote_of(home) or {}
            origin = naming.origin(remote)
            node = str((remote.get("spec") or {}).get("nodeName") or "")
            if origin is not None and node:
                found.append(Placed(origin, namespace_of(remote), name_of(remote), node))
        return found


def version() -> str:
    """The bridge's version, of the installed distribution."""
    return metadata.version("cluster-bridge")


async def join(settings: JoinSettings, *, told: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serves the virtual node until ``stop``.

    ``told`` gets a line for each step. Raises PreflightError, NodeTaken, KubeError and what the
    kubelet API raises when it cannot listen; all are for the person who asked.
    """
    async with (
        connected(settings.remote, side="remote", told=told) as remote,
        connected(settings.home, side="home", told=told) as home,
    ):
        found = await checks.check(settings, home=home, remote=remote, told=told)
        policy = Policy(
            found.identity,
            found.address,
            network=settings.network,
            daemonsets=settings.daemonsets,
            service_accounts=settings.service_accounts,
            home_api=found.home_api,
            node_selector=settings.node_selector,
            unschedulable_timeout=settings.unschedulable_timeout,
        )
        engine = Engine(
            home,
            remote,
            policy=policy,
            namespace_linger=settings.namespace_linger,
            limits=settings.limits,
        )
        source = _source(settings, found, home, told)
        directory = Directory(engine)
        metrics = Metrics(remote, directory, found.identity, found.metrics)
        exporter = Exporter()
        server = _server(
            settings,
            found,
            source.first(),
            home=home,
            remote=remote,
            directory=directory,
            routes=[*metrics.routes, exporter.route],
        )
        exporter.show(
            Parts(
                version=version(),
                home=home,
                remote=remote,
                engine=engine,
                server=server,
                metrics=metrics,
            )
        )
        await server.start(found.address, settings.port)
        told(f"home: kubelet API listens on {found.address}:{server.port}")
        told(f"home: the kubelet API's certificate is {source.origin}")
        try:
            usage = metrics.usage
            note = Note(model.ANNOTATION_CPU_SECONDS, usage.note, usage.go_on)
            async with asyncio.TaskGroup() as group:
                authorities = ClientCa(home, found.client_ca)
                fresh = group.create_task(_kept_fresh(server, source, authorities), name="TLS")
                await _serve(
                    settings, found, engine, home, server.port, note=note, told=told, stop=stop
                )
                fresh.cancel()
        finally:
            await server.stop(STREAMS_SECONDS)
            await metrics.close()


async def _serve(
    settings: JoinSettings,
    found: Found,
    engine: Engine,
    home: KubeClient,
    port: int,
    *,
    note: Note,
    told: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    facts = _facts(settings, found, engine, port)
    node = NodeController(
        home,
        facts,
        offer=engine.offer,
        remote_nodes=engine.remote_nodes,
        watched=[engine.remote_pods, engine.remote_nodes],
        unplaced=engine.unplaced,
        events=engine.events,
        now=utc_now,
        note=note,
    )
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(engine.run(), name="engine")]
            running.append(group.create_task(_begin(node, engine, facts, told), name="node"))
            await stop.wait()
            for task in running:
                task.cancel()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await node.release()


async def _begin(
    node: NodeController, engine: Engine, facts: NodeFacts, told: Callable[[str], None]
) -> None:
    """Registers the node when the caches are full, and keeps it."""
    await engine.synced()
    await node.register()
    told(f"home: node {facts.name} is registered; Ctrl-C stops, workloads go on")
    await node.run()


def _facts(settings: JoinSettings, found: Found, engine: Engine, port: int) -> NodeFacts:
    access = engine.remote_nodes.client.access
    files = access.ref.files().split(os.pathsep)
    # `bridge leave` may be run in another folder.
    remembered = os.pathsep.join(str(Path(file).expanduser().absolute()) for file in files if file)
    return NodeFacts(
        name=found.identity.node,
        remote_id=found.remote_id,
        address=found.address,
        port=port,
        version=version(),
        asked=Marks(settings.labels, settings.annotations, settings.taints),
        annotations={
            model.ANNOTATION_KUBECONFIG: remembered,
            model.ANNOTATION_CONTEXT: access.context,
            model.ANNOTATION_HOME_NAME: found.identity.home_name,
        },
    )


def _server(
    settings: JoinSettings,
    found: Found,
    certificate: ServingCertificate,
    *,
    home: KubeClient,
    remote: KubeClient,
    directory: Directory,
    routes: Sequence[Route],
) -> KubeletServer:
    return KubeletServer(
        home=home,
        remote=remote,
        directory=directory,
        node_name=found.identity.node,
        client_ca=found.client_ca,
        certificate=certificate,
        anonymous=settings.anonymous_auth,
        routes=routes,
        max_streams=streams_for(descriptors()),
    )


def _source(
    settings: JoinSettings, found: Found, home: KubeClient, told: Callable[[str], None]
) -> ServingSource:
    node, addresses = found.identity.node, [found.address]
    if settings.certificate is not None and settings.key is not None:
        return Files(settings.certificate, settings.key)
    if settings.serving == "csr":
        folder = CertDir(settings.cert_dir or state_folder(found.identity.home_id, node))
        return Requested(home, node, addresses, folder, told=told)
    return SelfSigned(node, addresses)


async def _kept_fresh(server: KubeletServer, source: ServingSource, authorities: ClientCa) -> None:
    """Has the kubelet API use the certificate and the client CA of now, until cancelled."""
    async with asyncio.TaskGroup() as group:
        renewing = source.run(lambda pair: server.renew(certificate=pair))
        group.create_task(renewing, name="serving certificate")
        following = authorities.run(lambda bundle: server.renew(client_ca=bundle))
        group.create_task(following, name="client CA")
