"""Authenticates callers of the kubelet API, as a kubelet does.

A client certificate of home's client CA, verified by TLS, names the caller; else a bearer token
does, which home checks in a TokenReview. Everyone else gets 401. The rules follow
k8s.io/apiserver/pkg/authentication/request (x509, bearertoken, websocket) and group.

- A TokenReview that fails is answered with 500. (A kubelet answers 401; but the token may be valid,
  and clients discard a token after a 401.)
- Results of TokenReviews are cached by a hash of the token, for `TOKEN_LIFETIME`, and at most
  `single_flight_cache.SIZE` of them. Equal reviews share one request, and at most `MAX_REVIEWS` of
  a kind are in flight; they take precedence over the requests of a burst of pods.
- No token appears in a log, an error or a repr, and none is stored.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from bridge.kubelet.error_responses import HttpError
from bridge.net.single_flight_cache import SingleFlightCache
from sync.base import clock
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Object, Resource
from sync.kube.client import KubeClient
from sync.kube.request_limiter import urgent

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = "system:anonymous"

#: Seconds, as a kubelet's --authentication-token-webhook-cache-ttl.
TOKEN_LIFETIME = 120.0
#: Seconds that a caller waits for a review, retries included.
REVIEW_TIMEOUT = 10.0
#: Reviews of one kind in flight: both kinds together are half of what `KubeClient` has in flight,
#: so that callers leave room for the bridge's own requests, and unknown tokens do not delay
#: authenticated callers.
MAX_REVIEWS = 16

#: Prefix of a bearer token among the subprotocols of a WebSocket, which is how browsers send one.
TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."  # noqa: S105  # a prefix, not a token
#: Object identifier of the subject's attribute with the user's UID.
_UID = "1.3.6.1.4.1.57683.2"
_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
#: Base64url without padding (RFC 4648 section 5).
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")

Headers = CIMultiDict[str] | CIMultiDictProxy[str]

log = logging.getLogger(__name__)


class InvalidCredentialError(Exception):
    """The request has a credential that is expired, malformed or unknown."""


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated caller, as in home's RBAC."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


# -- credentials (pure): None means that the request has no such credential ------------------------


def certificate_user(certificate: Mapping[str, Any], der: bytes, *, now: float) -> User | None:
    """The user of a verified certificate, given in both forms of `ssl.SSLObject.getpeercert`.

    The common name is the user's name, each organization a group. ``now`` is in seconds since the
    epoch: a connection may outlive its certificate. Raises InvalidCredentialError.
    """
    subject = [pair for relative in certificate.get("subject", ()) for pair in relative]
    names, uids = _attribute_values(subject, "commonName"), _attribute_values(subject, _UID)
    if not names or not names[-1] or names[-1] == ANONYMOUS:
        return None
    if ssl.cert_time_to_seconds(str(certificate["notAfter"])) < now:
        raise InvalidCredentialError("the certificate has expired")
    if len(uids) > 1 or "" in uids:
        raise InvalidCredentialError("the certificate has more than one UID, or an empty one")
    return User(
        names[-1],
        _with_authenticated(_attribute_values(subject, "organizationName")),
        uid="".join(uids),
        extra=((_CREDENTIAL_ID, ("X509SHA256=" + hashlib.sha256(der).hexdigest(),)),),
    )


def _attribute_values(subject: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [value for key, value in subject if key == name]


def bearer_token(headers: Headers) -> str | None:
    """The token of the ``Authorization`` header. Raises InvalidCredentialError."""
    scheme, _, rest = headers.get("Authorization", "").strip().partition(" ")
    token = rest.partition(" ")[0]
    return _checked_token(token) if scheme.lower() == "bearer" and token else None


def websocket_token(headers: Headers) -> str | None:
    """The token among the subprotocols of a WebSocket. Raises InvalidCredentialError."""
    if headers.get("Upgrade", "").lower() != "websocket":
        return None
    offered = ",".join(headers.getall("Sec-WebSocket-Protocol", [])).split(",")
    protocols = [protocol.strip() for protocol in offered]
    tokens = [it.removeprefix(TOKEN_PROTOCOL) for it in protocols if it.startswith(TOKEN_PROTOCOL)]
    if not tokens:
        return None
    if len(tokens) > 1 or len(protocols) < 2:
        raise InvalidCredentialError("a WebSocket needs one token and one other subprotocol")
    if not _BASE64URL.fullmatch(tokens[0]):
        raise InvalidCredentialError("the token of the WebSocket is not base64url")
    try:
        padded = tokens[0] + "=" * (-len(tokens[0]) % 4)
        return _checked_token(base64.urlsafe_b64decode(padded).decode()) or None
    except ValueError as error:
        raise InvalidCredentialError("the token of the WebSocket is not UTF-8") from error


def _checked_token(token: str) -> str:
    """Rejects characters that no token of home has, so that none gets into JSON."""
    if not (token.isascii() and token.isprintable()):
        raise InvalidCredentialError("the token has characters that no token has")
    return token


def reviewed_user(status: Object) -> User | None:
    """The user in a TokenReview's status; None if the token is not authenticated."""
    user: Object = status.get("user") or {}
    name = user.get("username")
    if status.get("authenticated") is not True or not name or name == ANONYMOUS:
        return None
    extra: Mapping[str, list[str]] = user.get("extra") or {}
    return User(
        str(name),
        _with_authenticated(user.get("groups") or []),
        uid=str(user.get("uid") or ""),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )


