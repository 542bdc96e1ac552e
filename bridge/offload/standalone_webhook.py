"""`bridge webhook`: changes the pods of offloaded namespaces where home's API server cannot.

- It is registered at home (a MutatingWebhookConfiguration with its URL and certificate) while a
  namespace is offloaded, and not else; a clean stop takes that back. Where it is gone without one,
  pods are made as they are, after two seconds at most.
- The configuration is watched: one that is changed or removed while a namespace is offloaded is
  registered again.
- Of several, the one that registered last is asked. A process removes only the configuration that
  it registered itself; when that is gone, another one that runs registers itself.
- The certificate is its own, made when it starts, and anew before it ends: the API server is told
  of both before the new one is shown. Its key is on disk only while OpenSSL reads it.

What it answers is `bridge.offload.admission_server`'s. Behind a Service of home's cluster it is
`bridge.offload.in_cluster_webhook`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from bridge.base.errors import PreflightError
from bridge.certificates.tls_key_pair import LIFETIME, TlsKeyPair, load_pair, server_context
from bridge.certificates.x509_builder import self_signed
from bridge.clusters.bridge_address import find_bridge_address
from bridge.clusters.connection import as_preflight_errors, connect
from bridge.offload import admission_policy as objects
from bridge.offload.admission_server import AdmissionServer
from bridge.offload.namespace_policy import EnforcementWriter
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators import offload_patch
from translators.objects import Object, metadata, uid_of

log = logging.getLogger(__name__)

PORT = 9443
#: Seconds until a registration that failed is tried again.
RETRY_SECONDS = 5.0
#: Seconds between two registrations at least: another program may change the configuration, too.
MIN_REGISTER_SECONDS = 1.0
#: Seconds for what is taken back at the end.
RELEASE_SECONDS = 3.0
_RENEW = LIFETIME.total_seconds() * 0.8

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StandaloneWebhookSettings:
    """What `bridge webhook` was asked for."""

    home: KubeconfigRef
    address: str | None = None
    """Where home's API server reaches it; found out unless given."""
    port: int = PORT


async def serve(settings: StandaloneWebhookSettings, *, notify: Told, stop: asyncio.Event) -> None:
    """Serves until ``stop``. Raises PreflightError."""
    async with connect(settings.home, side="home", notify=notify) as home:
        with as_preflight_errors("home"):
            address = settings.address or await find_bridge_address(home)
        webhook = StandaloneWebhook(home, address, notify)
        await webhook.start(settings.port)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(webhook.namespaces.run(), name="namespaces"),
                    group.create_task(webhook.configurations.run(), name="configurations"),
                    group.create_task(webhook.keep_registered(), name="registration"),
                    group.create_task(webhook.keep_certificate(), name="certificate"),
                ]
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await webhook.stop()


class StandaloneWebhook:
    """The server, and its registration."""

    def __init__(self, home: KubeClient, address: str, told: Told) -> None:
        self._server = AdmissionServer(home)
        self.namespaces = self._server.namespaces
        own = f"metadata.name={objects.NAME}"
        self.configurations = Informer(home, objects.WEBHOOKS, fields=own)
        for informer in (self.namespaces, self.configurations):
            informer.on_change(lambda *_: self._changed.set())
        self._process = secrets.token_hex(8)
        self._has_registered = False
        self._yields = False
        self._home = home
        self._address = address
        self._told = told
        self._changed = asyncio.Event()
        self._certificate = _made(address)
        self._trusted = self._certificate.certificate
        self._context = server_context(self._certificate, client_ca="")
        self.port = 0

    @property
    def url(self) -> str:
        """Where home's API server asks it."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"https://{host}:{self.port}"

    async def start(self, port: int) -> None:
        """Listens. Raises PreflightError where that cannot be."""
        self.port = await self._server.start(self._address, port, self._context)
        self._told(f"home: the webhook listens on {self.url}; Ctrl-C stops")

    async def stop(self) -> None:
        """Takes the registration back, as far as that can be done, and listens no more."""
        with suppress(TimeoutError, KubeError, PreflightError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._unregister(await self._writer().get_managed(objects.WEBHOOKS))
        await self._server.stop()

    # -- registration ----------------------------------------------------------------------

    async def keep_registered(self) -> None:
        """Has it registered while a namespace is offloaded."""
        await self.namespaces.synced.wait()
        while True:
            self._changed.clear()
            await self._register()
            await asyncio.sleep(MIN_REGISTER_SECONDS)
            await self._changed.wait()

    async def _register(self) -> None:
        """Registers it as it is now, or takes that back; what fails is tried again."""
        while True:
            try:
                current = await self._writer().get_managed(objects.WEBHOOKS)
                if any(offload_patch.policy_of(it) for it in self.namespaces.store):
                    await self._ensure(current)
                else:
                    await self._unregister(current)
            except (KubeError, PreflightError) as error:
                log.warning("the webhook cannot be registered: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _ensure(self, current: Object | None) -> None:
        """Has the configuration be this process's. The first time it takes over what is there, from
        a process that runs or that was killed; afterwards it leaves a successor's alone."""
        theirs = objects.registered_process(current) if current is not None else ""
        yields = self._has_registered and theirs not in ("", self._process)
        if yields and not self._yields:
            log.warning("another bridge webhook has taken the registration over; this one waits")
        self._yields = yields
        wanted = objects.url_configuration(self.url, self._trusted, self._process)
        if yields or (current is not None and objects.is_up_to_date(current, wanted)):
            return
        await self._writer().ensure(objects.WEBHOOKS, wanted)
        self._has_registered = True

    async def _unregister(self, current: Object | None) -> None:
        """Removes the configuration if this process registered it, as it was seen."""
        if (
            current is None
            or objects.registered_process(current) != self._process
            or not objects.has_url(current, self.url)
        ):
            return
        self._told(f"home: {objects.WEBHOOKS.kind} {objects.NAME} removed")
        await self._home.delete(
            objects.WEBHOOKS,
            objects.NAME,
            uid=uid_of(current),
            resource_version=metadata(current).get("resourceVersion"),
        )

    def _writer(self) -> EnforcementWriter:
        return EnforcementWriter(self._home, self._told, dry_run=False)

    async def keep_certificate(self) -> None:
        """Makes a new one in good time."""
        while True:
            await asyncio.sleep(_RENEW)
            await self.renew()

    async def renew(self) -> None:
        """A new certificate: home trusts both, has had time to know that, and then it is shown."""
        fresh = _made(self._address)
        self._trusted = self._certificate.certificate + fresh.certificate
        await self._register()
        await asyncio.sleep(RETRY_SECONDS)
        load_pair(self._context, fresh)
        self._certificate = fresh


def _made(address: str) -> TlsKeyPair:
    # A name of its own: of two authorities with one name some clients would try the first alone.
    return self_signed(f"cluster-bridge-webhook-{secrets.token_hex(4)}", [address])
