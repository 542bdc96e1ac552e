"""Decides which certificate an in-cluster webhook's replicas serve, and when to renew it.

A Secret holds the newest certificate with its key, and the previous one. Every replica decides by
the same rules from the Secret and the clock, so that none has to lead: a successor is created after
`RENEW` of the newest certificate's lifetime; both are in the CA bundle from then on; the newest is
served when it is `SETTLED` old and in home's CA bundle. Certificates for another host name and
invalid pairs are ignored.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from bridge.certificates import x509_builder
from bridge.certificates.tls_key_pair import (
    CLOCK_SKEW,
    CertificateError,
    TlsKeyPair,
    server_context,
)
from translators.object_accessors import Object

#: The fraction of a certificate's lifetime after which a successor is created.
RENEW = 0.8
#: The age at which every API server has had time to load the CA bundle.
SETTLED = timedelta(minutes=10)
#: The Secret's keys of the newest and the previous certificate.
_KEYS = (("tls.crt", "tls.key"), ("previous.crt", "previous.key"))


@dataclass(frozen=True, slots=True)
class RotatedCertificate:
    """A certificate that the replicas share, with its validity."""

    pair: TlsKeyPair
    created: datetime
    expires: datetime

    def renewal_time(self) -> datetime:
        return self.created + (self.expires - self.created) * RENEW


def read_secret(secret: Object, host: str) -> list[RotatedCertificate]:
    """The Secret's valid certificates for this host name, the newest first."""
    data = secret.get("data") or {}
    found = []
    for certificate, key in _KEYS:
        with suppress(CertificateError, ValueError):
            pair = TlsKeyPair(
                b64decode(data.get(certificate) or ""), b64decode(data.get(key) or "")
            )
            server_context(pair, client_ca="")
            if not x509_builder.missing_names(pair, host, ()):
                begin, end = x509_builder.validity(pair)
                found.append(RotatedCertificate(pair, begin + CLOCK_SKEW, end))
    return found


def create_certificate(host: str, now: datetime | None = None) -> TlsKeyPair:
    """A self-signed certificate for an address or host name, valid from ``now`` on."""
    # Unique: of two CAs with the same name, some clients only try the first.
    common_name = f"cluster-bridge-webhook-{secrets.token_hex(4)}"
    return x509_builder.self_signed(common_name, [host], now=now)


def needs_renewal(known: Sequence[RotatedCertificate], now: datetime) -> bool:
    return not known or now >= known[0].renewal_time()


def secret_data(fresh: TlsKeyPair, known: Sequence[RotatedCertificate], now: datetime) -> Object:
    """The Secret's data with a new certificate. Expired ones are dropped."""
    kept = [fresh, *(it.pair for it in known if it.expires > now)]
    data: Object = {}
    for place, (certificate, key) in enumerate(_KEYS):
        pair = kept[place] if place < len(kept) else None
        data[certificate] = b64encode(pair.certificate).decode() if pair else None
        data[key] = b64encode(pair.key).decode() if pair else None
    return data


def ca_bundle(known: Sequence[RotatedCertificate]) -> bytes:
    """The CA bundle (PEM) that trusts all of them."""
    return b"".join(it.pair.certificate for it in known)


def certificate_to_serve(
    known: Sequence[RotatedCertificate], trusted: bytes, now: datetime
) -> TlsKeyPair | None:
    """The certificate to serve; None if there is none. ``trusted`` is home's current CA bundle."""
    if not known:
        return None
    newest, *before = known
    ready = now >= newest.created + SETTLED and newest.pair.certificate in trusted
    old = next((it for it in before if it.expires > now), None)
    return newest.pair if ready or old is None else old.pair


def seconds_until_change(known: Sequence[RotatedCertificate], now: datetime) -> float:
    """Seconds until any decision changes."""
    if not known:
        return 0.0
    moments = [known[0].renewal_time(), known[0].created + SETTLED, *(it.expires for it in known)]
    return min(((it - now).total_seconds() for it in moments if it > now), default=0.0)
