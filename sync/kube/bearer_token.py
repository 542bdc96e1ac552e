"""Reads what a bearer token states about itself if it is a JWT. The API server verifies it.

`expiry` is the end of any JWT. `account_token` describes a token of a ServiceAccount, by the claims
that API servers write (pkg/serviceaccount of kubernetes/kubernetes).
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from translators.object_accessors import Object

_SUBJECT = "system:serviceaccount:"
#: The kinds of objects that a token can be bound to, by the claim that names the object. A token of
#: a pod names the pod's node too, so the order matters.
_BOUND_KINDS = {"pod": "Pod", "secret": "Secret", "node": "Node"}


@dataclass(frozen=True, slots=True)
class AccountToken:
    """The claims of a ServiceAccount's token."""

    namespace: str
    name: str
    expires: datetime | None
    """None: never, as the tokens in Secrets of type kubernetes.io/service-account-token."""
    lifetime: timedelta
    """From its issue to its end; zero if it does not expire."""
    audiences: tuple[str, ...]
    bound_to: Object | None
    """The ``boundObjectRef`` of the TokenRequest; the token ends with this object."""

    def __str__(self) -> str:
        return f"ServiceAccount {self.namespace}/{self.name}"


def expiry(token: str) -> datetime | None:
    """When a JWT expires (``exp``); None if it does not show that, or is no JWT."""
    return _moment(_claims(token).get("exp"))


def account_token(token: str) -> AccountToken | None:
    """Describes the token of a ServiceAccount; None for any other token."""
    claims = _claims(token)
    subject = str(claims.get("sub") or "")
    namespace, _, name = subject.removeprefix(_SUBJECT).partition(":")
    if not (subject.startswith(_SUBJECT) and namespace and name):
        return None
    issued, expires = _moment(claims.get("iat")), _moment(claims.get("exp"))
    audiences = claims.get("aud") or ()
    return AccountToken(
        namespace,
        name,
        expires,
        expires - issued if issued is not None and expires is not None else timedelta(),
        tuple(map(str, audiences)) if isinstance(audiences, list) else (str(audiences),),
        _bound_to(claims.get("kubernetes.io")),
    )


def _bound_to(claim: object) -> Object | None:
    if not isinstance(claim, dict):
        return None
    for key, kind in _BOUND_KINDS.items():
        found = claim.get(key)
        if isinstance(found, dict) and found.get("name"):
            fields = {"name": found["name"], "uid": found.get("uid")}
            return {"apiVersion": "v1", "kind": kind, **{k: v for k, v in fields.items() if v}}
    return None


def _claims(token: str) -> Object:
    """The claims of a JWT; {} if the token is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _moment(claim: object) -> datetime | None:
    if not isinstance(claim, int | float):
        return None
    try:
        return datetime.fromtimestamp(claim, UTC)
    except (ValueError, OverflowError, OSError):
        return None
