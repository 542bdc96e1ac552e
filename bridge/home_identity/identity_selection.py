"""Selects who the bridge is at home: the virtual node, or its own account.

``--home-identity auto`` is the node if

- a certificate of the node is stored (in `--cert-dir`, or in the Secret that the replicas in home's
  cluster share, `--state-secret`) and home accepts it, or
- this process may request one and approve the request, after one question on the terminal or with
  ``--yes``, or
- a bootstrap credential is given (``--home-bootstrap-kubeconfig``), which requests it as a kubelet
  does, or
- the account lacks the permissions to act in place of the node; the bridge then waits until an
  administrator has approved its request.

Otherwise it is the account, as where home has no signer, no Node authorizer, or no TLS. With
``node`` or ``service-account`` nothing else is tried. The choice and its reason are reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.base.consent import Consent
from bridge.base.join_settings import HomeIdentity, JoinSettings
from bridge.certificates.cert_dir import CertDir, default_cert_dir
from bridge.certificates.certificate_kinds import CLIENT
from bridge.certificates.csr_approval import Approver
from bridge.certificates.secret_store import SecretStore
from bridge.certificates.signed_certificate import CertificateStore
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair
from bridge.clusters.connection import as_preflight_errors, cluster_uid, connect
from bridge.home_identity.node_certificate import NodeCertificate
from bridge.rbac import permissions
from bridge.rbac.permissions import NODE, Permission
from sync.base.background_task import cancel_and_wait
from sync.kube import in_cluster
from sync.kube.api_errors import Forbidden, Unauthorized
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.credentials import CertificateCredentials
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.virtual_node_identity import home_id_from_uid

#: Seconds from an approval to a signature before ``auto`` falls back to the account: home's signer
#: takes less than one.
SIGNING_SECONDS = 15
#: Permission that only the Node authorizer gives to a node's credential.
_AS_NODE = Permission(NODES, ("patch",), names=(NODE,))

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HomeClients:
    """The bridge's clients of home."""

    identity: HomeIdentity
    reason: str
    """Why it is that, for people."""
    home: KubeClient
    """Acts as the virtual node; the same client as ``account`` for ``service-account``."""
    account: KubeClient
    """Acts as the bridge's own account."""
    certificate: NodeCertificate | None = None
    """The node's certificate; None for ``service-account``."""

    @staticmethod
    def of_account(account: KubeClient, reason: str) -> HomeClients:
        """The clients of a bridge that is its own account."""
        return HomeClients("service-account", reason, account, account)

    async def keep_renewed(self) -> None:
        """Renews the certificate until cancelled; returns at once if there is none."""
        credentials = self.home.credentials
        if self.certificate is not None and isinstance(credentials, CertificateCredentials):
            await self.certificate.keep_renewed(
                self.home,
                lambda pair: credentials.replace_certificate(pair.certificate, pair.key),
                account=self.account,
            )


class _NoNodeIdentityError(Exception):
    """Home does not let the bridge be the node; the message states why."""


@asynccontextmanager
async def home_clients(
    settings: JoinSettings,
    account: KubeClient,
    node: str,
    *,
    consent: Consent,
    notify: Callable[[str], None],
) -> AsyncIterator[HomeClients]:
    """The clients of a join. Raises PreflightError and CertificateError."""
    async with AsyncExitStack() as stack:
        with as_preflight_errors("home"):
            clients = await _Selection(settings, account, node, consent, notify, stack).select()
        title = "node" if clients.identity == "node" else "its own account"
        notify(f"home: the bridge acts as {title} ({clients.reason})")
        yield clients


