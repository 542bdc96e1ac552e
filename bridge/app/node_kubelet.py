"""The kubelet API of a join: the server with all that it needs, put together and kept fresh.

`prepared` makes it, `start` listens, `run` follows what may change while it serves (its
certificate, home's client CA) until cancelled, `stop` ends what is open within `STREAMS_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, Unpack

from bridge.app.readiness import Readiness
from bridge.base.settings import JoinSettings
from bridge.base.version import version
from bridge.certificates.cert_dir import CertDir, default_cert_dir
from bridge.certificates.certificate_sources import CertificateSource, FileSource, SelfSignedSource
from bridge.certificates.client_ca import ClientCaWatcher
from bridge.certificates.tls_key_pair import TlsKeyPair
from bridge.checks.join_checks import JoinFacts
from bridge.election.elector import LeaderElector
from bridge.kubelet.pod_directory import RemotePod, ScheduledPod
from bridge.kubelet.server import KubeletServer
from bridge.net.limits import max_streams, raise_open_file_limit
from bridge.node import node_object
from bridge.node.lease import LeaseAnnotation
from bridge.observability.metrics import FAMILIES, BridgeParts
from bridge.observability.metrics_endpoint import MetricsEndpoint
from bridge.observability.recent_errors import RecentErrors
from bridge.pod_metrics.endpoints import PodMetricsEndpoints
from bridge.relay.metrics import RelayMetrics
from bridge.status.status_endpoint import StatusEndpoint
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.engine.engine import Engine
from sync.kube.client import KubeClient
from translators.identity import origin_of
from translators.objects import Object, condition_of, metadata, name_of, namespace_of, uid_of
from translators.pods import references
from translators.timestamps import parse_time

#: Seconds for open exec, log and port-forward streams to end after the stop.
STREAMS_SECONDS = 3.0


class EnginePodDirectory:
    """Finds the remote pod of a home pod for the kubelet API: only pods of this node."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def use_engine(self, engine: Engine) -> None:
        """Looks in the caches of this one from now on."""
        self._engine = engine

    def find_remote_pod(self, namespace: str, name: str, uid: str | None) -> RemotePod | None:
        """The remote pod, or None where no such pod is on this node or it is not made yet."""
        home = self._engine.home_pods.store.get(Key(namespace, name))
        if home is None or (uid and uid_of(home) != uid):
            return None
        remote = self._engine.pods.remote_pod_of(home)
        if remote is None:
            return None
        containers = references.all_containers(remote.get("spec") or {})
        names = frozenset(str(container["name"]) for container in containers)
        return RemotePod(namespace=namespace_of(remote), name=name_of(remote), containers=names)

    def home_pods(self) -> list[Object]:
        """The home pods on this node."""
        return list(self._engine.home_pods.store)

    def scheduled_pods(self) -> list[ScheduledPod]:
        """Where the remote pods of this node are."""
        found = []
        for home in self._engine.home_pods.store:
            remote = self._engine.pods.remote_pod_of(home) or {}
            origin = origin_of(remote)
            node = str((remote.get("spec") or {}).get("nodeName") or "")
            if origin is not None and node:
                name = namespace_of(remote), name_of(remote)
                found.append(ScheduledPod(origin, *name, node, _placed_at(remote)))
        return found


def _placed_at(remote: Object) -> int:
    """When the remote's scheduler bound the pod, in milliseconds; 0 where that is not known."""
    scheduled = condition_of(remote, "PodScheduled").get("lastTransitionTime")
    try:
        moment = parse_time(scheduled or metadata(remote)["creationTimestamp"])
    except (KeyError, TypeError, ValueError):
        return 0
    return round(moment.timestamp() * 1000)


class Dependencies(TypedDict):
    """What of the join it asks, and tells."""

    home: KubeClient
    remote: KubeClient
    election: LeaderElector
    recent: RecentErrors
    carried: RelayMetrics
    told: Callable[[str], None]


