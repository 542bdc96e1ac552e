"""Requests a serving certificate from home only where one is needed (``--serving-certificate
auto``).

`AutoSource` serves a self-signed certificate until a client of the kubelet API rejects it. An API
server that runs with ``--kubelet-certificate-authority`` then ends the handshake with the TLS alert
bad_certificate, as every Go program that verifies certificates (crypto/tls). The bridge's server
sees that alert: this needs no permission and no request, cannot be confused with a network failure,
and detects a later change of home's options too. Clients that use OpenSSL send unknown_ca instead,
so that ``curl`` in a terminal requests nothing. Any Go program that reaches the port can send the
alert, which leads to one request at home, for exactly the names of this node.

Users should not have to see the first ``kubectl logs`` fail. So ``probe`` has home's API server
connect once, as soon as the Node leads to this bridge. Its credential needs ``get nodes/proxy``,
which administrators have. The Roles of `bridge rbac` grant it to no bridge, not even for its own
node: the bridge writes the address in that Node's status, and a user who stole its credential
could write the address of a real kubelet there and run commands on it through home's API server.
Such a bridge sees the alert at the first ``kubectl logs``, or when an administrator runs ``bridge
check NODE``.

A certificate in the directory, a pending request there, or the join record of a bridge of this node
that needed a certificate count as known demand: the bridge uses or requests one at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from bridge.base.progress_lines import Caveat
from bridge.certificates.serving_certificate import (
    CertificateSource,
    SelfSignedSource,
    UseCertificate,
)
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair

log = logging.getLogger(__name__)


class CertificateDemand:
    """Whether clients of the kubelet API need a certificate signed by home."""

    def __init__(self) -> None:
        self.node_registered = asyncio.Event()
        """Set once the Node leads to this bridge."""
        self.known = asyncio.Event()
        """Set once a client needs a certificate signed by home."""
        self.reason = ""

    def report(self, reason: str) -> None:
        """Reports a need; the first reason counts."""
        self.reason = self.reason or reason
        self.known.set()


class AutoSource:
    """A `CertificateSource` that is self-signed until there is a `CertificateDemand`.

    ``signed`` makes the source of certificates signed by home, ``is_stored`` returns whether the
    store holds something of an earlier one. ``on_signed`` is called when the bridge begins to use
    home as the signer.
    """

    def __init__(
        self,
        node_name: str,
        addresses: Sequence[str],
        demand: CertificateDemand,
        *,
        signed: Callable[[], CertificateSource],
        is_stored: Callable[[], bool],
        probe: Callable[[], Awaitable[None]],
        on_signed: Callable[[], None],
        notify: Callable[[str], None],
    ) -> None:
        self._self_signed = SelfSignedSource(node_name, addresses)
        self._demand = demand
        self._make_signed = signed
        self._is_stored = is_stored
        self._probe = probe
        self._on_signed = on_signed
        self._notify = notify
        self._signed: CertificateSource | None = None
        self.origin = "self-signed; home signs one if its API server verifies certificates"

    async def first(self) -> TlsKeyPair:
        """The stored certificate, or else a self-signed one. An unusable store is logged: whether a
        certificate is needed at all is not known yet."""
        if self._is_stored():
            signed = self._make_signed()
            try:
                pair = await signed.first()
            except CertificateError as error:
                log.warning("the stored serving certificate is not used: %s", error)
            else:
                self._signed, self.origin = signed, signed.origin
                self._on_signed()
                return pair
        return await self._self_signed.first()

    async def run(self, use: UseCertificate) -> None:
        """Renews the self-signed certificate until there is a demand, then those of home."""
        if self._signed is None:
            await self._until_demanded(use)
            self._notify(
                Caveat(
                    f"home: {self._demand.reason}; kubectl logs and exec fail until home has "
                    "signed the kubelet API's certificate"
                )
            )
            self._signed = self._make_signed()
            self._on_signed()
        await self._signed.run(use)

    async def _until_demanded(self, use: UseCertificate) -> None:
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._self_signed.run(use), name="self-signed-certificate")
            probing = group.create_task(self._probe_once_registered(), name="kubelet-api-probe")
            await self._demand.known.wait()
            renewing.cancel()
            probing.cancel()

    async def _probe_once_registered(self) -> None:
        await self._demand.node_registered.wait()
        await self._probe()
