"""Waits until home serves one of several custom resources, by watches of their definitions.

The watches are of single objects, share a connection with others of that kind
(`sync.kube.shared_connections`), and need no permission for any other CustomResourceDefinition.
They end with the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sync.cache.informer import Informer
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from sync.kube.client import KubeClient
from translators.object_accessors import Object, condition_of, is_deleting, metadata


async def wait_until_served(client: KubeClient, resources: Sequence[Resource]) -> None:
    """Returns once one of the resources is served. Raises Forbidden if the credential may not read
    their definitions."""
    served = asyncio.Event()
    informers = [_informer(client, it, served) for it in resources]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(it.run(), name=f"watch definition of {resource}")
            for it, resource in zip(informers, resources, strict=True)
        ]
        await served.wait()
        for task in tasks:
            task.cancel()
    if forbidden := next((it.error for it in informers if isinstance(it.error, Forbidden)), None):
        raise forbidden


def _informer(client: KubeClient, resource: Resource, served: asyncio.Event) -> Informer:
    informer = Informer(
        client,
        CUSTOM_RESOURCE_DEFINITIONS,
        fields=f"metadata.name={resource}",
        slim=_slim,
        shares_connection=True,
        quiet=(Forbidden,),
    )

    def changed(_: Object | None, new: Object | None) -> None:
        if new is not None and _is_served(new, resource):
            served.set()

    def state_changed(one: Informer) -> None:
        if isinstance(one.error, Forbidden):
            served.set()

    informer.on_change(changed)
    informer.on_state(state_changed)
    return informer


def _slim(definition: Object) -> Object:
    meta, spec, status = metadata(definition), definition["spec"], definition.get("status") or {}
    kept = ("name", "uid", "resourceVersion", "deletionTimestamp")
    versions = [
        {"name": it.get("name"), "served": it.get("served")} for it in spec.get("versions") or ()
    ]
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"versions": versions},
        "status": {"conditions": status.get("conditions") or []},
    }


def _is_served(definition: Object, resource: Resource) -> bool:
    established = condition_of(definition, "Established").get("status") == "True"
    return (
        established
        and not is_deleting(definition)
        and any(
            it["name"] == resource.version and it["served"] for it in definition["spec"]["versions"]
        )
    )
