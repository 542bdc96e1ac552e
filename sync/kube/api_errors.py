"""Errors of requests to an API server.

Every error names its side (``home`` or ``remote``), the request, and the server's message, cut to
`MESSAGE_LIMIT`. Bodies are never part of an error: they can contain Secret data. Whether repeating
the same request can help is a property of the class, `retryable`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from translators.object_accessors import text_or_empty

Side = Literal["home", "remote"]

#: Characters: enough for a message about one object, few enough for an Event and a log line.
MESSAGE_LIMIT = 600
#: Characters of a reason, which is one CamelCase word.
REASON_LIMIT = 128


class KubeError(Exception):
    """Base of all errors of a request to an API server.

    ``what`` is the request, such as ``GET /api/v1/pods``; ``message`` has the cause.
    """

    retryable: ClassVar[bool] = True
    """Whether the same request may succeed later without a change of its content."""

    def __init__(self, message: str, *, side: Side, what: str = "") -> None:
        self.side: Side = side
        self.what = what
        self.message = message[:MESSAGE_LIMIT]
        super().__init__(f"{side}: {what}: {self.message}" if what else f"{side}: {self.message}")


class ClientConfigError(KubeError):
    """Raised when the kubeconfig cannot be used: it is missing, unreadable or incomplete, its
    credential plugin failed, or it names another cluster than before."""

    retryable = False


class Unreachable(KubeError):
    """Raised without a response: connection refused, no route, unknown host, cut, or timed out;
    also for a response that no API server sends."""


class MalformedResponse(Unreachable):
    """Raised for a response of a shape that no API server sends. A write may have happened."""


class ResponseTooLarge(MalformedResponse):
    """Raised for a response, or an event of a watch, that is larger than any of an API server
    (`sync.kube.response_limits`)."""


class ApiServerCertificateError(Unreachable):
    """Raised when the kubeconfig does not trust the API server's TLS certificate."""


class NotLeaderError(KubeError):
    """Raised for a write while this bridge does not hold the lease
    (`sync.kube.leader_write_fence`). A write that was in flight may have happened."""


class ApiError(KubeError):
    """Base of errors with a response. ``reason`` is the reason of its Status, such as NotFound."""

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
        """Seconds in ``Retry-After``; None without it."""


class BadRequest(ApiError):
    """400: the request is malformed."""

    retryable = False


class Unauthorized(ApiError):
    """401: the credential is missing, expired or unknown."""


class Forbidden(ApiError):
    """403: RBAC does not permit the request, or admission rejected it. Also for the other codes of
    `_ABOUT_THE_OBJECT` where an admission webhook or policy chose them: they are then no statement
    about the object, its name or the credential."""


class NamespaceTerminating(Forbidden):
    """403 with the cause NamespaceTerminating: the namespace is being deleted."""


class NotRelatedToNode(Forbidden):
    """403 of the Node authorizer (plugin/pkg/auth/authorizer/node of Kubernetes): it does not know
    yet, or no longer, that a pod of the node refers to the object."""


class AdmissionLags(ApiError):
    """404 of the NodeRestriction admission plugin, whose cache does not have the pod yet."""


class NotFound(ApiError):
    """404 with a Status: no such object, namespace or resource."""


class Conflict(ApiError):
    """409: the object is not in the state that the request requires (version, UID).

    Admission returns it too, for a quota that is written concurrently, or a webhook.
    """


class UidMismatch(Conflict):
    """422 for a patch with another ``metadata.uid`` than the object's: the server reports an
    attempt to change the UID, which the bridge sends to bind a patch to one object."""


class AlreadyExists(Conflict):
    """409 with the reason AlreadyExists: an object of that name exists."""


class Gone(ApiError):
    """410: the resource version has expired; list again. Also 504 for a version in the future,
    after a server was restored from a backup."""


class Invalid(ApiError):
    """422: validation rejected the object; it must change before a retry can succeed."""

    retryable = False


class Throttled(ApiError):
    """429, or 503 with ``Retry-After``: the server's flow control rejected the request for now."""


class ServerError(ApiError):
    """5xx: the server, or something behind it, failed."""


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

#: Codes from which callers conclude that an object is absent, exists, or is another one, or that
#: the credential is rejected.
_ABOUT_THE_OBJECT = (401, 404, 409, 410, 422)
#: How the API server begins, or states, the rejection of a webhook or a policy
#: (admission/plugin/webhook/errors and admission/plugin/policy/validating in k8s.io/apiserver).
_ADMISSION = re.compile(r"admission webhook |.*ValidatingAdmissionPolicy ", re.DOTALL)


def from_status(
    status: Any, *, code: int, side: Side, what: str, retry_after: float | None = None
) -> ApiError:
    """The error for a response; ``status`` is its decoded body, mostly a ``v1.Status``."""
    reason = message = ""
    if isinstance(status, dict) and status.get("kind") == "Status":
        reason = text_or_empty(status.get("reason"))[:REASON_LIMIT]
        message = text_or_empty(status.get("message"))
        inner = status.get("code")
        code = inner if isinstance(inner, int) and 400 <= inner < 600 else code
    cls = _BY_CODE.get(code, ServerError if code >= 500 else ApiError)
    if code == 404 and not reason:
        # The page of a proxy, or a path without an API: it does not mean that an object is missing.
        cls = ApiError
    if code == 409 and reason == "AlreadyExists":
        cls = AlreadyExists
    elif code == 403 and _has_cause(status, "reason", "NamespaceTerminating"):
        cls = NamespaceTerminating
    elif code == 403 and "no relationship found between node" in message:
        cls = NotRelatedToNode
    elif code == 404 and message.startswith('pod "'):
        cls = AdmissionLags  # the resource itself is called "pods"
    elif code == 422 and _has_cause(status, "field", "metadata.uid"):
        cls = UidMismatch
    elif reason == "Expired" or _has_cause(status, "reason", "ResourceVersionTooLarge"):
        cls = Gone
    elif code == 503 and retry_after is not None:
        cls = Throttled
    # The class of any other conflict states no more than that the request can be repeated, and
    # `Invalid` no more than that it was rejected.
    is_conclusive = code in _ABOUT_THE_OBJECT and cls not in (Conflict, Invalid)
    if is_conclusive and _ADMISSION.match(message[:MESSAGE_LIMIT]):
        cls = Forbidden
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
