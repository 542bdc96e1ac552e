"""A home ConfigMap as it stands in the remote: data, binary data and ``immutable`` as they are."""

from __future__ import annotations

from translators.identity import Identity, remote_metadata
from translators.objects import Object


def to_remote(home: Object, identity: Identity) -> Object:
    """The remote counterpart of a home ConfigMap; every field but metadata is carried."""
    return {**home, "metadata": remote_metadata(home, identity)}
