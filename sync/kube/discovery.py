"""Lists the resources that an API server serves (`/apis`, `/apis/GROUP/VERSION`).

Every served version of every group is read: a CustomResourceDefinition can serve a resource in
another version than its group prefers. A resource in several versions counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus

from sync.kube.api_errors import ApiError
from sync.kube.api_resources import Object, Resource
from sync.kube.client import KubeClient

#: Discovery documents to request at once.
MAX_CONCURRENT = 16
#: A group that every API server has. The groups in `/apis` come from a cache (kube-aggregator's
#: handler_apis.go), which is filled after the server begins to respond.
EVERY_GROUP = "discovery.k8s.io"


@dataclass(frozen=True, slots=True)
class ListableResources:
    """The namespaced resources of one API server that support ``list``, each in one version."""

    resources: tuple[Resource, ...]
    incomplete_reason: str
    """Why ``resources`` may be incomplete, without a full stop; "" if it is complete."""


async def list_namespaced_resources(
    client: KubeClient, *, without: Collection[str] = ()
) -> ListableResources:
    """Returns the namespaced resources that can be listed, except those of the groups ``without``.

    A group version whose discovery fails makes the result incomplete, also with 404: an aggregated
    API whose server is down still has objects. So does a list of groups without `EVERY_GROUP`: an
    API server that has just started lists few of them. Raises KubeError if `/apis` fails.
    """
    gate = asyncio.Semaphore(MAX_CONCURRENT)
    served = (await client.request("GET", "/apis")).get("groups") or ()
    groups = [group for group in served if group.get("name") not in without]
    paths = ["/api/v1", *(f"/apis/{version}" for group in groups for version in _versions(group))]

    async def read(path: str) -> Object | ApiError:
        async with gate:
            try:
                return await client.request("GET", path)
            except ApiError as error:
                return error

    resources: dict[tuple[str, str], Resource] = {}
    incomplete = "" if _is_complete(served) else "the API server does not list its API groups yet"
    for path, answer in zip(paths, await asyncio.gather(*map(read, paths)), strict=True):
        group_version = path.removeprefix("/apis/").removeprefix("/api/")
        if isinstance(answer, ApiError):
            incomplete = incomplete or f"discovery of {group_version} failed: {answer.message}"
            continue
        for resource in _listable(group_version, answer):
            resources.setdefault((resource.group, resource.plural), resource)
    return ListableResources(tuple(resources.values()), incomplete)


async def serves_resource(client: KubeClient, resource: Resource) -> bool:
    """Whether the API server serves the resource: a CustomResourceDefinition may be missing. Raises
    KubeError.

    For a group version that it does not serve, a server responds 404 without a Status, which is no
    `NotFound`, and which a proxy may respond too. So a 404 counts only if a complete `/apis` does
    not list the group version; otherwise it is raised.
    """
    try:
        served = await client.request("GET", f"/apis/{resource.api_version}")
    except ApiError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        groups = (await client.request("GET", "/apis")).get("groups") or ()
        is_listed = any(resource.api_version in _versions(group) for group in groups)
        if is_listed or not _is_complete(groups):
            raise
        return False
    return any(it.get("name") == resource.plural for it in served.get("resources") or ())


def _is_complete(groups: Collection[Object]) -> bool:
    return any(group.get("name") == EVERY_GROUP for group in groups)


def _versions(group: Object) -> list[str]:
    preferred = str((group.get("preferredVersion") or {}).get("groupVersion") or "")
    versions = [str(it.get("groupVersion") or "") for it in group.get("versions") or ()]
    return [it for it in dict.fromkeys([preferred, *versions]) if it]


def _listable(group_version: str, answer: Object) -> list[Resource]:
    group, _, version = group_version.rpartition("/")
    return [
        Resource(group, version, str(it["name"]), str(it["kind"]))
        for it in answer.get("resources") or ()
        if it.get("namespaced") and "list" in (it.get("verbs") or ())
    ]
