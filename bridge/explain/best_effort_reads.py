"""Reads objects for a report, and collects a note for each object that cannot be read.

Of ConfigMaps and Secrets, only the names of the keys are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from sync.kube.api_errors import KubeError
from sync.kube.api_resources import EVENTS, Resource
from sync.kube.client import KubeClient
from translators.object_accessors import Object, namespace_of, uid_of


async def get_objects(
    client: KubeClient, requested: Iterable[tuple[Resource, str]], namespace: str, unseen: list[str]
) -> dict[tuple[str, str], Object | None]:
    """The objects by kind and name; None does not exist, an absent key could not be read."""
    found: dict[tuple[str, str], Object | None] = {}

    async def read(resource: Resource, name: str) -> None:
        try:
            obj = await client.find(resource, name, namespace=namespace or None)
        except KubeError as error:
            unseen.append(_note(client, f"{resource.kind} {name}", error))
        else:
            found[resource.kind, name] = None if obj is None else _without_data(obj)

    await asyncio.gather(*(read(*it) for it in dict.fromkeys(requested)))
    return found


def _without_data(obj: Object) -> Object:
    """The object with the keys of its data and empty values."""
    keys = {key: "" for part in ("data", "binaryData") for key in obj.get(part) or ()}
    rest = {k: v for k, v in obj.items() if k not in ("data", "binaryData")}
    return {**rest, "data": keys} if keys else rest


async def get_object(
    client: KubeClient, resource: Resource, name: str, unseen: list[str], *, namespace: str = ""
) -> Object | None:
    """The object; None if it does not exist or, with a note in ``unseen``, cannot be read."""
    found = await get_objects(client, [(resource, name)], namespace, unseen)
    return found.get((resource.kind, name))


async def list_objects(
    client: KubeClient, resource: Resource, unseen: list[str], **query: Any
) -> list[Object]:
    """The objects; an empty list and a note in ``unseen`` where they cannot be listed."""
    try:
        return (await client.list(resource, **query)).items
    except KubeError as error:
        unseen.append(_note(client, f"its {resource.plural}", error))
        return []


async def list_events(client: KubeClient, about: Object, unseen: list[str]) -> list[Object]:
    """The Events about an object, as `list_objects`."""
    fields = f"involvedObject.uid={uid_of(about)}"
    return await list_objects(client, EVENTS, unseen, namespace=namespace_of(about), fields=fields)


def _note(client: KubeClient, what: str, error: KubeError) -> str:
    return f"{client.side}: {what}: {error.message}"
