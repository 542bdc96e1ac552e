"""The page's files and data, for requests that are permitted to read them. Read-only.

- Nothing of a request is forwarded but the names of a pod and its namespace, after a check.
- The Content-Security-Policy permits this server's own files alone, and no markup from strings
  (Trusted Types): texts of tenants cannot become scripts or requests.
"""

from __future__ import annotations

import re
import secrets
from importlib.resources import files
from typing import Any

import orjson
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.dashboard import live_stream
from bridge.dashboard.fleet_watch import FleetWatch
from bridge.dashboard.pod_details import PodDetails
from sync.kube.api_errors import ApiError, KubeError

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
#: The headers of every response.
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

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

    def __init__(self, watch: FleetWatch, details: PodDetails) -> None:
        self._watch = watch
        self._details = details
        self._files = read_files()
        self._epoch = secrets.token_hex(4)

    async def get(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """The response to a GET of ``path``, which is relative to the page."""
        watch = self._watch
        if path in self._files:
            body, kind = self._files[path]
            return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)
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
            return await _respond_pod(self._details, *pod.groups())
        return plain_response(404, "not found")


async def _respond_pod(details: PodDetails, namespace: str, name: str, part: str) -> web.Response:
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
