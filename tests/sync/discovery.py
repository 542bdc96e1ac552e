"""The API's discovery, for tests of what looks at every kind that a server has."""

from __future__ import annotations

from aiohttp import web

from sync.kube.resources import Resource
from tests.fakeapi import FakeApi

WIDGETS = Resource("example.com", "v1", "widgets", "Widget")


def serve_discovery(api: FakeApi) -> None:
    """The server tells what it serves, each kind with its verbs; also a kind of its own."""

    async def groups(_: web.Request) -> web.Response:
        names = [name for name in api.store.registry.groups() if "/" in name]
        versions = [{"preferredVersion": {"groupVersion": name}} for name in names]
        return web.json_response({"kind": "APIGroupList", "groups": versions})

    async def kinds(request: web.Request) -> web.Response:
        found = api.store.registry.groups()[
            request.path.removeprefix("/api/").removeprefix("/apis/")
        ]
        rows = [
            {
                "name": kind.resource.plural,
                "kind": kind.resource.kind,
                "namespaced": kind.resource.namespaced,
                "verbs": ["get", "list"],
            }
            for kind in found
        ]
        rows.append({"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"]})
        return web.json_response({"kind": "APIResourceList", "resources": rows})

    api.route("GET", "/apis", groups)
    api.route("GET", "/api/v1", kinds)
    api.register(WIDGETS)
    for name in api.store.registry.groups():
        if "/" in name:
            api.route("GET", f"/apis/{name}", kinds)
