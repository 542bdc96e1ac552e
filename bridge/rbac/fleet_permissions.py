"""The permissions at home of a bridge that serves the Remotes or the ClusterProfiles of a
namespace, beside those of each join (`bridge run --remotes`, `--cluster-profiles`)."""

from __future__ import annotations

from collections.abc import Collection

from bridge.rbac.permissions import Permission
from sync.kube.api_resources import CLUSTER_PROFILES, EVENTS, REMOTES, SECRETS


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


def for_cluster_profiles(namespace: str, secrets: Collection[str]) -> tuple[Permission, ...]:
    """The same in the namespace of ClusterProfiles."""
    return (
        # The finalizer. The bridge cannot write the status, which describes the cluster.
        Permission(CLUSTER_PROFILES, ("list", "watch", "patch"), namespace=namespace),
        # To read one, to count it again, is in `bridge.rbac.permissions.HOME`.
        Permission(EVENTS, ("create", "patch"), namespace=namespace),
        Permission(SECRETS, ("list", "watch"), namespace=namespace, names=tuple(secrets)),
    )
