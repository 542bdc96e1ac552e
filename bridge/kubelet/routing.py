"""Routes of the kubelet API: matches a raw request path and validates its parameters. Pure.

A segment is percent-decoded once and must then be a valid name, so that no encoded slash, dot or
percent sign leads to another path. Authorization (`bridge.kubelet.authz`) and routing use the same
first segment of the raw path, so they cannot disagree about it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from aiohttp import web

from bridge.kubelet.authn import User
from bridge.kubelet.error_responses import HttpError

#: Paths of a kubelet that a virtual node lacks, by their first segment: status code and message.
_NOT_SERVED: Mapping[str, tuple[int, str]] = {
    "metrics": (
        404,
        "a virtual node serves /metrics, and below it resource, cadvisor, probes and slis",
    ),
    "stats": (404, "a virtual node serves /stats/summary only"),
    "bridge": (404, "a virtual node serves /bridge/ and /bridge/v1/status"),
    "logs": (404, "a virtual node has no log files of its own; see the log of the bridge"),
    "checkpoint": (404, "pods of a virtual node cannot be checkpointed"),
    "debug": (405, "a virtual node serves no debugging endpoints"),
}

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
#: Pattern and maximum length by path parameter. Namespaces and containers are DNS labels, pods DNS
#: subdomains; the UID of a static pod is a hash without hyphens.
_PARAMETERS: Mapping[str, tuple[re.Pattern[str], int]] = {
    "namespace": (re.compile(_LABEL), 63),
    "pod": (re.compile(rf"{_LABEL}(?:\.{_LABEL})*"), 253),
    "uid": (re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?"), 63),
    "container": (re.compile(_LABEL), 63),
}
_ESCAPES = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """An authorized request with the validated parameters of its route and its raw query."""

    request: web.BaseRequest
    user: User
    """The caller."""
    parameters: Mapping[str, str]
    query: str


Handler = Callable[[RoutedRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path such as ``/exec/{namespace}/{pod}/{container}``, its methods and its handler.

    Names in braces are keys of the table of parameters. A trailing slash of a request is ignored.
    A standby replica serves only routes that are ``is_node_independent``: about the process.
    """

    path: str
    methods: frozenset[str]
    handler: Handler
    is_node_independent: bool = False

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


def split_target(raw: str) -> tuple[tuple[str, ...], str]:
    """Splits a raw request target into undecoded path segments and the raw query.

    A target that is not an absolute path has no segments and matches no route.
    """
    path, _, query = raw.partition("?")
    if not path.startswith("/"):
        return (), query
    segments = path[1:].split("/")
    if len(segments) > 1 and segments[-1] == "":
        segments.pop()
    return tuple(segments), query


def validated_parameter(parameter: str, segment: str) -> str:
    """Decodes and validates a path parameter. Raises HttpError (400)."""
    pattern, length = _PARAMETERS[parameter]
    name = percent_decode(segment)
    if len(name) > length or not pattern.fullmatch(name):
        raise HttpError(400, f"{name[:length]!r} in the path is not a valid {parameter} name")
    return name


def percent_decode(text: str) -> str:
    """Percent-decodes once; bytes that are not UTF-8 become surrogate escapes.

    Raises HttpError (400) for a percent sign that starts no escape.
    """
    if not _ESCAPES.fullmatch(text):
        raise HttpError(400, "the address has a malformed percent-escape")
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )


class Router:
    """Finds the route of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_first_segment: dict[str, list[Route]] = {}
        for route in routes:
            self._by_first_segment.setdefault(route.segments[0], []).append(route)

    def find(self, method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]]:
        """The route and its parameters. Raises HttpError: 404, 405, or 400 for a parameter."""
        first = segments[0] if segments else ""
        routes = [
            r for r in self._by_first_segment.get(first, ()) if _matches(r.segments, segments)
        ]
        if not routes:
            raise HttpError(*_NOT_SERVED.get(first, (404, "the kubelet API has no such path")))
        route = next((r for r in routes if method in r.methods), None)
        if route is None:
            allowed = ", ".join(sorted({m for r in routes for m in r.methods}))
            raise HttpError(
                405,
                f"method {method} is not supported here; use {allowed}",
                headers={"Allow": allowed},
            )
        parameters = (
            (re.sub(r"[{}]", "", pattern), segment)
            for pattern, segment in zip(route.segments, segments, strict=True)
            if pattern.startswith("{")
        )
        return route, {name: validated_parameter(name, segment) for name, segment in parameters}


def _matches(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    return len(pattern) == len(segments) and all(
        expected.startswith("{") or expected == segment
        for expected, segment in zip(pattern, segments, strict=True)
    )
