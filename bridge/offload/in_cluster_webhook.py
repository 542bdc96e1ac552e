"""`bridge webhook --service`: in home's cluster, one of several replicas behind a Service.

Nobody registers or removes anything here: the Service, an empty Secret and the
MutatingWebhookConfiguration, all of one name, are what `bridge join --in-cluster` installed. The
replicas keep what these need to work, each for all of them, by
`bridge.offload.certificate_rotation`:

- the certificate in the Secret. Who writes first wins; the others take that;
- the configuration's bundle, which is put right whenever it differs.

A replica listens when it has a certificate, and is ready when home trusts it. One that is told to
stop answers for `GOODBYE` seconds more, until the Service leads elsewhere. What fails is a warning,
told once, and tried again; until then what was there goes on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from bridge.certificates import x509_builder
from bridge.certificates.certificate_sources import utc_now
from bridge.certificates.tls_key_pair import TlsKeyPair, load_pair, server_context
from bridge.clusters.connection import connect
from bridge.offload import admission_policy as objects
from bridge.offload import certificate_rotation
from bridge.offload.admission_server import AdmissionServer
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.client import KubeClient
from sync.kube.errors import Conflict, KubeError
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.resources import MUTATING_WEBHOOKS, SECRETS
from translators.objects import Object, metadata, uid_of

log = logging.getLogger(__name__)

#: Seconds until what failed is tried again.
RETRY_SECONDS = 5.0
#: Seconds asleep at most: a clock can be set.
MAX_SLEEP_SECONDS = 3600.0
#: Seconds that it goes on answering: a Service's endpoints follow within one or two.
SHUTDOWN_SECONDS = 5.0

Told = Callable[[str], None]
Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class InClusterWebhookSettings:
    """What `bridge webhook --service` was asked for."""

    home: KubeconfigRef
    namespace: str
    name: str
    """Of the Service, of the Secret, and of the configuration."""
    address: str
    port: int

    @property
    def host(self) -> str:
        """By which name an API server knows the Service."""
        return f"{self.name}.{self.namespace}.svc"


async def serve(settings: InClusterWebhookSettings, *, notify: Told, stop: asyncio.Event) -> None:
    """Serves until ``stop``. Raises PreflightError."""
    async with connect(settings.home, side="home", notify=notify) as home:
        keeper = CertificateKeeper(home, settings)
        server = AdmissionServer(home, ready=keeper.untrusted)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(server.namespaces.run(), name="namespaces"),
                    group.create_task(keeper.run(), name="certificate"),
                    group.create_task(_answer(server, keeper, settings, notify), name="server"),
                ]
                await stop.wait()
                server.begin_shutdown()
                await asyncio.sleep(SHUTDOWN_SECONDS)
                for task in tasks:
                    task.cancel()
        finally:
            await server.stop()


async def _answer(
    server: AdmissionServer,
    keeper: CertificateKeeper,
    settings: InClusterWebhookSettings,
    told: Told,
) -> None:
    port = await server.start(settings.address, settings.port, await keeper.context())
    told(f"home: the webhook of Service {settings.namespace}/{settings.name} listens on {port}")


class CertificateKeeper:
    """The replicas' certificate, and that home's API server trusts it."""

    def __init__(
        self, home: KubeClient, settings: InClusterWebhookSettings, *, now: Now = utc_now
    ) -> None:
        self._home = home
        self._settings = settings
        self._now = now
        own = f"metadata.name={settings.name}"
        self._secrets = Informer(home, SECRETS, namespace=settings.namespace, fields=own)
        self._configurations = Informer(home, MUTATING_WEBHOOKS, fields=own)
        self._changed = asyncio.Event()
        for informer in (self._secrets, self._configurations):
            informer.on_change(lambda *_: self._changed.set())
        self._shown: TlsKeyPair | None = None
        self._context: asyncio.Future[ssl.SSLContext] = asyncio.get_running_loop().create_future()
        self._trouble = self._said = ""

    async def context(self) -> ssl.SSLContext:
        """What shows the certificate of now, as soon as there is one."""
        return await asyncio.shield(self._context)

    def untrusted(self) -> str:
        """Why home's API server would not trust it; "" where it does."""
        shown = self._shown
        if shown is None or shown.certificate not in self._trusted():
            return "home's API server does not trust the certificate yet"
        return ""

    def _trusted(self) -> bytes:
        found = self._configurations.store.get(Key("", self._settings.name))
        return objects.ca_bundle(found) if found is not None else b""

    async def run(self) -> None:
        """Keeps both, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (self._secrets, self._configurations):
                group.create_task(informer.run(), name=f"watch {informer.resource}")
            group.create_task(self._keep(), name="keep")

    async def _keep(self) -> None:
        for informer in (self._secrets, self._configurations):
            await informer.synced.wait()
        while True:
            self._changed.clear()
            try:
                self._trouble = ""
                seconds = await self._agree()
            except Conflict:
                seconds = (
                    RETRY_SECONDS  # another replica was first; its certificate comes by the watch
                )
            except KubeError as error:
                self._trouble = f"the webhook's certificate cannot be kept: {error}"
                seconds = RETRY_SECONDS
            self._say()
            try:
                async with asyncio.timeout(min(seconds, MAX_SLEEP_SECONDS)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _agree(self) -> float:
        """Does what is to be done now; seconds until there may be more."""
        name, where, now = self._settings.name, self._settings.namespace, self._now()
        secret = self._secrets.store.get(Key(where, name))
        if secret is None:
            self._trouble = f"there is no Secret {where}/{name}; join again to have it made"
            return MAX_SLEEP_SECONDS
        known = certificate_rotation.read_secret(secret, self._settings.host)
        if certificate_rotation.needs_renewal(known, now):
            known = await self._renew(secret, known, now)
        await self._have_trusted(certificate_rotation.ca_bundle(known))
        self._show(certificate_rotation.certificate_to_serve(known, self._trusted(), now))
        return certificate_rotation.seconds_until_change(known, now)

    async def _renew(
        self, secret: Object, known: list[certificate_rotation.RotatedCertificate], now: datetime
    ) -> list[certificate_rotation.RotatedCertificate]:
        """Makes the next one. Raises Conflict where another replica did."""
        # Each has another: of two authorities with one name some clients would try the first alone.
        called = f"cluster-bridge-webhook-{secrets.token_hex(4)}"
        fresh = x509_builder.self_signed(called, [self._settings.host], now=now)
        version = metadata(secret).get("resourceVersion")
        changed = await self._home.patch(
            SECRETS,
            self._settings.name,
            {
                "metadata": {"uid": uid_of(secret), "resourceVersion": version},
                "data": certificate_rotation.secret_data(fresh, known, now),
            },
            namespace=self._settings.namespace,
        )
        self._secrets.observe_write(changed)
        log.info("the webhook has a new certificate")
        return certificate_rotation.read_secret(changed, self._settings.host)

    async def _have_trusted(self, authority: bytes) -> None:
        name = self._settings.name
        found = self._configurations.store.get(Key("", name))
        if found is None:
            kind = MUTATING_WEBHOOKS.kind
            self._trouble = f"there is no {kind} {name}; join again to have it made"
        elif objects.ca_bundle(found) != authority:
            patch = {"metadata": {"uid": uid_of(found)}, **objects.ca_bundle_patch(authority)}
            changed = await self._home.patch(MUTATING_WEBHOOKS, name, patch, kind="strategic")
            self._configurations.observe_write(changed)

    def _show(self, pair: TlsKeyPair | None) -> None:
        if pair is None or pair == self._shown:
            return
        if self._context.done():
            load_pair(self._context.result(), pair)
        else:
            self._context.set_result(server_context(pair, client_ca=""))
        self._shown = pair

    def _say(self) -> None:
        """What is the matter now, once."""
        if self._trouble and self._trouble != self._said:
            log.warning("%s", self._trouble)
        self._said = self._trouble
