"""What can go wrong between the bridge and an API server, as a small hierarchy.

Every error says *where* (``home`` or ``remote``), *what* was asked, and the server's own words,
cut to `MESSAGE_LIMIT`. Bodies of requests and answers are never part of an error: they can hold
Secret data. Whether trying the same again can help is a property of the class, `retryable`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Side = Literal["home", "remote"]

#: Long enough for every message that an API server writes about one object; short enough for
#: an Event (1,024 characters) and a log line.
MESSAGE_LIMIT = 600


class KubeError(Exception):
    """Base of all errors of a request to an API server."""

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, side: Side, what: str = "") -> None:
        self.side: Side = side
        self.what = what
        self.message = message[:MESSAGE_LIMIT]
        super().__init__(f"{side}: {what}: {self.message}" if what else f"{side}: {self.message}")


class ClientConfigError(KubeError):
    """The kubeconfig cannot be used: missing, unreadable, incomplete, or its plugin failed."""

    retryable = False


class Unreachable(KubeError):
    """No answer: refused, no route, no such name, cut, or too slow."""


class ApiServerCertificateError(Unreachable):
    """The server's certificate is not one that the kubeconfig trusts."""


class NotLeaderError(KubeError):
    """A write did not pass the fence (`sync.kube.write_fence`). One that was under way may have
    happened all the same."""


class ApiError(KubeError):
    """The server answered with a failure. ``reason`` is the Status reason, such as NotFound."""

    def __init__(
        self,
        message: str,
        *,
        side: Side,
        what: str = "",
        code: int,
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, side=side, what=what)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        """Seconds that the server asks to wait, from ``Retry-After``; None when it does not."""


class BadRequest(ApiError):
    """400: the request is malformed."""

    retryable = False


class Unauthorized(ApiError):
    """401: the credential is missing, expired or not known."""


class Forbidden(ApiError):
    """403: the credential is known but may not do this, or admission refused it."""


class NamespaceTerminating(Forbidden):
    """403 with the cause NamespaceTerminating: the object's namespace is being deleted."""


class NotFound(ApiError):
    """404 with a Status: no such object, namespace or kind."""


class Conflict(ApiError):
    """409: the object is not in the state that the request relies on (version, UID).

    Admission has it too, for what the object's own state has nothing to do with: a quota whose
    usage others write at the same time, or a webhook. By itself it says nothing of whose object
    it is.
    """


class UidMismatch(Conflict):
    """The 422 that a server gives a patch whose ``metadata.uid`` is not the object's.

    It calls that an attempt to change the UID, and here it is how a patch is kept to one object:
    the name is another one's by now.
    """


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists: an object of that name is there."""


class Gone(ApiError):
    """410: the resource version is too old to go on from; list again.

    Also the 504 for a version that is yet to come: the server went back, to a backup.
    """


class Invalid(ApiError):
    """422: the object breaks a rule of its kind; it has to change before a retry can help."""

    retryable = False


class Throttled(ApiError):
    """429, or 503 with ``Retry-After``: the server's flow control asks to wait."""


class ServerError(ApiError):
    """5xx: the server or something behind it failed."""


_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Throttled,
}


def from_status(
    status: Any, *, code: int, side: Side, what: str, retry_after: float | None = None
) -> ApiError:
    """The error for an answer: ``status`` is its decoded ``v1.Status``, or anything else."""
    reason = message = ""
    if isinstance(status, dict) and status.get("kind") == "Status":
        reason = str(status.get("reason") or "")
        message = str(status.get("message") or "")
        said = status.get("code")
        code = said if isinstance(said, int) and 400 <= said < 600 else code
    cls = _BY_CODE.get(code, ServerError if code >= 500 else ApiError)
    if code == 404 and not reason:
        # A proxy's page, or a path that no API has: it says nothing of an object.
        cls = ApiError
    if code == 409 and reason == "AlreadyExists":
        cls = AlreadyExists
    elif code == 403 and _has_cause(status, "reason", "NamespaceTerminating"):
        cls = NamespaceTerminating
    elif code == 422 and _has_cause(status, "field", "metadata.uid"):
        cls = UidMismatch
    elif reason == "Expired" or _has_cause(status, "reason", "ResourceVersionTooLarge"):
        cls = Gone
    elif code == 503 and retry_after is not None:
        cls = Throttled
    return cls(
        message or f"the API server answered {code}",
        side=side,
        what=what,
        code=code,
        reason=reason,
        retry_after=retry_after,
    )


def _has_cause(status: Any, key: str, value: str) -> bool:
    details = status.get("details") if isinstance(status, dict) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get(key) == value for cause in causes
    )
