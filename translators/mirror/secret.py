"""A home Secret as it stands in the remote: type, data and ``immutable`` as they are.

Tokens of service accounts are never copied: they speak for home's identity, to home's API.
"""

from __future__ import annotations

from translators.identity import Identity, remote_metadata
from translators.objects import Object

#: The legacy type whose data the token controller of each cluster writes itself.
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105  # a type's name


def is_copied(home: Object) -> bool:
    """Whether the Secret may leave home."""
    return home.get("type") != SERVICE_ACCOUNT_TOKEN


def to_remote(home: Object, identity: Identity) -> Object:
    """The remote counterpart of a home Secret; every field but metadata is carried."""
    return {**home, "metadata": remote_metadata(home, identity)}
