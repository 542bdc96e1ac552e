"""`bridge webhook`: changes the pods of offloaded namespaces where home's API server cannot.

- It is registered at home (a MutatingWebhookConfiguration with its URL and certificate) while a
  namespace is offloaded, and not else; a clean stop takes that back. Where it is gone without one,
  pods are made as they are, after two seconds at most.
- The certificate is its own, made when it starts, and anew before it ends: the API server is told
  of both before the new one is shown. Its key is on disk only while OpenSSL reads it.

What it answers is `bridge.offload.server`'s. Behind a Service of home's cluster it is
`bridge.offload.shared`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from bridge.kubelet.certificate import LIFETIME, ServingCertificate, load_pair, server_context
from bridge.kubelet.making import self_signed
from bridge.offload import policy as objects
from bridge.offload.commands import Writer
from bridge.offload.server import ReviewServer
from bridge.preflight.checks import PreflightError, connected, explained, own_address
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.kubeconfig import KubeconfigRef
from translators import offload

log = logging.getLogger(__name__)

PORT = 9443
#: Seconds until a registration that failed is tried again.
RETRY = 5.0
#: Seconds for what is taken back at the end.
RELEASE_SECONDS = 3.0
_RENEW = LIFETIME.total_seconds() * 0.8

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What `bridge webhook` was asked for."""

    home: KubeconfigRef
    address: str | None = None
    """Where home's API server reaches it; found out unless given."""
    port: int = PORT


async def serve(settings: WebhookSettings, *, told: Told, stop: asyncio.Event) -> None:
    """Serves until ``stop``. Raises PreflightError."""
    async with connected(settings.home, side="home", told=told) as home:
        with explained("home"):
            address = settings.address or await own_address(home)
        webhook = Webhook(home, address, told)
        await webhook.start(settings.port)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(webhook.namespaces.run(), name="namespaces"),
                    group.create_task(webhook.keep_registered(), name="registration"),
                    group.create_task(webhook.keep_certificate(), name="certificate"),
                ]
                await stop.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await webhook.end()


class Webhook:
    """The server, and its registration."""

    def __init__(self, home: KubeClient, address: str, told: Told) -> None:
        self._server = ReviewServer(home)
        self.namespaces = self._server.namespaces
        self.namespaces.on_change(lambda *_: self._changed.set())
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

    async def end(self) -> None:
        """Takes the registration back, as far as that can be done, and listens no more."""
        with suppress(TimeoutError, KubeError, PreflightError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._writer().remove(objects.WEBHOOKS)
        await self._server.end()

    # -- registration ----------------------------------------------------------------------

    async def keep_registered(self) -> None:
        """Has it registered while a namespace is offloaded."""
        await self.namespaces.synced.wait()
        while True:
            self._changed.clear()
            await self._register()
            await self._changed.wait()

    async def _register(self) -> None:
        """Registers it as it is now, or takes that back; what fails is tried again."""
        while True:
            try:
                if any(offload.policy_of(it) for it in self.namespaces.store):
                    configuration = objects.webhook(self.url, self._trusted)
                    await self._writer().ensure(objects.WEBHOOKS, configuration)
                else:
                    await self._writer().remove(objects.WEBHOOKS)
            except (KubeError, PreflightError) as error:
                log.warning("the webhook cannot be registered: %s", error)
                await asyncio.sleep(RETRY)
            else:
                return

    def _writer(self) -> Writer:
        return Writer(self._home, self._told, dry_run=False)

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
        await asyncio.sleep(RETRY)
        load_pair(self._context, fresh)
        self._certificate = fresh


def _made(address: str) -> ServingCertificate:
    # A name of its own: of two authorities with one name some clients would try the first alone.
    return self_signed(f"cluster-bridge-webhook-{secrets.token_hex(4)}", [address])
