"""Home decides which viewers may read the page in its cluster, by TokenReview and
SubjectAccessReview.

A viewer needs a valid bearer token of home, and the verb ``get`` on ``services/proxy`` of the
dashboard's own Service: who may reach a Service through home's API server may read its page.

- Results are cached for `LIFETIME`, as by the API servers of k8s.io/apiserver that delegate to
  another: a revoked token or permission ends that long after.
- A review that home does not answer permits nothing.
- A session holds the token of a viewer who signed in, in memory alone, so that the browser needs
  none: its cookie is a random identifier. It ends after `SESSION_SECONDS`, when the viewer signs
  out, or when home rejects the token. One more than `MAX_OWN_SESSIONS` of a user, or than
  `MAX_SESSIONS` in all, ends the oldest of these.
- No token and no session's identifier appears in a log, an error or a repr.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from bridge.kubelet.authn import (
    Authenticator,
    InvalidCredentialError,
    ReviewClient,
    User,
    bearer_token,
)
from bridge.kubelet.authz import review_access
from bridge.kubelet.error_responses import HttpError
from bridge.net.single_flight_cache import SingleFlightCache
from sync.kube.client import KubeClient

#: Seconds, as k8s.io/apiserver/pkg/server/options: DelegatingAuthenticationOptions.CacheTTL and
#: DelegatingAuthorizationOptions.AllowCacheTTL and DenyCacheTTL.
LIFETIME = 10.0
#: Seconds of a session: a working day.
SESSION_SECONDS = 8 * 3600.0
#: Sessions at the same time, in all and of one user, so that no viewer can sign the others out.
#: Only permitted viewers create them; each has a token of some KiB.
MAX_SESSIONS, MAX_OWN_SESSIONS = 256, 8
#: The prefix has browsers accept the cookie over TLS alone, and send it to this host alone.
COOKIE = "__Host-cluster-bridge-dashboard"
#: Longest token, as of `bridge.kubelet.server.MAX_HEADER`.
MAX_TOKEN = 16 * 1024


@dataclass(frozen=True, slots=True)
class Viewer:
    """A permitted viewer."""

    user: User
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Session:
    viewer: Viewer
    end: float


class ViewerSessions:
    """The tokens of viewers who signed in, by the hash of their session's identifier."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}

    def begin(self, viewer: Viewer) -> str:
        """Creates a session, and returns its identifier."""
        self._drop_ended()
        name = viewer.user.name
        own = [it for it, session in self._sessions.items() if session.viewer.user.name == name]
        if len(own) >= MAX_OWN_SESSIONS:
            del self._sessions[own[0]]
        elif len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        identifier = secrets.token_urlsafe(32)
        session = _Session(viewer, self._clock() + SESSION_SECONDS)
        self._sessions[_digest(identifier)] = session
        return identifier

    def token(self, identifier: str) -> str | None:
        """The token of a session; None if there is none."""
        self._drop_ended()
        found = self._sessions.get(_digest(identifier))
        return found.viewer.token if found is not None else None

    def end(self, identifier: str) -> None:
        """Ends a session, if there is one."""
        self._sessions.pop(_digest(identifier), None)

    def _drop_ended(self) -> None:
        now = self._clock()
        for digest in [it for it, session in self._sessions.items() if session.end <= now]:
            del self._sessions[digest]


class ViewerAccess:
    """Decides on viewers of one Service. Call `close` at the end."""

    def __init__(
        self,
        home: KubeClient,
        namespace: str,
        service: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._attributes = {
            "verb": "get",
            "version": "v1",
            "resource": "services",
            "subresource": "proxy",
            "namespace": namespace,
            "name": service,
        }
        self._reviews = ReviewClient(home)
        self._authenticator = Authenticator(self._reviews, lifetime=LIFETIME, clock=clock)
        self._decisions: SingleFlightCache[User, bool] = SingleFlightCache(
            lambda _: LIFETIME, clock=clock
        )
        self.sessions = ViewerSessions(clock=clock)

    async def close(self) -> None:
        await self._authenticator.close()
        await self._decisions.close()

    async def viewer_of(self, request: web.BaseRequest) -> Viewer:
        """The viewer who sends the request: the ``Authorization`` header decides, else the session.
        Raises HttpError: 401, 403, or 500 if home does not answer."""
        try:
            token = bearer_token(request.headers)
        except InvalidCredentialError:
            raise _unauthenticated() from None
        if token is not None:
            return await self.check(token)
        identifier = request.cookies.get(COOKIE, "")
        token = self.sessions.token(identifier)
        if token is None:
            raise _unauthenticated()
        try:
            return await self.check(token)
        except HttpError as error:
            if error.status == 401:
                self.sessions.end(identifier)
            raise

    async def check(self, token: str) -> Viewer:
        """The viewer with this token. Raises HttpError as `viewer_of`."""
        if not token or len(token) > MAX_TOKEN or not (token.isascii() and token.isprintable()):
            raise _unauthenticated()
        try:
            user = await self._authenticator.token_user(token)
        except InvalidCredentialError:
            raise _unauthenticated() from None
        review = partial(review_access, self._reviews, user, self._attributes)
        if not await self._decisions.get(user, review):
            namespace, name = self._attributes["namespace"], self._attributes["name"]
            raise HttpError(
                403,
                f"user {user.name!r} may not get services/proxy of Service {namespace}/{name} in "
                "the home cluster; a Role there can allow it",
            )
        return Viewer(user, token)


def _unauthenticated() -> HttpError:
    return HttpError(
        401,
        "the viewer is not authenticated; sign in, or send a bearer token of the home cluster",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _digest(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode()).digest()
