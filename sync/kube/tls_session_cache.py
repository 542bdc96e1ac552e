"""Caches the TLS session that the next connections to an API server resume.

With thousands of connections resumption saves memory: no certificate chain is sent, verified and
kept per connection. The verification of the first connection is reused for `SECONDS`, by
connections with the same context and name only; then a full handshake follows, as with a server
that does not know the session.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from sync.base import clock

#: Seconds after which certificates are verified again.
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Entry:
    session: ssl.SSLSession
    context: ssl.SSLContext
    name: str | None
    until: float


class TlsSessionCache:
    """One session of one API server: the newest of a full handshake."""

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def get(self, context: ssl.SSLContext, name: str) -> ssl.SSLSession | None:
        """The session that a connection with this context to this name may resume, if any."""
        entry = self._entry
        if entry is None or entry.context is not context or entry.name != name:
            return None
        if clock.now() >= entry.until:
            self._entry = None
            return None
        return entry.session

    def put(self, tls: ssl.SSLObject | None) -> None:
        """Stores the session of a connection that has received data, unless it was resumed itself:
        certificates would never be verified again."""
        if tls is None or tls.session_reused:
            return
        session = tls.session
        if session is not None and session.has_ticket:
            until = clock.now() + min(SECONDS, session.timeout)
            self._entry = _Entry(session, tls.context, tls.server_hostname, until)
