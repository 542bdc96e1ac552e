"""Home decides which viewers may read the page in its cluster, by TokenReview and
SubjectAccessReview.

A viewer needs a valid bearer token of home, and the verb ``get`` on ``services/proxy`` of the
dashboard's own Service: who may reach a Service through home's API server may read its page.

- `bridge.kubelet.token_access` decides, and keeps results for seconds.
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

from aiohttp import web

from bridge.kubelet.authn import InvalidCredentialError, User, bearer_token
from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.token_access import TokenAccess
from sync.kube.client import KubeClient

#: Seconds of a session: a working day.
SESSION_SECONDS = 8 * 3600.0
#: Sessions at the same time, in all and of one user, so that no viewer can sign the others out.
#: Only permitted viewers create them; each has a token of some KiB.
MAX_SESSIONS, MAX_OWN_SESSIONS = 256, 8
#: The prefix has browsers accept the cookie over TLS alone, and send it to this host alone.
COOKIE = "__Host-cluster-bridge-dashboard"


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
        attributes = {
            "verb": "get",
            "version": "v1",
            "resource": "services",
            "subresource": "proxy",
            "namespace": namespace,
            "name": service,
        }
        self._access = TokenAccess(
            home,
            attributes,
            needed=f"get services/proxy of Service {namespace}/{service} in the home cluster; a "
            "Role there can allow it",
            unauthenticated="the viewer is not authenticated; sign in, or send a bearer token of "
            "the home cluster",
            clock=clock,
        )
        self.sessions = ViewerSessions(clock=clock)

    async def close(self) -> None:
        await self._access.close()

    async def viewer_of(self, request: web.BaseRequest) -> Viewer:
        """The viewer who sends the request: the ``Authorization`` header decides, else the session.
        Raises HttpError: 401, 403, or 500 if home does not answer."""
        try:
            token = bearer_token(request.headers)
        except InvalidCredentialError:
            raise self._access.unauthenticated() from None
        if token is not None:
            return await self.check(token)
        identifier = request.cookies.get(COOKIE, "")
        token = self.sessions.token(identifier)
        if token is None:
            raise self._access.unauthenticated()
        try:
            return await self.check(token)
        except HttpError as error:
            if error.status == 401:
                self.sessions.end(identifier)
            raise

    async def check(self, token: str) -> Viewer:
        """The viewer with this token. Raises HttpError as `viewer_of`."""
        return Viewer(await self._access.check(token), token)


def _digest(identifier: str) -> bytes:
    return hashlib.sha256(identifier.encode()).digest()