class NodeKubelet:
    """What home's API server asks on port 10250; see the module."""

    def __init__(
        self,
        settings: JoinSettings,
        found: JoinFacts,
        engine: Engine,
        *,
        source: CertificateSource,
        certificate: TlsKeyPair,
        **around: Unpack[Dependencies],
    ) -> None:
        home, remote, election = around["home"], around["remote"], around["election"]
        self._address, self._wanted_port = found.address, settings.port
        self._told = around["told"]
        self._source = source
        self._authorities = ClientCaWatcher(home, found.client_ca)
        self._election = election
        self._carried = around["carried"]
        directory = self._directory = EnginePodDirectory(engine)
        self._metrics = PodMetricsEndpoints(remote, directory, found.identity, found.metrics)
        self._exporter = MetricsEndpoint()
        self._status = StatusEndpoint(
            found.identity.node,
            home=home,
            remote=remote,
            election=election,
            streams=lambda: self._server.streams,
            recent=around["recent"],
        )
        self._readiness = Readiness(engine)
        self._server = KubeletServer(
            home=home,
            remote=remote,
            directory=directory,
            node_name=found.identity.node,
            client_ca=found.client_ca,
            certificate=certificate,
            anonymous=settings.anonymous_auth,
            routes=[*self._metrics.routes, self._exporter.route, *self._status.routes],
            standby=lambda: election.standby_reason,
            ready=self._readiness.checks,
            max_streams=max_streams(raise_open_file_limit()),
        )
        self.use_engine(engine, None)

    def use_engine(self, engine: Engine, node: Informer | None) -> None:
        """Answers by what these know from now on: ``node`` has the Node, where there is one yet.
        Streams that are open go on."""
        self._status.attach(engine, node)
        self._directory.use_engine(engine)
        self._readiness.use_engine(engine)
        parts = BridgeParts(
            version(), engine, self._server, self._metrics, self._election, self._carried
        )
        self._exporter.expose(FAMILIES, parts)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    @property
    def lease_note(self) -> LeaseAnnotation:
        """What is to outlive a restart: the node's processor time."""
        usage = self._metrics.usage
        return LeaseAnnotation(node_object.ANNOTATION_CPU_SECONDS, usage.checkpoint, usage.resume)

    async def start(self) -> None:
        """Listens. Raises ListenError."""
        await self._server.start(self._address, self._wanted_port)
        self._told(f"home: kubelet API listens on {self._address}:{self.port}")
        self._told(f"home: the kubelet API's certificate is {self._source.origin}")

    async def run(self) -> None:
        """Has it use the certificate and the client CA of now, until cancelled."""
        async with asyncio.TaskGroup() as group:
            renewing = self._source.run(lambda pair: self._server.renew(certificate=pair))
            group.create_task(renewing, name="serving-certificate")
            following = self._authorities.run(lambda ca: self._server.renew(client_ca=ca))
            group.create_task(following, name="client-ca")

    async def stop(self) -> None:
        """Ends what is open, and the port with it."""
        await self._server.stop(STREAMS_SECONDS)
        await self._metrics.close()
        await self._status.close()


async def create_node_kubelet(
    settings: JoinSettings, found: JoinFacts, engine: Engine, **around: Unpack[Dependencies]
) -> NodeKubelet:
    """It, with a certificate to begin with. Raises CertificateError."""
    source = _source(settings, found, around["home"], around["told"])
    certificate = await source.first()
    return NodeKubelet(settings, found, engine, source=source, certificate=certificate, **around)


def cert_dir(settings: JoinSettings, found: JoinFacts) -> Path:
    """Where a certificate of home's is kept. Raises CertificateError."""
    folder = settings.cert_dir or default_cert_dir(found.identity.home_id, found.identity.node)
    return folder.expanduser().absolute()


def _source(
    settings: JoinSettings, found: JoinFacts, home: KubeClient, told: Callable[[str], None]
) -> CertificateSource:
    node, addresses = found.identity.node, [found.address]
    if settings.certificate is not None and settings.key is not None:
        return FileSource(settings.certificate, settings.key)
    if settings.serving == "csr":
        from bridge.certificates.csr import CsrSource

        folder = CertDir(cert_dir(settings, found))
        return CsrSource(home, node, addresses, folder, report=told)
    return SelfSignedSource(node, addresses)
