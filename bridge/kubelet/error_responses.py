"""Error responses of the kubelet API: handlers raise `HttpError`, the server writes plain text.

home's API server copies the text into a Status for its caller, so every message names what failed
and, if possible, the next step. No message contains a credential.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from sync.kube.api_errors import ApiError, KubeError, Unauthorized, Unreachable

#: The message for a remote that answers 401.
CREDENTIAL_REJECTED = (
    "the remote cluster does not accept the bridge's credential; "
    "renew the credential in the bridge's kubeconfig"
)


class HttpError(Exception):
    """A response with status 400 or above and a message."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


def http_error_from(error: KubeError) -> HttpError:
    """The response to a caller whose request failed in the remote.

    Errors of the remote's API server keep code and message. A 401 means that the remote rejects the
    *bridge's* credential, which is not the caller's fault, so it becomes 502, as does an invalid
    code; an unreachable remote is 503.
    """
    if isinstance(error, Unauthorized):
        return HttpError(502, CREDENTIAL_REJECTED)
    if isinstance(error, ApiError):
        code = error.code if 400 <= error.code <= 599 else 502
        seconds = error.retry_after
        headers = {"Retry-After": str(int(seconds))} if seconds is not None else {}
        return HttpError(code, error.message, headers=headers)
    if isinstance(error, Unreachable):
        return HttpError(503, f"the {error.side} cluster does not answer: {error.message}")
    return HttpError(502, f"the request to the {error.side} cluster failed: {error.message}")


#: Headers of all output of the remote or a container, whatever content type the remote declares:
#: a browser that is directed here, through a proxy for example, must show it as text.
PLAIN_TEXT_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}


def text_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        text=text,
        headers={"X-Content-Type-Options": "nosniff", **(headers or {})},
        content_type="text/plain",
    )
