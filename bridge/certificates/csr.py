"""The serving certificate that home signs (signer ``kubernetes.io/kubelet-serving``).

No built-in controller approves such a request; a person or a program has to. `CsrSource` serves a
self-signed certificate until home has issued one; from then on it keeps to certificates of home,
past their expiry too: clients that verify them reject a self-signed one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.certificates.certificate_kinds import SERVING
from bridge.certificates.csr_approval import Approver
from bridge.certificates.serving_certificate import Clock, UseCertificate, utc_now
from bridge.certificates.signed_certificate import CertificateStore, SignedCertificate
from bridge.certificates.tls_key_pair import TlsKeyPair
from bridge.certificates.x509_builder import self_signed
from sync.kube.client import KubeClient


class CsrSource:
    """A `CertificateSource` of certificates that home signs."""

    def __init__(
        self,
        home: KubeClient,
        node_name: str,
        addresses: Sequence[str],
        store: CertificateStore,
        *,
        approver: Approver,
        notify: Callable[[str], None],
        now: Clock = utc_now,
    ) -> None:
        self._node = node_name
        self._addresses = addresses
        self._now = now
        self._signed = SignedCertificate(
            home,
            SERVING,
            node_name,
            addresses,
            store,
            approver=approver,
            notify=notify,
            now=now,
        )
        self.origin = "self-signed until home has signed one"

    async def first(self) -> TlsKeyPair:
        """The stored certificate if it is still usable, else a self-signed one.

        Raises CertificateError when the store cannot be used.
        """
        stored = await self._signed.stored()
        if stored is None:
            return self_signed(self._node, self._addresses, now=self._now())
        self.origin = f"signed by home, valid until {self._signed.valid_until}"
        return stored

    async def run(self, use: UseCertificate) -> None:
        """Requests a certificate, waits for it, and renews it in time."""
        await self._signed.run(use)
