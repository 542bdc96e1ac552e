"""Who calls, and whether they may: as a kubelet asks, of home's API server.

- A client certificate of home's client CA, which TLS has verified, names the caller. Else a bearer
  token does, by a TokenReview. Nobody else is let in: 401. Where it was asked for (``anonymous``),
  who comes with no credential at all is ``system:anonymous``; one that is bad stays 401.
- What they may is asked by SubjectAccessReview on ``nodes/SUBRESOURCE`` of our node; the finest
  subresource first, then ``proxy`` where a kubelet falls back to it. Denied is 403.
- A review that fails is 500: neither yes nor no is guessed. (A kubelet answers 401 where it is the
  TokenReview; but the token may be good, and who gets a 401 throws it away.)
- TokenReviews are remembered for `TOKEN_LIFETIME`, by a hash of the token, and accesses for
  `ALLOWED_LIFETIME` and `DENIED_LIFETIME`; so many, and no more, as `reviews.SIZE`. The same
  question is not under way twice, and no more than `REVIEWS` of a kind; they do not wait behind the
  requests of a burst of pods.
- No token is in a log, an error or a repr, nor is it kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from bridge.kubelet.authn import (
    ANONYMOUS,
    InvalidCredentialError,
    User,
    bearer_token,
    certificate_user,
    reviewed_user,
    websocket_token,
)
from bridge.net.error_responses import HttpError
from bridge.net.single_flight import SingleFlightCache
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError
from sync.kube.request_limiter import urgent
from sync.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Object, Resource

#: Seconds, as a kubelet's --authentication-token-webhook-cache-ttl.
TOKEN_LIFETIME = 120.0
#: Seconds, as --authorization-webhook-cache-authorized-ttl and -unauthorized-ttl.
ALLOWED_LIFETIME = 300.0
DENIED_LIFETIME = 30.0
#: Seconds that the caller is made to wait for a review, retries included.
REVIEW_TIMEOUT = 10.0

#: Reviews of one kind that are asked for at once: with both kinds half of what `KubeClient` has
#: under way, so that no caller keeps the bridge from its own requests; and callers with tokens that
#: nobody knows keep none from being let in who is known.
REVIEWS = 16

_KINDS = (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a TokenReview says; no user when the token is nobody's."""

    user: User | None


@dataclass(frozen=True, slots=True)
class _Access:
    """What a SubjectAccessReview asks."""

    user: User
    verb: str
    subresource: str


@dataclass(frozen=True, slots=True)
class _Decision:
    allowed: bool


class KubeletAuth:
    """Lets callers in, or refuses them. Call `close` at the end."""

    def __init__(
        self,
        home: KubeClient,
        node_name: str,
        *,
        anonymous: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._node = node_name
        self._anonymous = anonymous
        self._turns = {kind: asyncio.Semaphore(REVIEWS) for kind in _KINDS}
        self._tokens: SingleFlightCache[bytes, _Verdict] = SingleFlightCache(
            lambda _: TOKEN_LIFETIME, clock=clock
        )
        self._accesses: SingleFlightCache[_Access, _Decision] = SingleFlightCache(
            lambda decision: ALLOWED_LIFETIME if decision.allowed else DENIED_LIFETIME, clock=clock
        )

    @property
    def reviews(self) -> dict[tuple[str, ...], int]:
        """How many answers were needed so far, by kind of review and whether it was asked or
        remembered."""
        return {
            ("TokenReview", "asked"): self._tokens.misses,
            ("TokenReview", "remembered"): self._tokens.hits,
            ("SubjectAccessReview", "asked"): self._accesses.misses,
            ("SubjectAccessReview", "remembered"): self._accesses.hits,
        }

    async def close(self) -> None:
        """Ends the reviews that are under way."""
        await self._tokens.close()
        await self._accesses.close()

    # -- who ---------------------------------------------------------------------------------

    async def authenticate(self, request: web.BaseRequest) -> User:
        """The caller. Raises HttpError: 401, or 500 when home cannot be asked."""
        bad = False
        for known in (self._by_certificate, self._by_bearer_token, self._by_websocket_token):
            try:
                user = await known(request)
            except InvalidCredentialError:
                bad = True
                continue
            if user is not None:
                return user
        if self._anonymous and not bad:
            return ANONYMOUS
        raise HttpError(
            401,
            "the caller is not known; come with a client certificate or a bearer token "
            "of the home cluster",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def _by_certificate(self, request: web.BaseRequest) -> User | None:
        tls = request.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        if not certificate:
            return None
        return certificate_user(certificate, tls.getpeercert(binary_form=True), now=time.time())

    async def _by_bearer_token(self, request: web.BaseRequest) -> User | None:
        return await self._by_token(bearer_token(request.headers))

    async def _by_websocket_token(self, request: web.BaseRequest) -> User | None:
        return await self._by_token(websocket_token(request.headers))

    async def _by_token(self, token: str | None) -> User | None:
        if token is None:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        user = (await self._tokens.get(digest, partial(self._review_token, token))).user
        if user is None:
            raise InvalidCredentialError("home does not know the token")
        return user

    async def _review_token(self, token: str) -> _Verdict:
        status = await self._review(TOKEN_REVIEWS, {"token": token})
        return _Verdict(reviewed_user(status))

    # -- whether -----------------------------------------------------------------------------

    async def authorize(self, user: User, verb: str, subresources: tuple[str, ...]) -> None:
        """Returns when one of the subresources is allowed. Raises HttpError: 403, or 500."""
        for subresource in subresources:
            access = _Access(user, verb, subresource)
            decision = await self._accesses.get(access, partial(self._review_access, access))
            if decision.allowed:
                return
        asked = " or ".join(f"nodes/{subresource}" for subresource in subresources)
        raise HttpError(
            403,
            f"user {user.name!r} may not {verb} {asked} of node {self._node!r} in the home "
            "cluster; a ClusterRole there can allow it",
        )

    async def _review_access(self, access: _Access) -> _Decision:
        spec = {
            "user": access.user.name,
            "groups": list(access.user.groups),
            "uid": access.user.uid,
            "extra": {key: list(values) for key, values in access.user.extra},
            "resourceAttributes": {
                "verb": access.verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": access.subresource,
                "name": self._node,
            },
        }
        status = await self._review(SUBJECT_ACCESS_REVIEWS, spec)
        return _Decision(status.get("allowed") is True and status.get("denied") is not True)

    async def _review(self, resource: Resource, spec: Object) -> Object:
        review = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT), self._turns[resource]:
                # Somebody waits for it, and `REVIEWS` bounds what they ask.
                with urgent():
                    answer = await self._home.create(resource, review)
        except (KubeError, TimeoutError) as error:
            log.warning("a %s failed, so a request is refused: %s", resource.kind, error)
            raise HttpError(
                500, f"the home cluster did not answer a {resource.kind}; the bridge's log says why"
            ) from error
        status: Object = answer.get("status") or {}
        return status
