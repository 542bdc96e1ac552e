"""Routes: matching of paths, methods and parameters, and errors."""

from __future__ import annotations

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from bridge.kubelet.authz import node_subresources
from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.routing import Route, RoutedRequest, Router, split_target
from sync.kube.api_resources import PODS

GET = frozenset({"GET"})


async def _unused_handler(_: RoutedRequest) -> web.StreamResponse:
    """A handler that these tests do not call."""
    raise AssertionError


ROUTER = Router(
    [
        Route("/containerLogs/{namespace}/{pod}/{container}", GET, _unused_handler),
        Route(
            "/exec/{namespace}/{pod}/{uid}/{container}", frozenset({"GET", "POST"}), _unused_handler
        ),
        Route("/healthz", GET, _unused_handler),
        Route("/healthz/ping", GET, _unused_handler),
    ]
)


def find(target: str, method: str = "GET") -> tuple[str, dict[str, str]]:
    """The path of the route that a target finds, and its parameters."""
    route, parameters = ROUTER.find(method, split_target(target)[0])
    return route.path, parameters


def error_of(target: str, method: str = "GET") -> HttpError:
    """The error of a target."""
    with pytest.raises(HttpError) as refusal:
        find(target, method)
    return refusal.value


def test_parameters_are_parsed_from_the_path() -> None:
    path, parameters = find("/containerLogs/default/web.1/app?follow=true")
    assert path == "/containerLogs/{namespace}/{pod}/{container}"
    assert parameters == {"namespace": "default", "pod": "web.1", "container": "app"}


@pytest.mark.parametrize("target", ["/healthz", "/healthz/", "/healthz?a=/b/c"])
def test_trailing_slash_is_ignored(target: str) -> None:
    assert find(target) == ("/healthz", {})


@pytest.mark.parametrize(
    ("target", "method", "status"),
    [
        ("/", "GET", 404),
        ("//healthz", "GET", 404),
        ("/healthz//", "GET", 404),
        ("/healthz/log", "GET", 404),
        ("/Healthz", "GET", 404),
        ("/%68ealthz", "GET", 404),
        ("healthz", "GET", 404),
        ("https://node/healthz", "GET", 404),
        ("*", "GET", 404),
        ("/containerLogs/default/web", "GET", 404),
        ("/containerLogs/default/web/app/more", "GET", 404),
        ("/metrics", "GET", 404),
        ("/metrics/cadvisor", "GET", 404),
        ("/stats/summary", "GET", 404),
        ("/run/default/web/app", "POST", 404),
        ("/logs/", "GET", 404),
        ("/checkpoint/a/b/c", "POST", 404),
        ("/debug/pprof/", "GET", 405),
        ("/healthz", "POST", 405),
        ("/exec/default/web/u/app", "DELETE", 405),
    ],
)
def test_unknown_paths(target: str, method: str, status: int) -> None:
    refusal = error_of(target, method)
    assert refusal.status == status
    assert len(refusal.message) > 10


def test_wrong_method_gets_405_with_allow() -> None:
    assert error_of("/exec/default/web/u/app", "PUT").headers == {"Allow": "GET, POST"}


@pytest.mark.parametrize(
    "segment",
    [
        "",
        ".",
        "..",
        "%2e%2e",
        "%2E",
        "a%2fb",
        "a%2Fb",
        "%252e",
        "a%00",
        "a%0a",
        "a%",
        "a%zz",
        "A",
        "ä",
        "%c3%a4",
        "-a",
        "a-",
        "a_b",
        "a b",
        "a\\b",
        "a" * 64,
        "a#b",
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_invalid_names_get_400(segment: str, place: int) -> None:
    parts = ["default", "web", "app"]
    parts[place] = segment
    assert error_of("/containerLogs/" + "/".join(parts)).status in (400, 404)


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/stats/summary", ("stats",)),
        ("/metrics", ("metrics",)),
        ("/metrics/resource", ("metrics",)),
        ("/logs/", ("log",)),
        ("/checkpoint/a/b/c", ("checkpoint",)),
        ("/pods", ("pods", "proxy")),
        ("/runningpods/", ("pods", "proxy")),
        ("/healthz/ping", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/podsx", ("proxy",)),
        ("/exec/a/b/c", ("proxy",)),
        ("/pods/../exec/a/b/c", ("pods", "proxy")),
        ("//pods", ("proxy",)),
        ("/", ("proxy",)),
        ("nothing", ("proxy",)),
    ],
)
def test_node_subresources_by_path(path: str, needed: tuple[str, ...]) -> None:
    assert node_subresources(split_target(path)[0]) == needed


NASTY = st.sampled_from(
    [
        "exec",
        "containerLogs",
        "..",
        "%2e%2e",
        "%2f",
        "/",
        "",
        "a",
        "web",
        "%",
        "%00",
        "\x00",
        "é",
        "?",
    ]
)
METHODS = st.sampled_from(["GET", "POST", "DELETE"])


@given(st.lists(NASTY | st.text(max_size=8), max_size=8), METHODS)
def test_random_paths_raise_only_http_errors(parts: list[str], method: str) -> None:
    status, parameters = status_and_parameters("/" + "/".join(parts), method)
    assert status == 200 or 400 <= status < 500
    for name, value in parameters.items():
        assert value.isascii(), name
        assert value.replace("-", "").replace(".", "").isalnum(), name
    if "pod" in parameters:
        path = PODS.path(parameters["pod"], namespace=parameters["namespace"], subresource="log")
        assert len(path.split("/")) == 8
        assert ".." not in path.split("/")


def status_and_parameters(target: str, method: str) -> tuple[int, dict[str, str]]:
    """The status code of a target, and its parameters if it is 200."""
    try:
        return 200, find(target, method)[1]
    except HttpError as refusal:
        refusal.message.encode()  # it can be sent over HTTP
        return refusal.status, {}