@dataclass(frozen=True, slots=True)
class _Selection:
    settings: JoinSettings
    account: KubeClient
    node: str
    consent: Consent
    notify: Callable[[str], None]
    stack: AsyncExitStack
    """Closes the node's client."""

    @property
    def is_free(self) -> bool:
        """Whether another identity may be selected where this one is not to be had."""
        return self.settings.home_identity == "auto"

    async def select(self) -> HomeClients:
        if self.settings.home_identity == "service-account":
            return HomeClients.of_account(self.account, "by --home-identity")
        try:
            return await self._as_node()
        except _NoNodeIdentityError as problem:
            if not self.is_free:
                raise PreflightError(
                    f"home: the bridge cannot be node {self.node}: {problem}"
                ) from None
            return HomeClients.of_account(self.account, str(problem))

    async def _as_node(self) -> HomeClients:
        if not self.account.endpoint.uses_tls:
            raise _NoNodeIdentityError("home's API server has no TLS")
        in_pod = self.account.credentials.in_cluster
        store = await (self._secret_store() if in_pod else self._cert_dir())
        pair = None
        if await store.current() is not None:
            certificate = self._certificate(store)
            pair = await certificate.stored(self.account)
            if pair is not None:
                try:
                    reason = "its certificate is stored"
                    return await self._with_certificate(certificate, pair, reason)
                except Unauthorized:
                    message = "home: does not accept the stored certificate of node %s"
                    log.warning(message, self.node)
        async with self._requester() as requester:
            reason = await self._reason_to_request(requester)
            certificate = self._certificate(store)
            pair = await self._request(certificate, requester, rejected=pair)
        try:
            return await self._with_certificate(certificate, pair, reason)
        except Unauthorized as error:
            signer = requester.endpoint.server
            raise PreflightError(
                f"home: does not accept the certificate that {signer} signed for "
                f"node {self.node}; is --home-bootstrap-kubeconfig for another cluster?"
                if self.settings.home_bootstrap is not None
                else f"home: does not accept the certificate that it signed for node {self.node}; "
                "the API server's --client-ca-file lacks the CA of its signer"
            ) from error

    async def _secret_store(self) -> CertificateStore:
        name, namespace = self.settings.state_secret, in_cluster.namespace()
        if name is None:
            raise _NoNodeIdentityError("a bridge in a pod needs --state-secret for that")
        required = permissions.for_state_secret(namespace, name)
        if lacking := await permissions.missing_permissions(self.account, required, self.node):
            what = f"Secret {namespace}/{name}"
            raise _NoNodeIdentityError(f"the ServiceAccount may not {', '.join(lacking)} of {what}")
        store = SecretStore(self.account, namespace, name)
        try:
            await store.prepare()
        except CertificateError as error:
            raise _NoNodeIdentityError(str(error)) from error
        return store

    async def _cert_dir(self) -> CertificateStore:
        try:
            home_id = home_id_from_uid(await cluster_uid(self.account))
        except Forbidden as error:
            raise _NoNodeIdentityError(error.message) from error
        try:
            folder = self.settings.cert_dir or default_cert_dir(home_id, self.node)
        except CertificateError as error:
            raise _NoNodeIdentityError(str(error)) from error
        return CertDir(folder.expanduser().absolute(), "client")

    def _certificate(self, store: CertificateStore) -> NodeCertificate:
        approver = Approver(self.account, permissions.may_approve, self.consent)
        return NodeCertificate(self.node, store, approver=approver, notify=self.notify)

    @asynccontextmanager
    async def _requester(self) -> AsyncIterator[KubeClient]:
        """The client that requests a certificate. Raises PreflightError."""
        if self.settings.home_bootstrap is None:
            yield self.account
            return
        ref = KubeconfigRef(self.settings.home_bootstrap)
        async with connect(ref, side="home", notify=self.notify) as client:
            yield client

    async def _reason_to_request(self, requester: KubeClient) -> str:
        """Why to request a certificate. Raises _NoNodeIdentityError if it would be in vain, or an
        administrator has to be waited for without need."""
        account = self.account
        lacking = await permissions.missing_permissions(
            requester, permissions.HOME_CERTIFICATES, self.node
        )
        if lacking:
            raise _NoNodeIdentityError(f"the credential may not {', '.join(lacking)}")
        if not self.is_free:
            return "by --home-identity"
        if self.settings.home_bootstrap is not None:
            return "its certificate was requested by the bootstrap credential"
        if self.consent.is_possible and await permissions.may_approve(account, CLIENT.signer):
            return "home signed its certificate"
        if not await self._may_act_in_place():
            return "the credential may not act in its place"
        raise _NoNodeIdentityError(
            "this command cannot approve a certificate of the node; --home-identity node waits for "
            "an administrator who does"
        )

    async def _may_act_in_place(self) -> bool:
        """Whether the account has the permissions to act in place of the node."""
        in_place_of_node = permissions.in_place_of_node("service-account")
        return not await permissions.missing_permissions(self.account, in_place_of_node, self.node)

    async def _request(
        self,
        certificate: NodeCertificate,
        requester: KubeClient,
        *,
        rejected: TlsKeyPair | None,
    ) -> TlsKeyPair:
        """Waits for the certificate: for ever, unless another identity may be selected."""
        requesting = asyncio.create_task(
            certificate.request(requester, rejected=rejected), name="node-certificate"
        )
        try:
            unsigned = 0
            while not (await asyncio.wait({requesting}, timeout=1))[0]:
                if self.is_free and self.consent.is_refused and await self._may_act_in_place():
                    raise _NoNodeIdentityError("a certificate of the node was not approved")
                unsigned += self.consent.is_given
                if self.is_free and unsigned >= SIGNING_SECONDS:
                    raise _NoNodeIdentityError(
                        f"home has not signed an approved certificate in {SIGNING_SECONDS} s"
                    )
            return requesting.result()
        finally:
            await cancel_and_wait(requesting)

    async def _with_certificate(
        self, certificate: NodeCertificate, pair: TlsKeyPair, reason: str
    ) -> HomeClients:
        """Raises Unauthorized if home does not accept the certificate."""
        account = self.account
        credentials = CertificateCredentials(account.credentials, pair.certificate, pair.key)
        client = KubeClient(credentials, beside=account)
        await self.stack.enter_async_context(client)
        if await permissions.missing_permissions(client, [_AS_NODE], self.node):
            raise _NoNodeIdentityError("home's API server does not run the Node authorizer")
        return HomeClients("node", reason, client, self.account, certificate)
