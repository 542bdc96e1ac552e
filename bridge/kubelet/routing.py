"""The table of what the kubelet API answers, and the reading of a path by it.

A `Route` is a line of that table; more are given to the server by its caller. Reading is pure. The
same first segment of the raw path decides what a caller must be allowed (`subresources`) and which
routes are looked at, so the two cannot be made to differ.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web

from bridge.kubelet.path_names import checked
from bridge.net.error_responses import HttpError

#: What a kubelet of 1.34 asks for by the first segment; everything else is ``proxy``. Only the
#: finer ones, which are younger than ``proxy``, fall back to it.
_SUBRESOURCES: Mapping[str, tuple[str, ...]] = {
    "stats": ("stats",),
    "metrics": ("metrics",),
    # What no kubelet has: the bridge's own state, for those who may have its numbers.
    "bridge": ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "statusz": ("statusz",),
    "flagz": ("configz",),
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "livez": ("healthz", "proxy"),
    "readyz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
}

#: What a method is to an API server. Others (HEAD, OPTIONS) are nothing that could be allowed.
VERBS: Mapping[str, str] = {
    "GET": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
#: First segments under which commands run and connections are made. A WebSocket begins with a GET,
#: which is no reading here: these take ``create`` whatever the method. A kubelet takes the method's
#: verb, so that an account with ``get`` on nodes/proxy alone, as monitoring has, can run commands.
#: Home's API server has all verbs of nodes/proxy (ClusterRole ``system:kubelet-api-admin``).
_CONNECTING = frozenset({"exec", "attach", "run", "portForward"})

#: What a kubelet has and this one has not: code, and the sentence.
_ABSENT: Mapping[str, tuple[int, str]] = {
    "metrics": (
        404,
        "a virtual node has /metrics and below it resource, cadvisor, probes and slis",
    ),
    "stats": (404, "a virtual node has /stats/summary"),
    "bridge": (404, "a virtual node has /bridge/ and /bridge/v1/status"),
    "logs": (404, "a virtual node is no machine, so it has no log files; see the bridge's own log"),
    "checkpoint": (404, "the pods of a virtual node cannot be checkpointed"),
    "debug": (405, "debugging endpoints are not served by a virtual node"),
}


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """One request that may be answered: its route's parameters, checked, and its raw query."""

    request: web.BaseRequest
    parameters: Mapping[str, str]
    query: str


Handler = Callable[[RoutedRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path such as ``/exec/{namespace}/{pod}/{container}``, its methods, and who answers.

    What stands in braces is one of the names of `names.checked`. A slash at the end of a request's
    path is ignored. ``of_itself``: it is about this process, which may serve no node just now.
    """

    path: str
    methods: frozenset[str]
    handler: Handler
    is_node_independent: bool = False

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path."""
        return tuple(self.path.strip("/").split("/"))


def split_target(raw: str) -> tuple[tuple[str, ...], str]:
    """The segments of a raw request target, not decoded, and its raw query.

    What is no absolute path has no segments, so it finds no route.
    """
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        return (), query
    segments = path[1:].split("/")
    if len(segments) > 1 and segments[-1] == "":
        segments.pop()
    return tuple(segments), query


def subresources(segments: tuple[str, ...]) -> tuple[str, ...]:
    """The subresources of nodes of which the caller needs one, in the order of asking."""
    return _SUBRESOURCES.get(segments[0] if segments else "", ("proxy",))


def verb(method: str, segments: tuple[str, ...]) -> str | None:
    """What the caller must be allowed to do with one of `subresources`; None for a method that is
    not offered anywhere."""
    of_method = VERBS.get(method)
    connects = segments[:1] and segments[0] in _CONNECTING
    return "create" if of_method and connects else of_method


class Router:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_root: dict[str, list[Route]] = {}
        for route in routes:
            self._by_root.setdefault(route.segments[0], []).append(route)

    def find(self, method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]]:
        """The route and its checked parameters. Raises HttpError: 404, 405, or 400 for a name."""
        root = segments[0] if segments else ""
        found = [r for r in self._by_root.get(root, ()) if _fits(r.segments, segments)]
        if not found:
            raise HttpError(*_ABSENT.get(root, (404, "the kubelet API has no such path")))
        route = next((r for r in found if method in r.methods), None)
        if route is None:
            allowed = ", ".join(sorted({m for r in found for m in r.methods}))
            raise HttpError(
                405, f"{method} is not offered here, only {allowed}", headers={"Allow": allowed}
            )
        names = (
            (re.sub(r"[{}]", "", pattern), segment)
            for pattern, segment in zip(route.segments, segments, strict=True)
            if pattern.startswith("{")
        )
        return route, {name: checked(name, segment) for name, segment in names}


def _fits(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(pattern) == len(segments) and all(
        ours.startswith("{") or ours == theirs
        for ours, theirs in zip(pattern, segments, strict=True)
    )
