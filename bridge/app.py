"""A join, from the first question to the last line: wires the parts and runs them in order.

1. Checks (`bridge.preflight`); nothing has been made when one fails.
2. The kubelet API listens, so that the Node never names a port that nobody serves.
3. The engine's caches fill; then the Node is registered and pods are worked.
4. Until SIGINT or SIGTERM (`stop`), or until a part fails, which ends all.
5. The parts are cancelled, the Lease is released, streams are ended within the bound of
   `bridge.kubeletapi`. Workloads in the remote go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from bridge.kubeletapi import KubeletApi
from bridge.node import model
from bridge.node.controller import NodeController
from bridge.node.marks import Marks
from bridge.node.model import NodeFacts
from bridge.preflight import checks
from bridge.preflight.checks import Found, connected
from bridge.settings import JoinSettings
from bridge.version import version
from sync.engine import Engine, utc_now
from sync.kube.client import KubeClient
from translators.policy import Policy

#: Seconds for the last writes; a stop must not hang on a cluster that is away.
RELEASE_SECONDS = 3.0


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
        engine = _engine(settings, found, home=home, remote=remote)
        api = KubeletApi(settings, found, engine, home=home, remote=remote, told=told)
        await api.start()
        try:
            node = _node(settings, found, engine, api, home=home)
            await _serve(engine, api, node, told=told, stop=stop)
        finally:
            await api.stop()


def _engine(
    settings: JoinSettings, found: Found, *, home: KubeClient, remote: KubeClient
) -> Engine:
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
    return Engine(
        home,
        remote,
        policy=policy,
        namespace_linger=settings.namespace_linger,
        limits=settings.limits,
    )


def _node(
    settings: JoinSettings, found: Found, engine: Engine, api: KubeletApi, *, home: KubeClient
) -> NodeController:
    return NodeController(
        home,
        _facts(settings, found, engine, api.port),
        offer=engine.offer,
        remote_nodes=engine.remote_nodes,
        watched=[engine.remote_pods, engine.remote_nodes],
        unplaced=engine.unplaced,
        events=engine.events,
        now=utc_now,
        note=api.note,
    )


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


async def _serve(
    engine: Engine,
    api: KubeletApi,
    node: NodeController,
    *,
    told: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(engine.run(), name="engine"),
                group.create_task(api.run(), name="kubelet-api"),
                group.create_task(_begin(node, engine, told), name="node"),
            ]
            await stop.wait()
            for task in running:
                task.cancel()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await node.release()


async def _begin(node: NodeController, engine: Engine, told: Callable[[str], None]) -> None:
    """Registers the node when the caches are full, and keeps it."""
    await engine.synced()
    await node.register()
    told(f"home: node {node.name} is registered; Ctrl-C stops, workloads go on")
    await node.run()
