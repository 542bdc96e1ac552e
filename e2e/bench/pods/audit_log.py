"""What a client asked of an API server, counted by the server itself: from its audit log.

A server begins a new file when one is full, and keeps one old one. What was written since a mark is
found all the same, as long as its first file is there: a file is known by its inode and how it
begins, not by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from translators.timestamps import parse_time

#: The user agent of the bridge (`sync.kube.transport`), and of the least bridge.
BRIDGE = "cluster-bridge"
LEAST = "cluster-bridge-least"
READS = frozenset({"get", "list", "watch"})
#: Told of pods at home, and counted on their own; and what keeps the node alive.
EVENTS = frozenset({"events"})
NODE = frozenset({"leases", "nodes", "nodes/status"})
#: Questions that change nothing, though they are asked with POST: a bridge's rights at its start.
_QUESTIONS = frozenset(
    {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews", "tokenreviews"}
)

#: Bytes that tell one file from another: an event's ID is among its first 200.
_BEGIN = 512


class LogGone(Exception):
    """The audit log has been written to so much that what is to be counted is no longer there."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request; a watch counts when it begins."""

    verb: str
    resource: str
    """With its subresource, as ``pods/status``; a path where it is about no resource."""
    namespace: str
    name: str
    code: int
    received: float
    answered: float
    """Seconds of the clock (`time.time`)."""
    group: str
    """Of the API; "" for the first one, and for what is about no resource."""
    user: str
    forbidden: bool
    """Whether authorisation refused it; admission refuses with the same code."""

    @property
    def is_write(self) -> bool:
        """Whether it asks for a change."""
        return self.verb not in READS and self.resource not in _QUESTIONS

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


class Requests:
    """The requests of clients to one server since `mark`; ``whole``: all that its log has."""

    def __init__(self, audit_log: Path, agent: str = BRIDGE, *, whole: bool = False) -> None:
        self._log, self._agent = audit_log, agent
        self._inode = self._offset = 0
        self._begin = b""
        self._whole = whole
        if not whole:
            self.mark()

    def mark(self) -> None:
        """Counts from now on."""
        self._whole = False
        found = self._log.stat()
        self._inode, self._offset = found.st_ino, found.st_size
        # The inode of a file that was removed may be a new file's; the first line has an ID.
        with self._log.open("rb") as log:
            self._begin = log.read(min(_BEGIN, self._offset))

    def all(self, *, agent: str | None = None) -> Iterator[Request]:
        """Those of one client, in the order of the answers. Raises LogGone."""
        agent = agent or self._agent
        # Most lines are of others: they are not decoded.
        wanted = b'"userAgent":"%s"' % agent.encode()
        for file, offset in self._files():
            with file.open("rb") as log:
                log.seek(offset)
                for line in log:
                    # The last line may be half written.
                    if wanted in line and line.endswith(b"\n"):
                        event = orjson.loads(line)
                        # A watch is logged when it begins and when it ends.
                        begun = event["stage"] == "ResponseStarted"
                        if begun == (event["verb"] == "watch"):
                            yield _request(event)

    def count(self) -> Counter[str]:
        """``VERB RESOURCE[/SUBRESOURCE]`` → how many. Raises LogGone."""
        return Counter(map(str, self.all()))

    def writes(self, aside: Iterable[str] = EVENTS | NODE) -> Counter[str]:
        """Those that change something other than ``aside``. Raises LogGone."""
        return Counter(str(one) for one in self.all() if one.is_write and one.resource not in aside)

    def _files(self) -> list[tuple[Path, int]]:
        """The files that were written to since the mark, oldest first, and where to begin."""
        # The name of an old one has the time at which it was full, so that names sort by age; the
        # name of the one in use has none, and sorts behind "-".
        there = sorted(self._log.parent.glob(f"{self._log.stem}*{self._log.suffix}"))
        if self._whole:
            return [(file, 0) for file in there]
        for place, file in enumerate(there):
            if self._is_marked(file):
                return [(file, self._offset), *((later, 0) for later in there[place + 1 :])]
        raise LogGone(f"{self._log}: the file of the mark was removed, fewer pods would fit")

    def _is_marked(self, file: Path) -> bool:
        if file.stat().st_ino != self._inode:
            return False
        with file.open("rb") as log:
            return log.read(len(self._begin)) == self._begin


def _request(event: dict[str, object]) -> Request:
    ref = event.get("objectRef")
    ref = ref if isinstance(ref, dict) else {"resource": event["requestURI"]}
    sub = f"/{ref['subresource']}" if ref.get("subresource") else ""
    status = event.get("responseStatus")
    user, notes = event.get("user"), event.get("annotations")
    decision = notes.get("authorization.k8s.io/decision") if isinstance(notes, dict) else ""
    return Request(
        verb=str(event["verb"]),
        resource=f"{ref['resource']}{sub}",
        namespace=str(ref.get("namespace", "")),
        name=str(ref.get("name", "")),
        code=int(status.get("code", 0)) if isinstance(status, dict) else 0,
        received=_seconds(event["requestReceivedTimestamp"]),
        answered=_seconds(event["stageTimestamp"]),
        group=str(ref.get("apiGroup", "")),
        user=str(user.get("username", "")) if isinstance(user, dict) else "",
        forbidden=decision == "forbid",
    )


def _seconds(stamp: object) -> float:
    return parse_time(str(stamp)).timestamp()
