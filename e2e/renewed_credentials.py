"""Credentials that the API server of `e2e.api_server_users` rejects after a while, and their
successors, one class for each kind.

A kind writes the files that a client reads, and states for each credential how the audit log shows
its requests. ServiceAccount tokens are valid for at least ten minutes, so those here are bound to a
Secret whose deletion ends them; the API server answers an expired token in the same way. It caches
accepted tokens for ten seconds, so each end takes up to that long.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import aiohttp
import yaml

from bridge.clusters.token_renewal import TokenRenewal
from e2e.api_server_users import Users, claims_of
from e2e.clusters.certificates import Pair
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json
from e2e.service_accounts import SHORT_LIVED
from sync.kube.bearer_token import RenewedToken
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Seconds for which a certificate of the plugin is valid, and an ID token: longer than the time
#: between two reads of a rejected credential (`sync.kube.credentials.RENEW_INTERVAL`).
LIFETIME = 20
#: Seconds until the API server rejects an ended credential, with its cache and on a busy machine.
REJECTION_SECONDS = 60.0
#: Seconds until a pod's client reads its token again (`sync.kube.in_cluster`), and some more.
RELOAD_SECONDS = 80.0
#: The key of `user.extra` in the audit log that identifies a token.
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
#: The ServiceAccount of the tokens.
ACCOUNT = "renewed"

_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
_REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@dataclass(frozen=True, slots=True)
class Issued:
    """A credential that was issued."""

    identity: str
    """The user name or the credential ID in the audit log."""
    token: str = field(default="", repr=False)
    pair: Pair | None = None

    async def is_rejected(self, users: Users) -> bool:
        """Whether the API server answers 401, on a new connection."""
        context = ssl.create_default_context(cadata=users.words["ca_pem"])
        if self.pair is not None:
            context.load_cert_chain(self.pair.certificate, self.pair.key)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        url = f"{users.words['server']}/version"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=context) as response,
        ):
            return response.status == 401


class Credential:
    """A kind of credential. ``folder`` contains the files of the client, which are written before
    the first use. ``namespace`` contains the ServiceAccount."""

    name: ClassVar[str]
    """Part of the names of objects."""
    issued: Issued
    """The last credential that was issued."""

    def __init__(self, users: Users, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.users = users
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.kubeconfig = folder / "config"
        folder.mkdir()

    @property
    def ref(self) -> KubeconfigRef:
        """The argument of `load`."""
        return KubeconfigRef(self.kubeconfig)

    async def issue(self) -> None:
        """Issues a credential and writes it where the client finds it."""
        raise NotImplementedError

    async def end(self) -> None:
        """Makes the API server reject the last credential; by default it expires."""

    async def adopt(self, client: KubeClient) -> None:
        """Does what the bridge does with its client once a credential was issued."""

    async def replace(self, client: KubeClient, number: int) -> bool:
        """Replaces the credential of this number; returns whether the next operations of the client
        are rejected."""
        previous = self.issued
        await self.end()
        async with asyncio.timeout(REJECTION_SECONDS):
            while not await previous.is_rejected(self.users):  # noqa: ASYNC110  # Its clock decides.
                await asyncio.sleep(0.5)
        await self.issue()
        return True

    def write_kubeconfig(self, user: Json) -> None:
        """Replaces the kubeconfig by one of this user."""
        words = self.users.words
        cluster = {"server": words["server"], "certificate-authority-data": words["ca"]}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        _replace(self.kubeconfig, yaml.safe_dump(config))


def _replace(path: Path, text: str) -> None:
    """Writes a file atomically, as a kubelet does."""
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.replace(path)


# -- tokens of a ServiceAccount -------------------------------------------------------------------


class TokenFile(Credential):
    """A ``tokenFile``."""

    name = "token-file"

    async def issue(self) -> None:
        self.issued = await self._bound_token()
        _replace(self.folder / "token", f"{self.issued.token}\n")
        if not self.kubeconfig.exists():
            self.write_kubeconfig({"tokenFile": "token"})

    async def end(self) -> None:
        await self._kubectl("delete", "secret", self.name)

    async def _bound_token(self) -> Issued:
        """A token that ends with the deletion of its Secret, which may exist."""
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": self.name}}
        await self._kubectl("apply", "-f", "-", input=json.dumps(secret))
        bound = ("--bound-object-kind=Secret", f"--bound-object-name={self.name}")
        token = await self._kubectl("create", "token", ACCOUNT, *SHORT_LIVED, *bound)
        return _issued(token.strip())

    async def _kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002
        command = (*args, "-n", self.namespace)
        return (await asyncio.to_thread(self.cluster.kubectl, *command, input=input)).stdout


def _issued(token: str) -> Issued:
    """A ServiceAccount token with its credential ID."""
    return Issued(f"JTI={claims_of(token)['jti']}", token)


class PodAccount(TokenFile):
    """The ServiceAccount of a pod, whose token file a kubelet replaces while the token is valid.

    The second renewal is of that kind; before the others the token is revoked.
    """

    name = "pod-account"

    @property
    def ref(self) -> KubeconfigRef:
        return KubeconfigRef()

    def environment(self) -> Mapping[str, str]:
        """The variables of the pod; there is no kubeconfig."""
        return {
            "KUBERNETES_SERVICE_HOST": self.users.words["host"],
            "KUBERNETES_SERVICE_PORT": self.users.words["port"],
            "KUBECONFIG": str(self.folder / "missing"),
        }

    async def issue(self) -> None:
        self.issued = await self._bound_token()
        _replace(self.folder / "token", self.issued.token)
        _replace(self.folder / "ca.crt", self.users.words["ca_pem"])

    async def replace(self, client: KubeClient, number: int) -> bool:
        if number != 2:
            return await super().replace(client, number)
        await self.issue()
        async with asyncio.timeout(RELOAD_SECONDS):
            while await _reviewed_identity(client) != self.issued.identity:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        return False


class RequestedToken(TokenFile):
    """A token in the kubeconfig, which the bridge replaces by one that it requests itself
    (`bridge.clusters.token_renewal`). Both are bound to the same Secret; after its deletion an
    administrator writes another token into the file."""

    name = "requested-token"

    async def issue(self) -> None:
        self.issued = await self._bound_token()
        self.write_kubeconfig({"token": self.issued.token})

    async def adopt(self, client: KubeClient) -> None:
        assert await _reviewed_identity(client) == self.issued.identity
        written = self.issued
        await TokenRenewal(client, keep=self._keep, notify=lambda _: None).renew_if_due()
        assert self.issued is not written, "the bridge requested no token"

    async def replace(self, client: KubeClient, number: int) -> bool:
        await super().replace(client, number)
        return False  # The request in `adopt` meets it.

    async def _keep(self, renewed: RenewedToken) -> None:
        self.issued = _issued(renewed.token)


async def _reviewed_identity(client: KubeClient) -> str:
    """The credential ID that the API server reports to the client."""
    review = await client.request("POST", _REVIEW_PATH, body=_REVIEW)
    return str(review["status"]["userInfo"]["extra"][CREDENTIAL_ID][0])


# -- credentials that expire ----------------------------------------------------------------------


class PluginCertificate(Credential):
    """A client certificate that an exec plugin returns, each of another user."""

    name = "plugin-certificate"

    def __init__(self, users: Users, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(users, cluster, namespace, folder)
        self._numbers = itertools.count()
        plugin = folder / "plugin"
        plugin.write_text(f"#!/bin/sh\ncd {folder}\necho run >>runs\ncat credential\n")
        plugin.chmod(0o700)
        version = "client.authentication.k8s.io/v1"
        command = {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}
        self.write_kubeconfig({"exec": command})

    async def issue(self) -> None:
        user = f"plugin-{next(self._numbers)}"
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LIFETIME)
        pair = self.users.clients.issue(user, user, validity=dt.timedelta(seconds=LIFETIME))
        status = {
            "clientCertificateData": pair.certificate.read_text(),
            "clientKeyData": pair.key.read_text(),
            "expirationTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}",
        }
        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        _replace(self.folder / "credential", json.dumps(credential | {"status": status}))
        self.issued = Issued(user, pair=pair)

    def runs(self) -> int:
        """How often the plugin was run."""
        return len((self.folder / "runs").read_text().splitlines())


class OidcTokens(Credential):
    """An OIDC user whose refresh tokens the issuer accepts once, with ID tokens of another user
    each."""

    name = "oidc-tokens"

    def __init__(self, users: Users, cluster: Cluster, namespace: str, folder: Path) -> None:
        super().__init__(users, cluster, namespace, folder)
        self.login = users.issuer.log_in("oidc", LIFETIME)
        settings = {
            "idp-issuer-url": users.words["issuer"],
            "idp-certificate-authority-data": users.words["issuer_ca"],
            "client-id": users.words["client_id"],
            "id-token": self.login.id_token,
            "refresh-token": self.login.refresh_token,
        }
        self.write_kubeconfig({"auth-provider": {"name": "oidc", "config": settings}})

    @property
    def issued(self) -> Issued:  # type: ignore[override]  # The issuer issues the next one.
        return Issued(self.login.user, self.login.id_token)

    async def issue(self) -> None:
        """The issuer does, when the client presents the refresh token."""

    def written_refresh_token(self) -> str:
        """The refresh token in the kubeconfig."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        return str(config["users"][0]["user"]["auth-provider"]["config"]["refresh-token"])


KINDS: Sequence[type[Credential]] = (
    TokenFile,
    PodAccount,
    RequestedToken,
    PluginCertificate,
    OidcTokens,
)
