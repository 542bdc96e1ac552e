"""``/livez`` and ``/readyz``, as an API server answers them.

Each is a list of checks by name. All hold: 200 and ``ok``, or with ``?verbose`` a line for each.
Any does not: 500 and these lines. ``?exclude=NAME`` passes one over, and ``/readyz/NAME`` asks one
alone. Why a check fails stands in the log and in the Node's conditions, not in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from aiohttp import web

from bridge.kubelet.routing import Handler, Route, RoutedRequest
from bridge.net.error_responses import text_response

#: Says in a sentence why it does not hold, or nothing.
Check = Callable[[], str]

#: That it answers is the answer; `str` says nothing.
PING: Mapping[str, Check] = {"ping": str}
_NOT_CACHED = {"Cache-Control": "no-cache, no-store"}


def routes(ready: Mapping[str, Check]) -> list[Route]:
    """What the kubelet API is to serve; ``ready`` are the checks beside ``ping``."""
    served = []
    for name, checks in (("livez", PING), ("readyz", {**PING, **ready})):
        served.append(_route(f"/{name}", name, checks))
        served.extend(_route(f"/{name}/{it}", it, {it: check}) for it, check in checks.items())
    return served


def _route(path: str, name: str, checks: Mapping[str, Check]) -> Route:
    return Route(path, frozenset({"GET"}), _answering(name, checks), is_node_independent=True)


def _answering(name: str, checks: Mapping[str, Check]) -> Handler:
    async def answer(call: RoutedRequest) -> web.StreamResponse:
        asked = parse_qs(call.query, keep_blank_values=True)
        healthy, lines = _looked(checks, asked.get("exclude", []))
        if not healthy:
            return text_response(500, "\n".join([*lines, f"{name} check failed\n"]), _NOT_CACHED)
        text = "\n".join([*lines, f"{name} check passed\n"]) if "verbose" in asked else "ok"
        return text_response(200, text, _NOT_CACHED)

    return answer


def _looked(checks: Mapping[str, Check], exclude: list[str]) -> tuple[bool, list[str]]:
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
