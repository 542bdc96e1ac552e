"""Handles ``/healthz``, ``/livez`` and ``/readyz``.

``/healthz`` is a kubelet's: 200 and ``ok``, or 500 and the problem. ``/livez`` and ``/readyz`` are
an API server's, a list of named checks: 200 and ``ok`` where all succeed, with ``?verbose`` one
line for each; 500 and these lines where one fails. ``?exclude=NAME`` skips a check,
``/readyz/NAME`` runs one. The cause of a failed check is in the log and the Node's conditions, not
in the response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from aiohttp import web

from bridge.kubelet.error_responses import text_response
from bridge.kubelet.routing import Handler, Route, RoutedRequest

#: Returns why the check fails, or "".
Check = Callable[[], str]

#: Always succeeds: `str()` is "".
PING: Mapping[str, Check] = {"ping": str}
_NO_CACHE = {"Cache-Control": "no-cache, no-store"}


def routes(ready: Mapping[str, Check], problem: Check) -> list[Route]:
    """Routes of the health checks. ``ready`` has the checks of ``/readyz`` beside ``ping``;
    ``problem`` is the check of ``/healthz``."""
    handlers = {"/healthz": _plain_check(problem), "/healthz/ping": _plain_check(str)}
    handlers["/healthz/syncloop"] = handlers["/healthz"]
    routes = [_route(path, handler) for path, handler in handlers.items()]
    for name, checks in (("livez", PING), ("readyz", {**PING, **ready})):
        routes.append(_route(f"/{name}", _named_checks(name, checks)))
        routes.extend(
            _route(f"/{name}/{it}", _named_checks(it, {it: check})) for it, check in checks.items()
        )
    return routes


def _route(path: str, handler: Handler) -> Route:
    return Route(path, frozenset({"GET"}), handler, is_node_independent=True)


def _plain_check(check: Check) -> Handler:
    async def handle(_: RoutedRequest) -> web.StreamResponse:
        problem = check()
        return text_response(500, problem) if problem else text_response(200, "ok")

    return handle


def _named_checks(name: str, checks: Mapping[str, Check]) -> Handler:
    async def handle(routed: RoutedRequest) -> web.StreamResponse:
        options = parse_qs(routed.query, keep_blank_values=True)
        healthy, lines = _evaluate(checks, options.get("exclude", []))
        if not healthy:
            return text_response(500, "\n".join([*lines, f"{name} check failed\n"]), _NO_CACHE)
        text = "\n".join([*lines, f"{name} check passed\n"]) if "verbose" in options else "ok"
        return text_response(200, text, _NO_CACHE)

    return handle


def _evaluate(checks: Mapping[str, Check], exclude: list[str]) -> tuple[bool, list[str]]:
    healthy, lines = True, []
    for name, check in checks.items():
        if name in exclude:
            lines.append(f"[+]{name} excluded: ok")
        elif check():
            healthy = False
            lines.append(f"[-]{name} failed: reason withheld")
        else:
            lines.append(f"[+]{name} ok")
    unknown = [f'"{name}"' for name in exclude if name not in checks]
    if unknown:
        which = ",".join(unknown)
        lines.append(f"warn: some health checks cannot be excluded: no matches for {which}")
    return healthy, lines
