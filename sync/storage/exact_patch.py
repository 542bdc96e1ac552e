"""Patches an object of a cache: exactly this one, and the cache has the result at once."""

from __future__ import annotations

from sync.cache.informer import Informer
from sync.kube.api_errors import NotFound
from translators.object_accessors import Object, name_of, namespace_of, uid_of


async def patch_exactly(
    informer: Informer, obj: Object, patch: Object, *, subresource: str | None = None
) -> bool:
    """Patches the object if it still has the UID; returns whether it exists. Raises KubeError, and
    Conflict if another object has its name now."""
    meta = {**(patch.get("metadata") or {}), "uid": uid_of(obj)}
    try:
        changed = await informer.client.patch(
            informer.resource,
            name_of(obj),
            {**patch, "metadata": meta},
            namespace=namespace_of(obj) or None,
            subresource=subresource,
        )
    except NotFound:
        return False
    informer.observe_write(changed)
    return True
