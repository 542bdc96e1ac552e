"""Entries of the request log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Methods that change objects.
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request."""

    method: str
    path: str
    """The path without query, quoted as received."""
    query: dict[str, str]
    user_agent: str
    content_type: str
    body: Any
    """The decoded JSON, or bytes if it is none; None without a body."""
    authorization: str = field(default="", repr=False)
    impersonation: list[tuple[str, str]] = field(default_factory=list)
    """The ``Impersonate-*`` headers."""
    subject: str = ""
    """The common name of the client's certificate."""
    code: list[int] = field(default_factory=list)
    """The status code of the response; empty before it, and after a reset."""

    @property
    def watch(self) -> bool:
        """Whether the request is a watch."""
        return self.method == "GET" and self.query.get("watch", "") in ("1", "true", "True")

    @property
    def review(self) -> bool:
        """Whether the request is an access or token review, which changes nothing."""
        return self.path.rpartition("/")[2].endswith("reviews")
