"""Who a caller is by the credential that they come with. Pure.

After k8s.io/apiserver/pkg/authentication/request (x509, bearertoken, websocket) and group: a client
certificate names its caller; a token is read here and asked about by `bridge.kubelet.authz`. None
is "no such credential"; `BadCredential` is one that is there and worth nothing, which must not
become an anonymous caller.
"""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from sync.kube.resources import Object

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"

#: A browser's way to send a bearer token, among the subprotocols of a WebSocket.
TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."  # noqa: S105  # no token, its mark
#: The attribute of a subject that holds the user's UID.
_UID = "1.3.6.1.4.1.57683.2"
_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"

#: Without padding (RFC 4648 section 5).
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

Headers = CIMultiDict[str] | CIMultiDictProxy[str]


class InvalidCredentialError(Exception):
    """It proves nothing: expired, malformed, or nobody's."""


@dataclass(frozen=True, slots=True)
class User:
    """A caller, as home knows them."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


def certificate_user(certificate: Mapping[str, Any], der: bytes, *, now: float) -> User | None:
    """The user of a verified certificate, in both forms of `ssl.SSLObject.getpeercert`.

    CN is the name and every O a group. ``now`` is in seconds since the epoch: a connection may
    outlive the certificate that it was opened with. Raises BadCredential.
    """
    subject = [pair for relative in certificate.get("subject", ()) for pair in relative]
    names, uids = _values(subject, "commonName"), _values(subject, _UID)
    if not names or not names[-1] or names[-1] == ANONYMOUS.name:
        return None
    if ssl.cert_time_to_seconds(str(certificate["notAfter"])) < now:
        raise InvalidCredentialError("the certificate has expired")
    if len(uids) > 1 or "" in uids:
        raise InvalidCredentialError("the certificate has no single UID")
    return User(
        names[-1],
        _groups(_values(subject, "organizationName")),
        uid="".join(uids),
        extra=((_CREDENTIAL_ID, ("X509SHA256=" + hashlib.sha256(der).hexdigest(),)),),
    )


def _values(subject: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in subject if key == name]


def bearer_token(headers: Headers) -> str | None:
    """The token of the ``Authorization`` header. Raises BadCredential."""
    scheme, _, rest = headers.get("Authorization", "").strip().partition(" ")
    token = rest.partition(" ")[0]
    return _sendable(token) if scheme.lower() == "bearer" and token else None


def websocket_token(headers: Headers) -> str | None:
    """The token among a WebSocket's subprotocols. Raises BadCredential."""
    if headers.get("Upgrade", "").lower() != "websocket":
        return None
    offered = ",".join(headers.getall("Sec-WebSocket-Protocol", [])).split(",")
    protocols = [protocol.strip() for protocol in offered]
    tokens = [it.removeprefix(TOKEN_PROTOCOL) for it in protocols if it.startswith(TOKEN_PROTOCOL)]
    if not tokens:
        return None
    if len(tokens) > 1 or len(protocols) < 2:
        raise InvalidCredentialError("one token, and one more subprotocol to answer with")
    if not _BASE64URL.fullmatch(tokens[0]):
        raise InvalidCredentialError("the token of the WebSocket is not base64url")
    try:
        padded = tokens[0] + "=" * (-len(tokens[0]) % 4)
        return _sendable(base64.urlsafe_b64decode(padded).decode()) or None
    except ValueError as error:
        raise InvalidCredentialError("the token of the WebSocket is no text") from error


def _sendable(token: str) -> str:
    """No token of home's has other characters, and others need not go into JSON."""
    if not (token.isascii() and token.isprintable()):
        raise InvalidCredentialError("the token has characters that no token has")
    return token


def reviewed_user(status: Object) -> User | None:
    """The user of a TokenReview's status."""
    user: Object = status.get("user") or {}
    name = user.get("username")
    if status.get("authenticated") is not True or not name or name == ANONYMOUS.name:
        return None
    extra: Mapping[str, list[str]] = user.get("extra") or {}
    return User(
        str(name),
        _groups(user.get("groups") or []),
        uid=str(user.get("uid") or ""),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )


def _groups(groups: list[str]) -> tuple[str, ...]:
    """With that of everybody who is known, unless they are said to be in it, or not to be."""
    told = AUTHENTICATED in groups or UNAUTHENTICATED in groups
    return tuple(groups) if told else (*groups, AUTHENTICATED)
