"""Error responses of an API server, as exceptions with their ``Status``."""

from __future__ import annotations

from sync.kube.api_resources import Object, Resource


class ApiErrorResponse(Exception):
    """Raised to respond with a Status with a code of 400 or more."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Object | None = None,
        resume: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.resume = resume
        """The ``continue`` token with which an expired list may continue inconsistently."""

    def status(self) -> Object:
        """The ``v1.Status`` of the response."""
        metadata = {"continue": self.resume} if self.resume else {}
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details is not None:
            status["details"] = self.details
        return status


def _details(resource: Resource, name: str) -> Object:
    details = {"name": name, "kind": resource.plural}
    return {**details, "group": resource.group} if resource.group else details


def unknown_path() -> ApiErrorResponse:
    """404: no such resource, or not an API path."""
    return ApiErrorResponse(
        404, "NotFound", "the server could not find the requested resource", details={}
    )


def not_found(resource: Resource, name: str) -> ApiErrorResponse:
    """404: no such object."""
    return ApiErrorResponse(
        404, "NotFound", f'{resource} "{name}" not found', details=_details(resource, name)
    )


def already_exists(resource: Resource, name: str) -> ApiErrorResponse:
    """409 for a create: the name is taken."""
    message = f'{resource} "{name}" already exists'
    return ApiErrorResponse(409, "AlreadyExists", message, details=_details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> ApiErrorResponse:
    """409: the object is not in the state that the request requires."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiErrorResponse(409, "Conflict", message, details=_details(resource, name))


def invalid(resource: Resource, name: str, *problems: tuple[str, str]) -> ApiErrorResponse:
    """422: validation failed; each problem is a field and a message."""
    text = ", ".join(f"{field}: {why}" for field, why in problems)
    if len(problems) > 1:
        text = f"[{text}]"
    causes = [
        {"reason": "FieldValueInvalid", "message": why, "field": field} for field, why in problems
    ]
    details: Object = {"name": name, "kind": resource.kind, "causes": causes}
    return ApiErrorResponse(
        422, "Invalid", f'{resource.kind} "{name}" is invalid: {text}', details=details
    )


def bad_request(message: str) -> ApiErrorResponse:
    """400: the request is malformed."""
    return ApiErrorResponse(400, "BadRequest", message)


def forbidden(resource: Resource, name: str, why: str, *, cause: str = "") -> ApiErrorResponse:
    """403 from admission or authorization."""
    details = _details(resource, name)
    if cause:
        details["causes"] = [{"reason": cause, "message": why, "field": "metadata.namespace"}]
    return ApiErrorResponse(
        403, "Forbidden", f'{resource} "{name}" is forbidden: {why}', details=details
    )


def expired(message: str, *, resume: str = "") -> ApiErrorResponse:
    """410: the resource version, or the list of a continue token, was compacted."""
    return ApiErrorResponse(410, "Expired", message, resume=resume)


def too_new(requested: int, current: int) -> ApiErrorResponse:
    """504 for a resource version in the future, as after a restore from a backup."""
    message = f"Too large resource version: {requested}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    details: Object = {"causes": causes, "retryAfterSeconds": 1}
    return ApiErrorResponse(504, "Timeout", message, details=details)


def unsupported_media(content_type: str) -> ApiErrorResponse:
    """415: the path does not accept this content type or patch type."""
    message = f"the body of the request was in an unknown format: {content_type}"
    return ApiErrorResponse(415, "UnsupportedMediaType", message)
