"""`bridge webhook --service`: one of several webhook replicas behind a Service in home's cluster.

The replicas create nothing: `bridge install` installed the Service, an empty Secret and
the MutatingWebhookConfiguration, all with the same name. Every replica maintains for all of them,
by the rules of `bridge.offload.webhook_certificate`:

- the certificate in the Secret. The first writer wins; the others use its certificate;
- the CA bundle of the configuration, which is corrected whenever it differs.

A replica listens when a certificate exists, and is ready when home's CA bundle contains it. After a
stop signal it answers for `SHUTDOWN_SECONDS` more, until the Service's endpoints are updated. A
failure is logged once and retried; the previous state stays in use. A write that another client
sets back is repeated at growing intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from bridge.certificates.serving_certificate import utc_now
from bridge.certificates.tls_key_pair import TlsKeyPair, load_pair, server_context
from bridge.clusters.connection import Notify, connect
from bridge.offload import webhook_certificate, webhook_configuration
from bridge.offload.webhook_certificate import RotatedCertificate
from bridge.offload.webhook_server import AdmissionServer
from sync.base.repeated_writes import RepeatedWrites, overwritten_message
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import Conflict, KubeError
from sync.kube.api_resources import MUTATING_WEBHOOKS, SECRETS, Resource
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, metadata, uid_of

log = logging.getLogger(__name__)

#: Seconds before a failed attempt is repeated.
RETRY_SECONDS = 5.0
#: Longest sleep in seconds: the clock can be changed.
MAX_SLEEP_SECONDS = 3600.0
#: Seconds of answering after a stop signal: a Service's endpoints are updated within one or two.
SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class InClusterWebhookSettings:
    """Options of `bridge webhook --service`."""

    home: KubeconfigRef
    namespace: str
    name: str
    """The name of the Service, the Secret and the configuration."""
    address: str
    port: int

    @property
    def host(self) -> str:
        """The host name by which API servers verify the certificate."""
        return f"{self.name}.{self.namespace}.svc"


async def serve(settings: InClusterWebhookSettings, *, notify: Notify, stop: asyncio.Event) -> None:
    """Serves until ``stop``. Raises PreflightError."""
    async with connect(settings.home, side="home", notify=notify) as home:
        certificate = CertificateKeeper(home, settings)
        server = AdmissionServer(home, not_ready=certificate.untrusted_reason)

        async def start() -> None:
            context = await certificate.context()
            port = await server.start(settings.address, settings.port, context)
            service = f"{settings.namespace}/{settings.name}"
            notify(f"home: the webhook of Service {service} listens on {port}")

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(server.namespaces.run(), name="namespaces"),
                    group.create_task(certificate.run(), name="certificate"),
                    group.create_task(start(), name="server"),
                ]
                await stop.wait()
                server.begin_shutdown()
                await asyncio.sleep(SHUTDOWN_SECONDS)
                for task in tasks:
                    task.cancel()
        finally:
            await server.stop()


class CertificateKeeper:
    """Maintains the replicas' certificate and the CA bundle in home."""

    def __init__(
        self,
        home: KubeClient,
        settings: InClusterWebhookSettings,
        *,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._home = home
        self._settings = settings
        self._now = now
        own = f"metadata.name={settings.name}"
        self._secrets = Informer(home, SECRETS, namespace=settings.namespace, fields=own)
        self._configurations = Informer(home, MUTATING_WEBHOOKS, fields=own)
        self._informers = (self._secrets, self._configurations)
        self._changed = asyncio.Event()
        for informer in self._informers:
            informer.on_change(lambda *_: self._changed.set())
        # The last write of either object. Each certificate is another one.
        self._repeated: RepeatedWrites[Resource] = RepeatedWrites()
        self._served: TlsKeyPair | None = None
        self._context: asyncio.Future[ssl.SSLContext] = asyncio.get_running_loop().create_future()
        self._problem = self._logged_problem = ""

    async def context(self) -> ssl.SSLContext:
        """The TLS context that serves the current certificate; waits until there is one."""
        return await asyncio.shield(self._context)

    def untrusted_reason(self) -> str:
        """Why home's API server does not trust the served certificate; "" if it does."""
        served = self._served
        if served is None or served.certificate not in self._ca_bundle():
            return "home's API server does not trust the certificate yet"
        return ""

    def _ca_bundle(self) -> bytes:
        found = self._configurations.store.get(Key("", self._settings.name))
        return webhook_configuration.ca_bundle(found) if found is not None else b""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run(), name=f"watch {informer.resource}")
            group.create_task(self._maintain(), name="maintain")

    async def _maintain(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        while True:
            self._changed.clear()
            try:
                self._problem = ""
                seconds = await self._update()
            except Conflict:  # Another replica was first; the watch delivers its certificate.
                seconds = RETRY_SECONDS
            except KubeError as error:
                self._problem = f"cannot maintain the webhook's certificate: {error}"
                seconds = RETRY_SECONDS
            if self._problem and self._problem != self._logged_problem:
                log.warning("%s", self._problem)
            self._logged_problem = self._problem
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, MAX_SLEEP_SECONDS)):
                    await self._changed.wait()

    async def _update(self) -> float:
        """Makes all changes that are due, and returns the seconds until the next may be."""
        name, namespace, now = self._settings.name, self._settings.namespace, self._now()
        secret = self._secrets.store.get(Key(namespace, name))
        if secret is None:
            self._problem = f"there is no Secret {namespace}/{name}; join again to create it"
            return MAX_SLEEP_SECONDS
        known = webhook_certificate.read_secret(secret, self._settings.host)
        wait = 0.0
        if webhook_certificate.needs_renewal(known, now):
            wait = self._seconds_left(SECRETS, "a certificate")
            known = known if wait else await self._renew(secret, known, now)
        if not known:
            return wait
        wait_for_bundle = await self._set_ca_bundle(webhook_certificate.ca_bundle(known))
        self._serve_certificate(
            webhook_certificate.certificate_to_serve(known, self._ca_bundle(), now)
        )
        until_change = webhook_certificate.seconds_until_change(known, now)
        return min(filter(None, (wait, wait_for_bundle, until_change)), default=0.0)

    def _seconds_left(self, resource: Resource, write: object) -> float:
        """Seconds until this write, which was repeated, may be sent again; 0 for now."""
        delayed = self._repeated.delayed(resource)
        if delayed is None or delayed[0] != write:
            return 0.0
        self._problem = overwritten_message(f"{resource.kind} {self._settings.name}")
        return delayed[1]

    async def _renew(
        self, secret: Object, known: list[RotatedCertificate], now: datetime
    ) -> list[RotatedCertificate]:
        """Creates the successor. Raises Conflict if another replica was first."""
        fresh = webhook_certificate.create_certificate(self._settings.host, now)
        version = metadata(secret).get("resourceVersion")
        changed = await self._home.patch(
            SECRETS,
            self._settings.name,
            {
                "metadata": {"uid": uid_of(secret), "resourceVersion": version},
                "data": webhook_certificate.secret_data(fresh, known, now),
            },
            namespace=self._settings.namespace,
        )
        self._secrets.observe_write(changed)
        self._repeated.sent(self._settings.namespace, SECRETS, "a certificate")
        log.info("created a new certificate for the webhook")
        return webhook_certificate.read_secret(changed, self._settings.host)

    async def _set_ca_bundle(self, ca: bytes) -> float:
        """Returns the seconds after which this must be repeated; 0 if it need not."""
        name = self._settings.name
        found = self._configurations.store.get(Key("", name))
        if found is None:
            kind = MUTATING_WEBHOOKS.kind
            self._problem = f"there is no {kind} {name}; join again to create it"
        elif webhook_configuration.ca_bundle(found) != ca:
            if wait := self._seconds_left(MUTATING_WEBHOOKS, ca):
                return wait
            patch = {
                "metadata": {"uid": uid_of(found)},
                **webhook_configuration.ca_bundle_patch(ca),
            }
            changed = await self._home.patch(MUTATING_WEBHOOKS, name, patch, kind="strategic")
            self._configurations.observe_write(changed)
            self._repeated.sent("", MUTATING_WEBHOOKS, ca)
        return 0.0

    def _serve_certificate(self, pair: TlsKeyPair | None) -> None:
        if pair is None or pair == self._served:
            return
        if self._context.done():
            load_pair(self._context.result(), pair)
        else:
            self._context.set_result(server_context(pair, client_ca=""))
        self._served = pair
