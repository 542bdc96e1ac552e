"""`bridge webhook`: changes the pods of offloaded namespaces where home's API server cannot.

- It is registered at home (a MutatingWebhookConfiguration with its URL and certificate) while a
  namespace is offloaded, and not else; a clean stop takes that back. Where it is gone without one,
  pods are made as they are, after two seconds at most.
- Every answer allows the pod. One that cannot be read, or of a namespace that is not known yet, is
  allowed as it is.
- The certificate is its own, made when it starts, and anew before it ends: the API server is told
  of both before the new one is shown. Its key is on disk only while OpenSSL reads it.

Whoever reaches it can ask what it would do to a pod, and learns no more than a policy's name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from bridge.kubelet.certificate import LIFETIME, ServingCertificate, load_pair, server_context
from bridge.kubelet.making import self_signed
from bridge.offload import policy as objects
from bridge.offload.commands import Writer
from bridge.preflight.checks import PreflightError, connected, explained, own_address
from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.kubeconfig import KubeconfigRef
from sync.kube.resources import NAMESPACES
from sync.store import Key
from translators import offload
from translators.types import Object, metadata, name_of

log = logging.getLogger(__name__)

PORT = 9443
#: Bytes of a review at the most: a pod of 1.5 MB, which is etcd's bound, and what is around it.
REVIEW_MAX = 4 * 2**20
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
        self.namespaces = Informer(home, NAMESPACES, labels=offload.LABEL, slim=_slim)
        self.namespaces.on_change(lambda *_: self._changed.set())
        self._home = home
        self._address = address
        self._told = told
        self._changed = asyncio.Event()
        self._certificate = _made(address)
        self._trusted = self._certificate.certificate
        self._context = server_context(self._certificate, client_ca="")
        self._runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where home's API server asks it."""
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"https://{host}:{self.port}"

    async def start(self, port: int) -> None:
        """Listens. Raises PreflightError where that cannot be."""
        app = web.Application(client_max_size=REVIEW_MAX)
        app.router.add_post(objects.PATH, self._review)
        app.router.add_get("/healthz", _healthy)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._address, port, ssl_context=self._context)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise PreflightError(
                f"the webhook cannot listen on {self._address}:{port}: {error.strerror}; choose "
                "another with --address or --port"
            ) from error
        self.port = self._runner.addresses[0][1]
        self._told(f"home: the webhook listens on {self.url}; Ctrl-C stops")

    async def end(self) -> None:
        """Takes the registration back, as far as that can be done, and listens no more."""
        with suppress(TimeoutError, KubeError, PreflightError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._writer().remove(objects.WEBHOOKS)
        if self._runner is not None:
            await self._runner.cleanup()

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

    # -- reviews ---------------------------------------------------------------------------

    async def _review(self, request: web.Request) -> web.Response:
        try:
            review: Any = await request.json()
            asked: Object = review["request"]
            answer = {"uid": asked["uid"], "allowed": True, **self._answer(asked)}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise web.HTTPBadRequest(text="not an AdmissionReview of admission.k8s.io/v1") from None
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        return web.json_response(body)

    def _answer(self, asked: Object) -> Object:
        namespace = self.namespaces.store.get(Key("", str(asked.get("namespace"))))
        policy = offload.policy_of(namespace) if namespace is not None else None
        if namespace is None or policy is None:
            return {}
        patch = offload.patch(asked["object"], policy, offload.selector_of(namespace))
        if not patch:
            return {}
        text = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"patchType": "JSONPatch", "patch": text}


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _made(address: str) -> ServingCertificate:
    # A name of its own: of two authorities with one name some clients would try the first alone.
    return self_signed(f"cluster-bridge-webhook-{secrets.token_hex(4)}", [address])


def _slim(namespace: Object) -> Object:
    """What is read of a namespace."""
    meta = metadata(namespace)
    kept = {"name": name_of(namespace), "uid": meta.get("uid")}
    kept |= {"resourceVersion": meta.get("resourceVersion")}
    for part, key in (("labels", offload.LABEL), ("annotations", offload.ANNOTATION_SELECTOR)):
        if value := (meta.get(part) or {}).get(key):
            kept[part] = {key: value}
    return {"metadata": kept}
