"""Faults that tests inject into requests, and the requests that they match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from tests.fakeapi.api_errors import ApiErrorResponse
from tests.fakeapi.request_log import LoggedRequest

#: ``before``: the connection is reset before the request is handled; ``after``: the request is
#: handled, and the response is lost.
Drop = Literal["before", "after"]

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True, eq=False)
class Fault:
    """A fault that hits ``times`` requests (None: until it is removed).

    A request that matches waits ``delay`` seconds, and is then dropped, answered with ``raw`` or
    ``code``, or, where none of these is given, served as usual.
    """

    method: str = "*"
    path: str = "*"
    """A shell pattern for the path without query; ``*`` also matches slashes."""
    when: Callable[[LoggedRequest], bool] | None = None
    watch: bool | None = None
    """True matches only watches, False only other requests."""
    times: int | None = 1
    code: int | None = None
    reason: str = ""
    message: str = ""
    retry_after: str | int | None = None
    delay: float = 0.0
    drop: Drop | None = None
    raw: bytes | None = None
    """The body instead of a Status; with ``code`` or 200."""
    hits: int = 0

    def meets(self, entry: LoggedRequest) -> bool:
        """Whether the fault applies to the request."""
        return (
            (self.times is None or self.hits < self.times)
            and self.method in ("*", entry.method)
            and fnmatchcase(entry.path, self.path)
            and self.watch in (None, entry.watch)
            and (self.when is None or self.when(entry))
        )

    @property
    def answers(self) -> bool:
        """Whether the fault has a response of its own."""
        return self.code is not None or self.raw is not None

    def refusal(self) -> ApiErrorResponse:
        """The Status of the response."""
        code = self.code or 500
        reason = self.reason or _REASONS.get(code, "")
        return ApiErrorResponse(code, reason, self.message or f"made to fail with {code}")


class Faults:
    """The active faults, in the order in which they were added."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Adds a fault."""
        self._faults.append(fault)
        return fault

    def lift(self, fault: Fault | None = None) -> None:
        """Removes one fault, or all."""
        self._faults = [f for f in self._faults if fault is not None and f is not fault]

    def for_request(self, entry: LoggedRequest) -> Fault | None:
        """The first fault that matches the request; counts the hit."""
        for fault in self._faults:
            if fault.meets(entry):
                fault.hits += 1
                return fault
        return None
