"""The lines of a watch, before they are parsed. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from sync.cache.store import Key

#: How an API server begins an event (k8s.io/apimachinery, WatchEvent, TypeMeta and ObjectMeta): as
#: far as the version all is told in this order, and no name has a character that JSON escapes.
_HEAD = re.compile(
    rb'\{"type":"(?:ADDED|MODIFIED)","object":\{"kind":"\w+","apiVersion":"[\w./-]+",'
    rb'"metadata":\{"name":"([^"\\]+)",(?:"generateName":"[^"\\]*",)?'
    rb'(?:"namespace":"([^"\\]+)",)?"uid":"([^"\\]+)","resourceVersion":"(\d+)"'
)


class EventHeader(NamedTuple):
    """What an event is about: a state of an object that is there."""

    key: Key
    uid: str
    version: str


def event_header(line: bytes) -> EventHeader | None:
    """The head of an event that adds or changes an object; None where the line begins in another
    way than an API server's own order of fields, or is another event."""
    found = _HEAD.match(line)
    if found is None:
        return None
    name, namespace, uid, version = (str(part or b"", "utf-8") for part in found.groups())
    return EventHeader(Key(namespace, name), uid, version)


class LineSplitter:
    """Splits a stream at newlines, whatever the length of a line: an object can have megabytes."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in the next chunk, without those that are empty."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._begun:
            ended[0] = b"".join((*self._begun, ended[0]))
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        return [line for line in ended if line]
