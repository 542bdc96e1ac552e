"""The TLS session that the next connections to an API server may go on with.

Of thousands of connections each takes less memory that way: no chain of certificates is sent,
checked, and kept for it again. The server has to be the same: only who has the secrets of the first
connection can go on with it. What was checked then (trust, the name, our own certificate) holds for
`SECONDS`, for connections of the same context and name alone; then a whole handshake is made again.
A server that does not know the session makes one, too, without an error.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from time import monotonic

#: After which certificates are checked anew.
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    session: ssl.SSLSession
    context: ssl.SSLContext
    name: str | None
    until: float


class TlsSessionCache:
    """Of one API server: one session, the newest that came of a whole handshake."""

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def get(self, context: ssl.SSLContext, name: str) -> ssl.SSLSession | None:
        """What a connection of this context to this name may go on with, if there is something."""
        kept = self._kept
        if kept is None or kept.context is not context or kept.name != name:
            return None
        if monotonic() >= kept.until:
            self._kept = None
            return None
        return kept.session

    def put(self, tls: ssl.SSLObject | None) -> None:
        """Takes the session of a connection whose peer has sent something, unless it went on with
        one itself: what was checked would never be checked again."""
        if tls is None or tls.session_reused:
            return
        session = tls.session
        if session is not None and session.has_ticket:
            until = monotonic() + min(SECONDS, session.timeout)
            self._kept = _Kept(session, tls.context, tls.server_hostname, until)