def _with_authenticated(groups: list[str]) -> tuple[str, ...]:
    """Adds ``system:authenticated`` unless the groups already decide that."""
    decided = AUTHENTICATED in groups or UNAUTHENTICATED in groups
    return tuple(groups) if decided else (*groups, AUTHENTICATED)


# -- reviews by home -------------------------------------------------------------------------------


class ReviewClient:
    """Creates TokenReviews and SubjectAccessReviews in home, `MAX_REVIEWS` of a kind at a time."""

    def __init__(self, home: KubeClient) -> None:
        self._home = home
        kinds = (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS)
        self._slots = {kind: asyncio.Semaphore(MAX_REVIEWS) for kind in kinds}

    async def create(self, resource: Resource, spec: Object) -> Object:
        """The status of the review. Raises HttpError (500) if home does not answer."""
        review = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT), self._slots[resource]:
                with urgent():  # a caller waits, and `MAX_REVIEWS` bounds the requests
                    answer = await self._home.create(resource, review)
        except (KubeError, TimeoutError) as error:
            log.warning("home: a %s failed, so a request is rejected: %s", resource.kind, error)
            raise HttpError(
                500, f"the home cluster did not answer a {resource.kind}; see the log of the bridge"
            ) from error
        status: Object = answer.get("status") or {}
        return status


@dataclass(frozen=True, slots=True)
class _TokenResult:
    """Result of a TokenReview; no user if home does not know the token."""

    user: User | None


class Authenticator:
    """Authenticates requests. Call `close` at the end."""

    def __init__(self, reviews: ReviewClient, *, clock: Callable[[], float] = clock.now) -> None:
        self._reviews = reviews
        self.tokens: SingleFlightCache[bytes, _TokenResult] = SingleFlightCache(
            lambda _: TOKEN_LIFETIME, clock=clock
        )
        """Results of TokenReviews by the SHA-256 of their token."""

    async def close(self) -> None:
        await self.tokens.close()

    async def authenticate(self, request: web.BaseRequest) -> User:
        """The caller. Raises HttpError: 401, or 500 if home does not answer."""
        for method in (
            _by_certificate,
            partial(self._by_token, bearer_token),
            partial(self._by_token, websocket_token),
        ):
            try:
                user = await method(request)
            except InvalidCredentialError:
                continue
            if user is not None:
                return user
        raise HttpError(
            401,
            "the caller is not authenticated; use a client certificate or a bearer token of the "
            "home cluster",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def _by_token(
        self, find_token: Callable[[Headers], str | None], request: web.BaseRequest
    ) -> User | None:
        token = find_token(request.headers)
        return await self.token_user(token) if token is not None else None

    async def token_user(self, token: str) -> User:
        """The user of a token. Raises InvalidCredentialError, and HttpError (500)."""
        digest = hashlib.sha256(token.encode()).digest()
        user = (await self.tokens.get(digest, partial(self._review, token))).user
        if user is None:
            raise InvalidCredentialError("home does not know the token")
        return user

    async def _review(self, token: str) -> _TokenResult:
        return _TokenResult(
            reviewed_user(await self._reviews.create(TOKEN_REVIEWS, {"token": token}))
        )


async def _by_certificate(request: web.BaseRequest) -> User | None:
    tls = request.get_extra_info("ssl_object")
    certificate = tls.getpeercert() if tls is not None else None
    if not certificate:
        return None
    return certificate_user(certificate, tls.getpeercert(binary_form=True), now=time.time())
