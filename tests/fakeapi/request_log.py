"""What was asked of the server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: The methods that change something.
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request."""

    method: str
    path: str
    """Without its query, quoted as it came."""
    query: dict[str, str]
    user_agent: str
    content_type: str
    body: Any
    """Decoded JSON, or the bytes where it is none; None without a body."""
    authorization: str = field(default="", repr=False)
    impersonation: list[tuple[str, str]] = field(default_factory=list)
    """The ``Impersonate-*`` headers."""
    subject: str = ""
    """The common name of the client's certificate."""
    code: list[int] = field(default_factory=list)
    """What it was answered with, once it was; empty for one that was cut off."""

    @property
    def watch(self) -> bool:
        """Whether it asks for a watch."""
        return self.method == "GET" and self.query.get("watch", "") in ("1", "true", "True")

    @property
    def review(self) -> bool:
        """Whether it is a POST that changes nothing (access and token reviews)."""
        return self.path.rpartition("/")[2].endswith("reviews")
