"""Answers that are no: raised as `HttpError` where it is known, written as plain text in one place.

home's API server puts the text into a Status of its own for the one who asked, so every sentence
says what is wrong and, where there is one, the next step. No sentence holds a credential.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiohttp import web

from sync.kube.errors import ApiError, KubeError, Unauthorized, Unreachable

log = logging.getLogger(__name__)


class HttpError(Exception):
    """An answer of 400 and above, with one sentence."""

    def __init__(
        self, status: int, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


def http_error_from(error: KubeError) -> HttpError:
    """What a failed request to the remote is to the one who asked.

    The remote's own answers keep code and words. That it does not know *us* (401) is not the
    caller's fault, so this becomes 502, as does whatever is no code of HTTP; no answer is 503.
    """
    if isinstance(error, Unauthorized):
        return HttpError(502, credential_rejected_message())
    if isinstance(error, ApiError):
        headers = {}
        if error.retry_after is not None:
            headers["Retry-After"] = str(int(error.retry_after))
        return HttpError(
            error.code if 400 <= error.code <= 599 else 502, error.message, headers=headers
        )
    if isinstance(error, Unreachable):
        return HttpError(503, f"the {error.side} cluster does not answer: {error.message}")
    return HttpError(502, f"the {error.side} cluster cannot be asked: {error.message}")


def credential_rejected_message() -> str:
    """The sentence for a remote that answers 401."""
    return (
        "the remote cluster does not accept the bridge's credential; "
        "renew the one in the kubeconfig that the bridge was given"
    )


#: Headers of everything that the remote or a container wrote. A browser that is led here, by a
#: person's proxy say, shows it as text, whatever it is and whatever type the remote gives it.
PLAIN_TEXT_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}


def text_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A short answer in plain text."""
    return web.Response(
        status=status,
        text=text,
        headers={"X-Content-Type-Options": "nosniff", **(headers or {})},
        content_type="text/plain",
    )
