"""Which pod the next connection goes to.

The ready pods of one port of a Service take turns. With affinity a client (by its address) stays
with its pod for as long as that is ready, and for ``affinity`` seconds after its last connection. A
pod that could not be reached is passed over for `AVOIDED` seconds, unless there is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from translators.objects import RemoteUid
from translators.relay.forward import Backend

#: Seconds for which a pod that could not be reached is the last choice.
AVOID_SECONDS = 5.0
#: Clients that are remembered; beyond that, those that came longest ago are forgotten.
MAX_CLIENTS = 10_000


class Balancer:
    """Of one port of one Service. Times are the loop's."""

    def __init__(self) -> None:
        self._backends: tuple[Backend, ...] = ()
        self._affinity: float | None = None
        self._round_robin = 0
        self._avoided: dict[RemoteUid, float] = {}
        self._clients: dict[str, tuple[RemoteUid, float]] = {}

    def update(self, backends: Sequence[Backend], affinity: float | None) -> None:
        """From now on these are ready."""
        self._backends = tuple(backends)
        self._affinity = affinity
        if affinity is None:
            self._clients.clear()
        there = {backend.uid for backend in backends}
        self._avoided = {uid: until for uid, until in self._avoided.items() if uid in there}

    def pick(self, client: str, now: float, tried: Collection[Backend] = ()) -> Backend | None:
        """The pod for a connection of this client; None where there is none that was not tried."""
        left = [backend for backend in self._backends if backend not in tried]
        if not left:
            return None
        known, until = self._clients.get(client, (None, 0.0))
        if self._affinity is not None and until > now:
            kept = next((it for it in left if it.uid == known), None)
            if kept is not None:
                self._remember(client, kept, now)
                return kept
        willing = [it for it in left if self._avoided.get(it.uid, 0.0) <= now] or left
        self._round_robin += 1
        chosen = willing[self._round_robin % len(willing)]
        self._remember(client, chosen, now)
        return chosen

    def mark_failed(self, backend: Backend, now: float) -> None:
        """There was no way to it."""
        self._avoided[backend.uid] = now + AVOID_SECONDS

    def _remember(self, client: str, backend: Backend, now: float) -> None:
        if self._affinity is None:
            return
        self._clients.pop(client, None)  # so that the order is that of the last connection
        self._clients[client] = (backend.uid, now + self._affinity)
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
