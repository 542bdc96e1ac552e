"""The certificate that the replicas of a webhook share: which is shown, when comes the next. Pure.

A Secret holds the newest certificate with its key, and the one before. Each replica decides by the
same rule, from that and the clock, so that none has to lead: a new one is made when the newest has
lived `RENEW` of its life; both are trusted from then on; and it is shown when it is `SETTLED` old
and home's API server was told of it. What is good for another name, or is no pair, is not there.
"""

from __future__ import annotations

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
from translators.objects import Object

#: The part of its life after which a certificate gets a successor.
RENEW = 0.8
#: How old one is when every API server has had the time to trust it.
SETTLED = timedelta(minutes=10)
#: Of the newest and the one before: the Secret's keys.
_KEYS = (("tls.crt", "tls.key"), ("previous.crt", "previous.key"))


@dataclass(frozen=True, slots=True)
class RotatedCertificate:
    """One that the replicas share."""

    pair: TlsKeyPair
    created: datetime
    expires: datetime

    def renewal_time(self) -> datetime:
        """When its successor is to be made."""
        return self.created + (self.expires - self.created) * RENEW


def read_secret(secret: Object, host: str) -> list[RotatedCertificate]:
    """What the Secret has for this name, the newest first."""
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


def needs_renewal(known: Sequence[RotatedCertificate], now: datetime) -> bool:
    """Whether another one is to be made now."""
    return not known or now >= known[0].renewal_time()


def secret_data(fresh: TlsKeyPair, known: Sequence[RotatedCertificate], now: datetime) -> Object:
    """The Secret's data with a new certificate. One that has ended is kept no longer."""
    kept = [fresh, *(it.pair for it in known if it.expires > now)]
    data: Object = {}
    for place, (certificate, key) in enumerate(_KEYS):
        pair = kept[place] if place < len(kept) else None
        data[certificate] = b64encode(pair.certificate).decode() if pair else None
        data[key] = b64encode(pair.key).decode() if pair else None
    return data


def ca_bundle(known: Sequence[RotatedCertificate]) -> bytes:
    """What is to be trusted."""
    return b"".join(it.pair.certificate for it in known)


def certificate_to_serve(
    known: Sequence[RotatedCertificate], trusted: bytes, now: datetime
) -> TlsKeyPair | None:
    """The one to show; None where there is none. ``trusted``: what home's API server was told."""
    if not known:
        return None
    newest, *before = known
    ready = now >= newest.created + SETTLED and newest.pair.certificate in trusted
    old = next((it for it in before if it.expires > now), None)
    return newest.pair if ready or old is None else old.pair


def seconds_until_change(known: Sequence[RotatedCertificate], now: datetime) -> float:
    """Seconds until any of this is another."""
    if not known:
        return 0.0
    moments = [known[0].renewal_time(), known[0].created + SETTLED, *(it.expires for it in known)]
    return min(((it - now).total_seconds() for it in moments if it > now), default=0.0)
