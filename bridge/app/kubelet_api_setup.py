"""The kubelet API of one join: the HTTP server with its certificate, pods, metrics and status.

`NodeKubelet.start` listens, `run` follows changes of the certificate and of home's client CA until
cancelled, `stop` ends open streams within `STREAMS_SECONDS`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from bridge.base.consent import Consent
from bridge.base.join_settings import JoinSettings
from bridge.base.progress_lines import Caveat
from bridge.base.version import version
from bridge.certificates.automatic_certificate import AutoSource, CertificateDemand
from bridge.certificates.cert_dir import CertDir, default_cert_dir
from bridge.certificates.csr import CsrSource
from bridge.certificates.csr_approval import Approver
from bridge.certificates.home_client_ca import follow_client_ca
from bridge.certificates.serving_certificate import CertificateSource, FileSource, SelfSignedSource
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair
from bridge.checks.required_at_join import JoinFacts
from bridge.clusters.kubelet_api_probe import probe_kubelet_api
from bridge.election.elector import LeaderElector
from bridge.home_identity.identity_selection import HomeClients
from bridge.kubelet.healthz import Check
from bridge.kubelet.pod_lookup import RemotePod, ScheduledPod
from bridge.kubelet.server import KubeletServer
from bridge.net.open_file_budget import max_streams, raise_open_file_limit
from bridge.node import node_object
from bridge.node.node_controller import OUTAGE_SECONDS
from bridge.node.node_lease import LeaseAnnotation
from bridge.observability.bridge_metrics_endpoint import MetricsEndpoint
from bridge.observability.metric_families import MetricSources
from bridge.observability.recent_errors import RecentErrors
from bridge.pod_metrics.kubelet_metrics_endpoints import PodMetricsEndpoints
from bridge.rbac import permissions
from bridge.relay.relay_counters import RelayMetrics
from bridge.status.status_endpoint import StatusEndpoint
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.engine.engine import Engine
from sync.kube.client import KubeClient
from translators.object_accessors import (
    Object,
    condition_of,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import origin_of
from translators.pods import references
from translators.timestamps import parse_time

#: Seconds for open exec, log and port-forward streams to end during a stop.
STREAMS_SECONDS = 3.0


class EnginePodDirectory:
    """A `PodDirectory` of the caches of ``engine``, which may be replaced."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def find_remote_pod(self, namespace: str, name: str, uid: str | None) -> RemotePod | None:
        home = self.engine.home_pods.store.get(Key(namespace, name))
        if home is None or (uid and uid_of(home) != uid):
            return None
        remote = self.engine.pods.remote_pod_of(home)
        if remote is None:
            return None
        containers = references.all_containers(remote.get("spec") or {})
        names = frozenset(str(container["name"]) for container in containers)
        return RemotePod(namespace_of(remote), name_of(remote), names, uid_of(home))

    def home_pods(self) -> list[Object]:
        return list(self.engine.home_pods.store)

    def scheduled_pods(self) -> list[ScheduledPod]:
        found = []
        for home in self.engine.home_pods.store:
            remote = self.engine.pods.remote_pod_of(home) or {}
            origin = origin_of(remote)
            node = str((remote.get("spec") or {}).get("nodeName") or "")
            if origin is not None and node:
                name = namespace_of(remote), name_of(remote)
                found.append(ScheduledPod(origin, *name, node, _scheduled_at(remote)))
        return found


def _scheduled_at(remote: Object) -> int:
    """When the remote's scheduler bound the pod, in milliseconds since the epoch; 0: unknown."""
    scheduled = condition_of(remote, "PodScheduled").get("lastTransitionTime")
    try:
        moment = parse_time(scheduled or metadata(remote)["creationTimestamp"])
    except (KeyError, TypeError, ValueError):
        return 0
    return round(moment.timestamp() * 1000)


