"""Splits a watch into lines, and reads the identity of an event without parsing it. Pure.

Parsing is most of the cost of an event, and about a third of the events of a pod repeat the
response to a write of the bridge. So the identity comes from the first bytes of the line, and
the full parse (orjson) runs only for events that the store does not have.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sync.cache.store import Key

#: How an API server serializes an event (WatchEvent, TypeMeta and ObjectMeta in
#: k8s.io/apimachinery): these fields in this order; valid names need no JSON escapes.
_HEAD = re.compile(
    rb'\{"type":"(?:ADDED|MODIFIED)","object":\{"kind":"\w+","apiVersion":"[\w./-]+",'
    rb'"metadata":\{"name":"([^"\\]+)",(?:"generateName":"[^"\\]*",)?'
    rb'(?:"namespace":"([^"\\]+)",)?"uid":"([^"\\]+)","resourceVersion":"(\d+)"'
)


class EventHeader(NamedTuple):
    """Identity and version of the object in an ADDED or MODIFIED event."""

    key: Key
    uid: str
    version: str


def event_header(line: bytes) -> EventHeader | None:
    """The header of an ADDED or MODIFIED event; None for others, and for an unusual field order."""
    match = _HEAD.match(line)
    if match is None:
        return None
    name, namespace, uid, version = (str(part or b"", "utf-8") for part in match.groups())
    return EventHeader(Key(namespace, name), uid, version)


class LineSplitter:
    """Splits a stream into lines; the caller bounds `partial`."""

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def partial(self) -> int:
        """Bytes of the line that has not ended."""
        return len(self._partial)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The non-empty lines that the next chunk completes."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._partial:
            ended[0] = bytes(self._partial) + ended[0]
            self._partial.clear()
        self._partial += rest
        return [line for line in ended if line]
