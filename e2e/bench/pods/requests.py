"""What a client asked of an API server, counted by the server itself: from its audit log."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson

#: The user agent of the bridge (`sync.kube.client`).
BRIDGE = "cluster-bridge"
READS = frozenset({"get", "list", "watch"})


class Requests:
    """The requests of one client to one server since `mark`."""

    def __init__(self, audit_log: Path, agent: str = BRIDGE) -> None:
        self._log, self._agent = audit_log, agent
        self._offset = 0
        self.mark()

    def mark(self) -> None:
        """Counts from now on."""
        self._offset = self._log.stat().st_size

    def count(self) -> Counter[str]:
        """``VERB RESOURCE[/SUBRESOURCE]`` → how many. A watch counts when it ends."""
        found: Counter[str] = Counter()
        with self._log.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                event = orjson.loads(line)
                if event.get("userAgent") == self._agent:
                    found[_name(event)] += 1
        return found

    def writes(self) -> Counter[str]:
        """Those that change something, Leases and Events aside."""
        aside = ("leases", "events")
        return Counter(
            {
                name: number
                for name, number in self.count().items()
                if name.split()[0] not in READS and name.split()[1] not in aside
            }
        )


def _name(event: dict[str, object]) -> str:
    ref = event.get("objectRef")
    if not isinstance(ref, dict):
        return f"{event['verb']} {event['requestURI']}"
    sub = f"/{ref['subresource']}" if ref.get("subresource") else ""
    return f"{event['verb']} {ref['resource']}{sub}"
