"""The permissions at home of a bridge that serves the Remotes of a namespace, beside those of each
join (`bridge run --remotes`)."""

from __future__ import annotations

from collections.abc import Collection

from bridge.rbac.permissions import Permission
from sync.kube.api_resources import REMOTES, SECRETS


def for_remotes(namespace: str, secrets: Collection[str]) -> tuple[Permission, ...]:
    """The permissions in the namespace of the Remotes. ``secrets`` limits them to Secrets of these
    names; empty for all of the namespace."""
    return (
        # The finalizer is in the metadata.
        Permission(REMOTES, ("list", "watch", "patch"), namespace=namespace),
        Permission(REMOTES, ("patch",), "status", namespace=namespace),
        # Each by its name: RBAC permits a list and a watch of one name.
        Permission(SECRETS, ("list", "watch"), namespace=namespace, names=tuple(secrets)),
    )
