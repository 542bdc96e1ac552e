"""Picks the pod for the next connection to one port of a Service.

The ready pods take turns. With session affinity, a client (by its IP address) stays with its pod
for as long as the pod is ready, and for ``affinity`` seconds after its last connection. A pod that
could not be reached is avoided for `AVOID_SECONDS`, unless there is no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from translators.object_accessors import RemoteUid
from translators.relay.forward_plan import Backend

#: Seconds for which an unreachable pod is the last choice.
AVOID_SECONDS = 5.0
#: Clients whose affinity is remembered; beyond that, those with the oldest connection are dropped.
MAX_CLIENTS = 10_000


class Balancer:
    """Balances one port of one Service. All times are those of the event loop."""

    def __init__(self) -> None:
        self._backends: tuple[Backend, ...] = ()
        self._affinity: float | None = None
        self._round_robin = 0
        self._avoided: dict[RemoteUid, float] = {}
        self._clients: dict[str, tuple[RemoteUid, float]] = {}

    def update(self, backends: Sequence[Backend], affinity: float | None) -> None:
        """Sets the ready pods and the seconds of session affinity (None: no affinity)."""
        self._backends = tuple(backends)
        self._affinity = affinity
        if affinity is None:
            self._clients.clear()
        present = {backend.uid for backend in backends}
        self._avoided = {uid: until for uid, until in self._avoided.items() if uid in present}

    def pick(self, client: str, now: float, tried: Collection[Backend] = ()) -> Backend | None:
        """The pod for a connection of this client; None if all ready pods have been tried."""
        untried = [backend for backend in self._backends if backend not in tried]
        if not untried:
            return None
        uid, until = self._clients.get(client, (None, 0.0))
        if self._affinity is not None and until > now:
            same = next((it for it in untried if it.uid == uid), None)
            if same is not None:
                self._remember(client, same, now)
                return same
        candidates = [it for it in untried if self._avoided.get(it.uid, 0.0) <= now] or untried
        self._round_robin += 1
        picked = candidates[self._round_robin % len(candidates)]
        self._remember(client, picked, now)
        return picked

    def mark_failed(self, backend: Backend, now: float) -> None:
        """Avoids a pod that could not be reached."""
        self._avoided[backend.uid] = now + AVOID_SECONDS

    def _remember(self, client: str, backend: Backend, now: float) -> None:
        if self._affinity is None:
            return
        self._clients.pop(client, None)  # reinsert: the order is that of the last connection
        self._clients[client] = (backend.uid, now + self._affinity)
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
