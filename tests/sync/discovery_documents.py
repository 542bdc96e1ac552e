"""Serves discovery documents, for tests that read every resource of a server."""

from __future__ import annotations

from aiohttp import web

from sync.kube.api_resources import Resource
from tests.fakeapi import FakeApi
from tests.fakeapi.server import Handler

WIDGETS = Resource("example.com", "v1", "widgets", "Widget")


def serve_discovery(api: FakeApi) -> None:
    """Serves discovery of all resources and of WIDGETS. The version of a group that was registered
    first is preferred."""

    async def groups(_request: web.Request) -> web.Response:
        versions: dict[str, list[dict[str, str]]] = {}
        for name in (it for it in api.store.registry.groups() if "/" in it):
            group, _, version = name.partition("/")
            versions.setdefault(group, []).append({"groupVersion": name, "version": version})
        rows = [
            {"name": group, "versions": its, "preferredVersion": its[0]}
            for group, its in versions.items()
        ]
        return web.json_response({"kind": "APIGroupList", "groups": rows})

    api.route("GET", "/apis", groups)
    api.route("GET", "/api/v1", _resources(api))
    for group_version in api.store.registry.groups():
        if "/" in group_version:
            api.route("GET", f"/apis/{group_version}", _resources(api))
    serve_resource(api, WIDGETS)


def serve_resource(api: FakeApi, resource: Resource) -> None:
    """Serves one more resource, and the discovery document of its group version."""
    api.register(resource)
    api.route("GET", f"/apis/{resource.api_version}", _resources(api))


def _resources(api: FakeApi) -> Handler:
    """Answers with the APIResourceList of the requested group version."""

    async def answer(request: web.Request) -> web.Response:
        group_version = request.path.removeprefix("/api/").removeprefix("/apis/")
        rows = [
            {
                "name": kind.resource.plural,
                "kind": kind.resource.kind,
                "namespaced": kind.resource.namespaced,
                "verbs": ["get", "list"],
            }
            for kind in api.store.registry.groups()[group_version]
        ]
        rows.append({"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"]})
        return web.json_response({"kind": "APIResourceList", "resources": rows})

    return answer
