"""`bridge webhook`: a webhook outside of home's cluster that registers itself.

- While any namespace is offloaded, the process registers a MutatingWebhookConfiguration with its
  URL and certificate; otherwise, and on a clean stop, it removes it. After a crash, pods are
  created unmodified, delayed by at most two seconds.
- The configuration is watched: if it is changed or deleted, it is registered again.
- Of several processes, the last to register is used. A process only removes a configuration that it
  registered itself; when that one is deleted, another running process registers.
- The certificate is self-signed, created on start and renewed before it expires: both certificates
  are registered before the new one is served. The key is on disk only while OpenSSL reads it.

`bridge.offload.webhook_server` answers the requests. `bridge.offload.in_cluster_webhook` is the
alternative behind a Service.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.certificates.tls_key_pair import LIFETIME, load_pair, server_context
from bridge.clusters.advertised_address import find_bridge_address
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.offload import mutating_admission_policy, webhook_configuration
from bridge.offload.pod_mutator_setup import PodMutatorWriter
from bridge.offload.webhook_certificate import create_certificate
from bridge.offload.webhook_server import AdmissionServer
from sync.cache.informer import Informer
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import MUTATING_WEBHOOKS
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators import offload_admission_patch
from translators.object_accessors import Object, metadata, uid_of

log = logging.getLogger(__name__)

PORT = 9443
#: Seconds before a failed registration is repeated.
RETRY_SECONDS = 5.0
#: Least seconds between two registrations: another program may also change the configuration.
MIN_REGISTER_SECONDS = 1.0
#: Timeout of removing the registration on stop, in seconds.
RELEASE_SECONDS = 3.0
_RENEW = LIFETIME.total_seconds() * 0.8


@dataclass(frozen=True, slots=True)
class StandaloneWebhookSettings:
    """Options of `bridge webhook`."""

    home: KubeconfigRef
    address: str | None = None
    """The IP at which home's API server reaches the webhook; None to detect it."""
    port: int = PORT


async def serve(
    settings: StandaloneWebhookSettings, *, notify: Notify, stop: asyncio.Event
) -> None:
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
    """The server and its registration."""

    def __init__(self, home: KubeClient, address: str, notify: Notify) -> None:
        self._server = AdmissionServer(home)
        self.namespaces = self._server.namespaces
        own = f"metadata.name={mutating_admission_policy.NAME}"
        self.configurations = Informer(home, MUTATING_WEBHOOKS, fields=own)
        for informer in (self.namespaces, self.configurations):
            informer.on_change(lambda *_: self._changed.set())
        self._process = secrets.token_hex(8)
        self._has_registered = False
        self._yielded = False
        self._home = home
        self._address = address
        self._notify = notify
        self._changed = asyncio.Event()
        self._certificate = create_certificate(address)
        self._trusted = self._certificate.certificate
        self._context = server_context(self._certificate, client_ca="")
        self.port = 0

    @property
    def url(self) -> str:
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"https://{host}:{self.port}"

    async def start(self, port: int) -> None:
        """Listens. Raises PreflightError if it cannot."""
        self.port = await self._server.start(self._address, port, self._context)
        self._notify(f"home: the webhook listens on {self.url}; Ctrl-C stops")

    async def stop(self) -> None:
        """Removes the registration, ignoring errors, and closes the server."""
        with suppress(TimeoutError, KubeError, PreflightError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._unregister(await self._writer().get_managed(MUTATING_WEBHOOKS))
        await self._server.stop()

    # -- registration ----------------------------------------------------------------------

    async def keep_registered(self) -> None:
        await self.namespaces.synced.wait()
        while True:
            self._changed.clear()
            await self._register()
            await asyncio.sleep(MIN_REGISTER_SECONDS)
            await self._changed.wait()

    async def _register(self) -> None:
        """Registers the webhook if any namespace is offloaded, or else removes the registration.
        Retries on errors."""
        while True:
            try:
                current = await self._writer().get_managed(MUTATING_WEBHOOKS)
                if any(map(offload_admission_patch.offloading_of, self.namespaces.store)):
                    await self._ensure(current)
                else:
                    await self._unregister(current)
            except (KubeError, PreflightError) as error:
                log.warning("cannot register the webhook: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _ensure(self, current: Object | None) -> None:
        """Registers this process. The first time it replaces the registration of another process,
        running or killed; afterwards it leaves that of a successor."""
        owner = webhook_configuration.registered_process(current) if current is not None else ""
        yields = self._has_registered and owner not in ("", self._process)
        if yields and not self._yielded:
            log.warning("another `bridge webhook` process has registered; this process waits")
        self._yielded = yields
        desired = webhook_configuration.url_configuration(self.url, self._trusted, self._process)
        if yields or webhook_configuration.is_up_to_date(current, desired):
            return
        await self._writer().ensure(MUTATING_WEBHOOKS, desired)
        self._has_registered = True

    async def _unregister(self, current: Object | None) -> None:
        """Removes the configuration if this process registered it and it is unchanged."""
        if (
            current is None
            or webhook_configuration.registered_process(current) != self._process
            or not webhook_configuration.has_url(current, self.url)
        ):
            return
        self._notify(f"home: {MUTATING_WEBHOOKS.kind} {mutating_admission_policy.NAME} removed")
        await self._home.delete(
            MUTATING_WEBHOOKS,
            mutating_admission_policy.NAME,
            uid=uid_of(current),
            resource_version=metadata(current).get("resourceVersion"),
        )

    def _writer(self) -> PodMutatorWriter:
        return PodMutatorWriter(self._home, self._notify, dry_run=False)

    async def keep_certificate(self) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            await self.renew()

    async def renew(self) -> None:
        """Creates a new certificate, registers both, waits, and serves the new one."""
        fresh = create_certificate(self._address)
        self._trusted = self._certificate.certificate + fresh.certificate
        await self._register()
        await asyncio.sleep(RETRY_SECONDS)
        load_pair(self._context, fresh)
        self._certificate = fresh
