"""The page's files and data, without the question who may read them. Read-only.

- Nothing of a request is forwarded but the names of a pod and its namespace, after a check.
- The Content-Security-Policy permits this server's own files alone, and no markup from strings
  (Trusted Types): texts of tenants cannot become scripts or requests.
"""

from __future__ import annotations

import re
import secrets
from importlib.resources import files
from typing import Any, Protocol

import orjson
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.dashboard import live_stream
from bridge.dashboard.fleet_watch import FleetWatch
from sync.kube.api_errors import ApiError, KubeError
from translators.object_accessors import Object


def _headers(*, forms: str = "'none'", referrers: str = "no-referrer") -> dict[str, str]:
    """The headers of a response whose page may send forms there."""
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": forms,
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": referrers,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


HEADERS = _headers()
#: Of pages with a form that is sent to this server: without a referrer its Origin would be null.
FORM_HEADERS = _headers(forms="'self'", referrers="same-origin")

_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_POD = re.compile(rf"/api/v1/pods/({_NAME})/({_NAME})/(explain|events)")

#: The path of the stream of changes.
LIVE_PATH = "/api/v1/live"


class Details(Protocol):
    """Reads the details of one pod. Raises KubeError, PreflightError and TimeoutError."""

    async def explain(self, namespace: str, name: str) -> Object:
        """The report of `bridge explain`."""

    async def events(self, namespace: str, name: str) -> list[Object]:
        """The pod's Events, the newest first."""


def read_files() -> dict[str, tuple[bytes, str]]:
    """The page's files by path, with their content types."""
    found = {}
    for file in (files("bridge.dashboard") / "static").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = file.read_bytes(), kind
    return found


class PageResponses:
    """Responds to requests that are permitted to read the page."""

    def __init__(self, watch: FleetWatch) -> None:
        self._watch = watch
        self.files = read_files()
        self._epoch = secrets.token_hex(4)

    def file(self, path: str) -> web.Response | None:
        """The file of the page at this path."""
        if path not in self.files:
            return None
        body, kind = self.files[path]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    async def get(
        self, request: web.BaseRequest, path: str, details: Details
    ) -> web.StreamResponse:
        """The response to a GET of ``path``, which is relative to the page."""
        watch = self._watch
        if (file := self.file(path)) is not None:
            return file
        if path == LIVE_PATH:
            return await live_stream.stream(request, watch, self._epoch, HEADERS)
        if path == "/api/v1/fleet":
            _, views = watch.views_since(0)
            return _json({"home": watch.home_since(0), "remotes": views})
        if path == "/api/v1/history":
            return _json(watch.history.since(0))
        if path == "/api/v1/pods":
            return _json({"pods": watch.pods.rows()})
        if (pod := _POD.fullmatch(path)) is not None:
            return await _respond_pod(details, *pod.groups())
        return plain_response(404, "not found")


async def _respond_pod(details: Details, namespace: str, name: str, part: str) -> web.Response:
    try:
        if part == "explain":
            return _json(await details.explain(namespace, name))
        return _json({"events": await details.events(namespace, name)})
    except TimeoutError:
        return _json({"error": "no answer in time"}, status=504)
    except PreflightError as error:
        return _json({"error": str(error)}, status=404)
    except KubeError as error:
        return _json({"error": str(error)}, status=_code(error))


def plain_response(status: int, text: str, **headers: str) -> web.Response:
    """A response of plain text."""
    return web.Response(status=status, text=text, headers={**HEADERS, **headers})


def _code(error: KubeError) -> int:
    return error.code if isinstance(error, ApiError) and error.code >= 400 else 502


def _json(data: Any, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(data), content_type="application/json", headers=HEADERS
    )
