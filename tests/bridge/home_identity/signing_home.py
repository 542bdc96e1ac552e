"""A home with TLS that signs certificates of a node, and an account of it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.base.consent import Consent
from bridge.base.join_settings import HomeIdentityChoice, JoinSettings
from bridge.home_identity.identity_selection import HomeClients, home_clients
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, PODS, Object
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority, FakeApi

NODE = "burst"
SUBJECT = f"system:node:{NODE}"


@dataclass
class World:
    """A home with TLS, which signs what is approved, and an account of it."""

    api: FakeApi
    authority: Authority
    account: KubeClient
    folder: Path
    consent: Consent = field(default_factory=Consent)
    reports: list[str] = field(default_factory=list)

    state_secret: str | None = None
    bootstrap: Path | None = None

    def settings(self, choice: HomeIdentityChoice = "auto") -> JoinSettings:
        here = KubeconfigRef(self.folder / "config")
        return JoinSettings(
            here,
            here,
            home_identity=choice,
            cert_dir=self.folder / "certs",
            state_secret=self.state_secret,
            home_bootstrap=self.bootstrap,
        )

    @asynccontextmanager
    async def clients(self, choice: HomeIdentityChoice = "auto") -> AsyncIterator[HomeClients]:
        """The clients that a join with this option selects."""
        async with home_clients(
            self.settings(choice),
            self.account,
            NODE,
            consent=self.consent,
            notify=self.reports.append,
        ) as found:
            yield found

    def deny(self, **denied: str) -> None:
        """Home denies the account what has these attributes."""

        def authorize(spec: Object) -> bool:
            attributes: Object = spec["resourceAttributes"]
            return not all(attributes.get(key) == value for key, value in denied.items())

        self.api.api.authorize = authorize

    def requests(self) -> list[Object]:
        return self.api.objects(CERTIFICATE_SIGNING_REQUESTS)

    async def sign_what_is_approved(self) -> None:
        """Waits for the bridge's own approval, and signs its request."""
        await self.api.until(lambda: [it for it in self.requests() if it.get("status")])
        (request,) = self.requests()
        self._sign(request)

    async def approve(self) -> None:
        """Waits for a request, approves it as an administrator, and signs it."""
        await self.api.until(lambda: [it for it in self.requests() if not it.get("status")])
        (request,) = (it for it in self.requests() if not it.get("status"))
        self._sign(request)

    def _sign(self, request: Object) -> None:
        assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
        assert request["spec"]["usages"] == ["digital signature", "client auth"]
        signed = self.authority.sign(base64.b64decode(request["spec"]["request"]))
        status = {
            "conditions": [{"type": "Approved", "status": "True"}],
            "certificate": base64.b64encode(signed).decode(),
        }
        name = request["metadata"]["name"]
        self.api.update(CERTIFICATE_SIGNING_REQUESTS, name, {"status": status})


async def subjects(clients: HomeClients, world: World) -> list[str]:
    """The subjects of a request of each client."""
    world.api.clear_log()
    for client in (clients.home, clients.account):
        await client.list(PODS)
    return [entry.subject for entry in world.api.requests("GET", PODS.path())]
