"""Converts between aiohttp's requests and responses and those of the fake."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from sync.kube.api_resources import Object
from tests.fakeapi.faults import Fault
from tests.fakeapi.request_log import LoggedRequest


async def entry(request: web.BaseRequest) -> LoggedRequest:
    """The entry of a request for the request log."""
    raw = await request.content.read()  # aiohttp's own limit is below an API server's 3 MiB
    body: Any = None
    if raw:
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = raw
    certificate = request.get_extra_info("peercert") or {}
    names = [pair for part in certificate.get("subject", ()) for pair in part]
    return LoggedRequest(
        method=request.method,
        path=request.rel_url.raw_path,
        query=dict(request.query),
        user_agent=request.headers.get("User-Agent", ""),
        content_type=request.content_type,
        body=body,
        authorization=request.headers.get("Authorization", ""),
        impersonation=[it for it in request.headers.items() if it[0].startswith("Impersonate-")],
        subject=next((value for key, value in names if key == "commonName"), ""),
    )


def as_json(code: int, body: Object, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON response."""
    return web.Response(
        status=code, body=orjson.dumps(body), content_type="application/json", headers=headers
    )


def failure(fault: Fault) -> web.Response:
    """The response of a fault."""
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    if fault.raw is not None:
        return web.Response(status=fault.code or 200, body=fault.raw, headers=headers)
    refusal = fault.refusal()
    return as_json(refusal.code, refusal.status(), headers)


def cut(request: web.BaseRequest) -> web.Response:
    """Resets the connection; the returned response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
