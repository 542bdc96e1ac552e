"""Admits callers with a bearer token of home to one thing, by TokenReview and SubjectAccessReview.

- Results are cached for `LIFETIME`, as by the API servers of k8s.io/apiserver that delegate to
  another: a revoked token or permission ends that long after.
- A review that home does not answer permits nothing.
- No token appears in a log, an error or a repr.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bridge.kubelet.authn import Authenticator, InvalidCredentialError, ReviewClient, User
from bridge.kubelet.authz import review_access
from bridge.kubelet.error_responses import HttpError
from bridge.net.single_flight_cache import SingleFlightCache
from sync.base import clock
from sync.kube.client import KubeClient
from translators.object_accessors import Object

#: Seconds, as k8s.io/apiserver/pkg/server/options: DelegatingAuthenticationOptions.CacheTTL and
#: DelegatingAuthorizationOptions.AllowCacheTTL and DenyCacheTTL.
LIFETIME = 10.0
#: Longest token, as of `bridge.kubelet.server.MAX_HEADER`.
MAX_TOKEN = 16 * 1024


class TokenAccess:
    """Decides on callers by a review of their access with ``attributes``. ``needed`` completes
    "user X may not ..."; ``unauthenticated`` is the message of a 401. Call `close` at the end."""

    def __init__(
        self,
        home: KubeClient,
        attributes: Object,
        *,
        needed: str,
        unauthenticated: str,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._attributes = attributes
        self._needed = needed
        self._unauthenticated = unauthenticated
        self._reviews = ReviewClient(home)
        self._authenticator = Authenticator(self._reviews, lifetime=LIFETIME, clock=clock)
        self._decisions: SingleFlightCache[User, bool] = SingleFlightCache(
            lambda _: LIFETIME, clock=clock
        )

    async def close(self) -> None:
        await self._authenticator.close()
        await self._decisions.close()

    def unauthenticated(self) -> HttpError:
        """The 401."""
        return HttpError(401, self._unauthenticated, headers={"WWW-Authenticate": "Bearer"})

    async def check(self, token: str | None) -> User:
        """The user of this token. Raises HttpError: 401, 403, or 500 if home does not answer."""
        if not token or len(token) > MAX_TOKEN or not (token.isascii() and token.isprintable()):
            raise self.unauthenticated()
        try:
            user = await self._authenticator.token_user(token)
        except InvalidCredentialError:
            raise self.unauthenticated() from None
        review = partial(review_access, self._reviews, user, self._attributes)
        if not await self._decisions.get(user, review):
            raise HttpError(403, f"user {user.name!r} may not {self._needed}")
        return user
