"""Counts a client's requests to an API server from the server's audit log.

A server rotates its log and keeps one old file. Entries since a mark are found after a rotation,
too, as long as their first file exists: a file is identified by its inode and its first bytes, not
by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from translators.timestamps import parse_time

#: The user agents of the bridge (`sync.kube.transport`) and of the minimal bridge.
BRIDGE = "cluster-bridge"
LEAST = "cluster-bridge-least"
READS = frozenset({"get", "list", "watch"})
#: Resources that are counted separately: Events, and the node's own objects.
EVENTS = frozenset({"events"})
NODE = frozenset({"leases", "nodes", "nodes/status"})
#: Reviews, which use POST but change nothing: the bridge's permission checks at its start.
_QUESTIONS = frozenset(
    {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews", "tokenreviews"}
)

#: The message of a ValidatingAdmissionPolicy, and the prefix of the names of those of tests.
_POLICY = "ValidatingAdmissionPolicy '"
TEST_POLICIES = "e2e-"

#: Bytes that identify a file: an entry's ID is among its first 200.
_BEGIN = 512


class LogGone(Exception):
    """The audit log was rotated so often that entries to be counted no longer exist."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request; a watch counts at its start."""

    verb: str
    resource: str
    """With its subresource, as ``pods/status``; the path of a request without a resource."""
    namespace: str
    name: str
    code: int
    received: float
    answered: float
    """Unix time (`time.time`)."""
    group: str
    """API group; "" for the core group and for requests without a resource."""
    user: str
    forbidden: bool
    """Whether authorisation rejected it; admission uses the same code."""
    denied_by_policy: bool = False
    """Whether a ValidatingAdmissionPolicy rejected it that is none of a test's own."""

    @property
    def is_write(self) -> bool:
        """Whether it requests a change."""
        return self.verb not in READS and self.resource not in _QUESTIONS

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


class Requests:
    """The requests of clients to one server since `mark`; ``whole``: all in the log."""

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
        # A new file may reuse the inode of a removed one; the first line has an ID.
        with self._log.open("rb") as log:
            self._begin = log.read(min(_BEGIN, self._offset))

    def all(self, *, agent: str | None = None) -> Iterator[Request]:
        """The requests of one client, in the order of the responses. Raises LogGone."""
        agent = agent or self._agent
        # Most lines belong to other clients and are not decoded. The user agent of a stream goes on
        # with a version and a comment (`bridge.kubelet.stream_audit`).
        wanted = tuple(b'"userAgent":"%s%s' % (agent.encode(), end) for end in (b'"', b"/"))
        for file, offset in self._files():
            with file.open("rb") as log:
                log.seek(offset)
                for line in log:
                    # The last line may be half written.
                    if line.endswith(b"\n") and any(it in line for it in wanted):
                        event = orjson.loads(line)
                        # A watch is logged when it begins and when it ends.
                        begun = event["stage"] == "ResponseStarted"
                        if begun == (event["verb"] == "watch"):
                            yield _request(event)

    def count(self) -> Counter[str]:
        """``VERB RESOURCE[/SUBRESOURCE]`` → count. Raises LogGone."""
        return Counter(map(str, self.all()))

    def writes(self, aside: Iterable[str] = EVENTS | NODE) -> Counter[str]:
        """Changes of resources other than ``aside``. Raises LogGone."""
        return Counter(str(one) for one in self.all() if one.is_write and one.resource not in aside)

    def _files(self) -> list[tuple[Path, int]]:
        """The files written since the mark, oldest first, and the offset to start at."""
        # The name of a rotated file has its time of rotation, so that names sort by age; the
        # current file's name has none, and sorts after "-".
        there = sorted(self._log.parent.glob(f"{self._log.stem}*{self._log.suffix}"))
        if self._whole:
            return [(file, 0) for file in there]
        for place, file in enumerate(there):
            if self._is_marked(file):
                return [(file, self._offset), *((later, 0) for later in there[place + 1 :])]
        raise LogGone(f"{self._log}: the file of the mark was removed; use fewer pods")

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
        denied_by_policy=isinstance(status, dict)
        and _POLICY in (message := str(status.get("message", "")))
        and f"{_POLICY}{TEST_POLICIES}" not in message,
    )


def _seconds(stamp: object) -> float:
    return parse_time(str(stamp)).timestamp()