class NodeKubelet:
    """The kubelet of one virtual node: a `KubeletServer` with everything it serves.

    The server handles HTTP; this class supplies certificate, client CA, pods, metrics and status,
    and replaces them as they change.
    """

    def __init__(
        self,
        settings: JoinSettings,
        facts: JoinFacts,
        engine: Engine,
        *,
        source: CertificateSource,
        certificate: TlsKeyPair,
        demand: CertificateDemand,
        home: KubeClient,
        account: KubeClient,
        remote: KubeClient,
        election: LeaderElector,
        recent_errors: RecentErrors,
        relay_metrics: RelayMetrics,
        notify: Callable[[str], None],
    ) -> None:
        self._address, self._configured_port = facts.address, settings.port
        self._notify = notify
        self._source = source
        self.certificate_demand = demand
        self._account, self._client_ca = account, facts.client_ca
        self._election = election
        self._relay_metrics = relay_metrics
        directory = self._directory = EnginePodDirectory(engine)
        self._metrics = PodMetricsEndpoints(
            remote,
            directory,
            facts.identity,
            facts.metrics,
            namespaces=settings.remote_namespaces,
        )
        self._metrics_endpoint = MetricsEndpoint()
        self._status = StatusEndpoint(
            facts.identity.node,
            home=home,
            remote=remote,
            election=election,
            streams=lambda: self._server.streams,
            recent=recent_errors,
        )
        self.readiness = Readiness(engine)
        self._server = KubeletServer(
            home=home,
            remote=remote,
            directory=directory,
            node_name=facts.identity.node,
            client_ca=facts.client_ca,
            certificate=certificate,
            routes=[*self._metrics.routes, self._metrics_endpoint.route, *self._status.routes],
            standby=lambda: election.standby_reason,
            ready=self.readiness.checks,
            max_streams=max_streams(raise_open_file_limit()),
            on_certificate_rejected=lambda client: demand.report(
                f"the client at {client} verifies the kubelet API's certificate and rejects it"
            ),
        )
        self.use_engine(engine, None)

    def use_engine(self, engine: Engine, node: Informer | None) -> None:
        """Answers from this engine from now on. ``node``: the informer of the Node, where one
        exists already. Open streams continue."""
        self._status.attach(engine, node)
        self._directory.engine = engine
        self.readiness.engine = engine
        self._metrics_endpoint.expose(
            MetricSources(
                version(),
                engine,
                self._server,
                self._metrics,
                self._election,
                self._relay_metrics,
            )
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def lease_annotation(self) -> LeaseAnnotation:
        """State that outlives a restart: the node's processor time."""
        usage = self._metrics.usage
        return LeaseAnnotation(node_object.ANNOTATION_CPU_SECONDS, usage.checkpoint, usage.resume)

    async def start(self) -> None:
        """Starts to listen. Raises ListenError."""
        await self._server.start(self._address, self._configured_port)
        self._notify(f"home: kubelet API listens on {self._address}:{self.port}")
        self._notify(f"home: the kubelet API's certificate is {self._source.origin}")

    async def run(self) -> None:
        """Follows changes of certificate and client CA until cancelled."""
        async with asyncio.TaskGroup() as group:
            renewing = self._source.run(lambda pair: self._server.renew(certificate=pair))
            group.create_task(renewing, name="serving-certificate")
            following = follow_client_ca(
                self._account, self._client_ca, lambda ca: self._server.renew(client_ca=ca)
            )
            group.create_task(following, name="client-ca")

    async def stop(self) -> None:
        await self._server.stop(STREAMS_SECONDS)
        await self._metrics.close()
        await self._status.close()


def cert_dir(settings: JoinSettings, facts: JoinFacts) -> Path:
    """The directory of a certificate signed by home. Raises CertificateError."""
    folder = settings.cert_dir or default_cert_dir(facts.identity.home_id, facts.identity.node)
    return folder.expanduser().absolute()


def certificate_source(
    settings: JoinSettings,
    facts: JoinFacts,
    home: HomeClients,
    *,
    demand: CertificateDemand,
    consent: Consent,
    on_signed: Callable[[], None],
    notify: Callable[[str], None],
) -> CertificateSource:
    """The source of the serving certificate that the options select. ``on_signed`` is called when
    ``auto`` begins to use home as the signer. Raises CertificateError."""
    node, addresses = facts.identity.node, [facts.address]
    if settings.certificate is not None and settings.key is not None:
        return FileSource(settings.certificate, settings.key)
    if settings.serving == "self-signed":
        return SelfSignedSource(node, addresses)
    try:
        store = CertDir(cert_dir(settings, facts))
    except CertificateError as error:
        if settings.serving == "csr":
            raise
        notify(Caveat(f"home: no certificate will be requested from home: {error}"))
        return SelfSignedSource(node, addresses)

    def signed() -> CertificateSource:
        approver = Approver(home.account, permissions.may_approve, consent)
        return CsrSource(home.home, node, addresses, store, approver=approver, notify=notify)

    if settings.serving == "csr":
        return signed()
    return AutoSource(
        node,
        addresses,
        demand,
        signed=signed,
        is_stored=store.is_in_use,
        probe=lambda: probe_kubelet_api(home.account, node),
        on_signed=on_signed,
        notify=notify,
    )


class Readiness:
    """Whether the bridge serves the node, or would take over at once: the checks of ``/readyz``
    (`bridge.kubelet.healthz`) of ``engine``, which may be replaced.

    - ``caches``: every list of both clusters has been read. A standby replica reads them too and is
      ready like the serving one, so a rolling update loses no time.
    - ``home``, ``remote``: every watch there works, or did less than `OUTAGE_SECONDS` ago, as in
      the Node's condition. Namespaces that the home cluster does not let the bridge read do not
      count: their pods' Events report that.

    Do not restart the bridge on readiness failures; a restart only discards its caches. So
    ``/livez`` ignores these checks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def checks(self) -> Mapping[str, Check]:
        """The checks by name; each returns why it fails, or ""."""
        sides = {side: functools.partial(self._watch_problem, side) for side in ("home", "remote")}
        return {"caches": self.caches_problem, **sides}

    def caches_problem(self) -> str:
        """Why the caches are incomplete; "" if they are complete."""
        waiting = sum(not informer.synced.is_set() for informer in self.engine.informers)
        return f"{waiting} lists of the clusters are not read yet" if waiting else ""

    def _watch_problem(self, side: str) -> str:
        """Whether a watch of this side has failed for longer than `OUTAGE_SECONDS`."""
        now = asyncio.get_running_loop().time()
        for informer in self.engine.informers:
            since = informer.failing_since
            if informer.client.side == side and since is not None and now - since > OUTAGE_SECONDS:
                return f"{informer.resource} cannot be watched: {informer.error}"
        return ""
