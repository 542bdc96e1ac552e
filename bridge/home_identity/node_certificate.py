"""The client certificate by which the bridge is ``system:node:NAME`` at home.

Home signs it for the signer ``kubernetes.io/kube-apiserver-client-kubelet``, as for a kubelet. The
Node authorizer and the NodeRestriction admission plugin of Kubernetes then allow what a kubelet
may: its own Node and Lease, its own pods, what these refer to, and tokens bound to them.

- `NodeCertificate.stored` and `NodeCertificate.request` return the first certificate. A request
  needs an approval (`bridge.certificates.csr_approval`).
- `NodeCertificate.keep_renewed` renews it as the node. kube-controller-manager approves that by
  itself where home binds ``system:nodes`` to the ClusterRole
  ``system:certificates.k8s.io:certificatesigningrequests:selfnodeclient``, as kubeadm does;
  elsewhere the command that approves it is reported, at 70 to 90 % of the validity.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.certificates.certificate_kinds import CLIENT
from bridge.certificates.csr_approval import Approver
from bridge.certificates.serving_certificate import UseCertificate
from bridge.certificates.signed_certificate import CertificateStore, SignedCertificate
from bridge.certificates.tls_key_pair import TlsKeyPair
from sync.kube.client import KubeClient


class NodeCertificate:
    """The certificate of one node in a store."""

    def __init__(
        self,
        node_name: str,
        store: CertificateStore,
        *,
        approver: Approver,
        notify: Callable[[str], None],
    ) -> None:
        self._node = node_name
        self._store = store
        self._approver = approver
        self._notify = notify

    async def stored(self, home: KubeClient) -> TlsKeyPair | None:
        """The stored certificate if it is still usable. Raises CertificateError and KubeError."""
        return await self._signed(home).stored()

    async def request(
        self, account: KubeClient, *, rejected: TlsKeyPair | None = None
    ) -> TlsKeyPair:
        """Requests a certificate and waits until home has signed it, or another replica has stored
        one. Home does not accept the ``rejected`` one. Failures are reported and retried. Raises
        CertificateError if the store cannot be used, and KubeError."""
        signed = self._signed(account)
        stored = await signed.stored()
        return stored if stored not in (None, rejected) else await signed.obtain()

    async def keep_renewed(
        self, home: KubeClient, use: UseCertificate, *, account: KubeClient
    ) -> None:
        """Passes renewed certificates to ``use`` until cancelled. ``home`` acts as the node; after
        its certificate has ended, ``account`` requests the next one."""
        signed = self._signed(home, fallback=account)
        await signed.stored()
        await signed.run(use)

    def _signed(self, home: KubeClient, *, fallback: KubeClient | None = None) -> SignedCertificate:
        return SignedCertificate(
            home,
            CLIENT,
            self._node,
            (),
            self._store,
            approver=self._approver,
            notify=self._notify,
            fallback=fallback,
        )
