"""Decides whether the response to an attack is acceptable. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fuzz.request_parts import PLANTED, Listener
from tests.fuzz.requests import Attack
from tests.fuzz.server_process import WAITING_SECONDS

#: Seconds from the last byte of an attack to the end of its connection. A handshake, a request and
#: the writing of a response take the waiting time together; the rest is for a busy machine.
BOUND = WAITING_SECONDS + 7

#: Status codes of all responses to a caller without a credential.
_UNAUTHENTICATED = {"kubelet": {400, 401, 413, 417, 431}, "dashboard": {400, 404, 413, 431}}
_RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
#: The headers that a response may have.
_HEADERS = {
    *("allow", "cache-control", "connection", "content-length", "content-security-policy"),
    *("cross-origin-opener-policy", "cross-origin-resource-policy"),
    *("content-type", "date", "location", "referrer-policy", "retry-after", "server", "upgrade"),
    *("transfer-encoding", "www-authenticate", "x-content-type-options", "x-frame-options"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The bytes that a client received on one connection."""

    received: bytes
    closed: bool
    """Whether the server closed the connection within `BOUND`."""

    @property
    def responses(self) -> list[tuple[int, bytes]]:
        """Status and headers of the responses; after an upgrade there are none."""
        found = [(int(code), lines) for code, lines in _RESPONSE.findall(self.received)]
        codes = [code for code, _ in found]
        return found[: codes.index(101) + 1] if 101 in codes else found


def problems(
    attack: Attack, listener: Listener, outcome: Outcome, secrets: tuple[bytes, ...]
) -> list[str]:
    """Why the outcome is not acceptable; none if it is."""
    found = []
    codes = {code for code, _ in outcome.responses}
    if not outcome.closed:
        found.append(f"the connection is open after {BOUND} s")
    if any(code >= 500 for code in codes):
        found.append(f"the server failed: {sorted(codes)}")
    allowed = _UNAUTHENTICATED.get(listener.name)
    if allowed is not None and not attack.is_authenticated(listener) and codes - allowed - {100}:
        found.append(f"a request without a credential is served: {sorted(codes)}")
    if attack.ambiguous and any(code < 400 and code != 100 for code in codes):
        found.append(f"a smuggled request is served: {sorted(codes)}")
    if outcome.received and not outcome.responses:
        found.append(f"the response is not HTTP: {outcome.received[:80]!r}")
    found += [f"a response contains {it!r}" for it in secrets if it in outcome.received]
    if PLANTED in outcome.received and 101 not in codes:
        found.append("a response repeats a header that may be a credential")
    names = {
        line.partition(b":")[0].decode("latin-1").lower()
        for _, lines in outcome.responses
        for line in lines.splitlines()
    }
    found += [f"a response has the header {it}" for it in sorted(names - _HEADERS)]
    return found
