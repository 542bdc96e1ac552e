"""Reads for a person's question, of which any may fail: what could not be read is noted.

Of ConfigMaps and Secrets no more than the names of their keys is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from sync.kube.client import KubeClient
from sync.kube.errors import KubeError, NotFound
from sync.kube.resources import EVENTS, Resource
from translators.objects import Object, namespace_of, uid_of

#: The answer where there was none.
_UNKNOWN: Object = {}


async def get_objects(
    client: KubeClient,
    asked_for: Iterable[tuple[Resource, str]],
    namespace: str,
    unseen: list[str],
) -> dict[tuple[str, str], Object | None]:
    """The objects by kind and name; None is missing, and what could not be read is not there."""
    several = list(dict.fromkeys(asked_for))
    answers = await asyncio.gather(
        *(
            get_object(client, resource, name, unseen, namespace=namespace, ask=True)
            for resource, name in several
        )
    )
    found = {}
    for (resource, name), answer in zip(several, answers, strict=True):
        if answer is not _UNKNOWN:
            found[resource.kind, name] = _without_data(answer)
    return found


def _without_data(obj: Object | None) -> Object | None:
    """The object with its keys alone."""
    if obj is None:
        return None
    keys = {key: "" for part in ("data", "binaryData") for key in obj.get(part) or ()}
    return {**{k: v for k, v in obj.items() if k not in ("data", "binaryData")}, "data": keys}


async def get_object(
    client: KubeClient,
    resource: Resource,
    name: str,
    unseen: list[str],
    *,
    namespace: str = "",
    ask: bool = False,
) -> Object | None:
    """The object, or None where it is missing; where that cannot be said, a note, and None or (if
    ``ask``) `_UNKNOWN`."""
    try:
        return await client.get(resource, name, namespace=namespace or None)
    except NotFound:
        return None
    except KubeError as error:
        unseen.append(_note(client, f"{resource.kind} {name}", error))
        return _UNKNOWN if ask else None


async def list_objects(
    client: KubeClient, resource: Resource, unseen: list[str], **query: Any
) -> list[Object]:
    """The objects; none where they cannot be listed."""
    try:
        return (await client.list(resource, **query)).items
    except KubeError as error:
        unseen.append(_note(client, f"its {resource.plural}", error))
        return []


async def list_events(client: KubeClient, about: Object, unseen: list[str]) -> list[Object]:
    """The Events about an object."""
    fields = f"involvedObject.uid={uid_of(about)}"
    return await list_objects(client, EVENTS, unseen, namespace=namespace_of(about), fields=fields)


def _note(client: KubeClient, what: str, error: KubeError) -> str:
    return f"{client.config.side}: {what}: {error.message}"
