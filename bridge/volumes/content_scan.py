"""Summarises the lines of a scan (`bridge.volumes.volume_scripts`) in constant memory.

Two volumes are equal if the sums of the SHA-256 of their lines are equal (modulo 2**256), and the
numbers of their lines: the order in which a file system lists its entries does not matter, and
nothing is sorted or kept.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256

from bridge.volumes.volume_scripts import PART

#: Bytes of a line: a path has at most 4096, and a link names two.
LINE_MAX = 64 * 1024
_FILE = re.compile(rb"f [0-7]+ (\d+) (\d+) \d+ (\d+) -?\d+ ")
_PART = re.compile(rb"p (\d+) [0-9a-f]{64}")
_OTHER = re.compile(rb"[do] [0-7]+ (\d+) (\d+) |l (\d+) (\d+) ")
_CONTENT = re.compile(rb"\\?(?:[0-9a-f]{64}|[0-9a-f]{128}) [ *]")
#: Bytes of a block of tar: an entry has one for its header, and files whole ones.
_BLOCK = 512
_MODULUS = 1 << 256


class ScanError(ValueError):
    """The output of a scan is not what the script writes."""


@dataclass(slots=True)
class ContentScan:
    """The summary of a volume."""

    contents: bool = False
    """Whether the scan has the digest of each file."""
    lines: int = 0
    files: int = 0
    size: int = 0
    """Bytes of all files; a file with several names counts for each."""
    archived: int = 0
    """Bytes of a tar stream of it, without the names of links and long paths."""
    hashed: int = 0
    """Bytes of the files whose digests are known."""
    largest_id: int = 0
    """The largest user or group ID."""
    total: int = 0
    _rest: bytes = field(default=b"", repr=False)
    _large: int = field(default=0, repr=False)
    _unhashed: deque[int] = field(default_factory=deque, repr=False)

    def feed(self, data: bytes) -> None:
        """Takes output of the scan, cut anywhere. Raises ScanError for a line that is too long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise ScanError("a scan of a volume wrote a line that is too long")
        for line in lines:
            self._add(line)

    def finish(self) -> None:
        """Takes the last line, which has no end of line."""
        if self._rest:
            self._add(self._rest)
            self._rest = b""

    def equals(self, other: ContentScan) -> bool:
        return (self.lines, self.total) == (other.lines, other.total)

    def _add(self, line: bytes) -> None:
        self.lines += 1
        self.archived += _BLOCK
        self.total = (self.total + int.from_bytes(sha256(line).digest())) % _MODULUS
        if _CONTENT.match(line):
            # The script hashes files in the order in which it lists them, a batch at a time.
            self.hashed += self._unhashed.popleft() if self._unhashed else 0
        elif found := _FILE.match(line):
            user, group, size = map(int, found.groups())
            self.files += 1
            self.size += size
            self.archived += -(-size // _BLOCK) * _BLOCK
            if self.contents and size <= PART:
                self._unhashed.append(size)
            self._large = size
            self.largest_id = max(self.largest_id, user, group)
        elif found := _PART.match(line):
            # Its file's line is the last one.
            self.hashed += min(PART, self._large - int(found[1]))
        elif found := _OTHER.match(line):
            ids = [int(it) for it in found.groups() if it is not None]
            self.largest_id = max(self.largest_id, *ids)
