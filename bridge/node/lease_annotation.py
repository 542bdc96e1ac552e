"""What one bridge leaves for the next that serves the node: a line in an annotation of the Lease.

It goes along with the renewals that are made anyway, when it has changed, and with the release; so
it costs no request. A bridge that is killed leaves what was so at most one renewal before. The next
one reads it once, when it first has the Lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from translators.objects import Object, metadata


@dataclass
class Note:
    """``write`` gives the line, "" for none; ``read`` takes that of the bridge before."""

    annotation: str
    write: Callable[[], str]
    read: Callable[[str], None]
    _written: str = field(default="", init=False)
    _begun: bool = field(default=False, init=False)

    def begin(self, lease: Object) -> None:
        """The Lease is ours, as it is; the first time what it says is read."""
        if not self._begun:
            self._begun = True
            self.read(str((metadata(lease).get("annotations") or {}).get(self.annotation) or ""))
        self._written = ""  # Another Lease does not have it.

    def annotations(self) -> dict[str, str]:
        """What a patch of the Lease is to carry: nothing, where it has that already."""
        line = self.write() if self._begun else ""
        if line == self._written:
            return {}
        self._written = line
        return {self.annotation: line}
