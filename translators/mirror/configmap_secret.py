"""Translates ConfigMaps and Secrets: data, labels, type and ``immutable`` are unchanged.

The bridge never copies service account tokens: they authenticate as home's identity to home's API
server.
"""

from __future__ import annotations

from translators.object_accessors import Object
from translators.ownership_labels import remote_metadata
from translators.virtual_node_identity import Identity

#: Type of the legacy token Secrets, whose data each cluster's token controller writes.
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105  # a type's name


def is_copied_secret(home: Object) -> bool:
    """Whether the bridge copies the Secret to the remote."""
    return home.get("type") != SERVICE_ACCOUNT_TOKEN


def translate_data(home: Object, identity: Identity) -> Object:
    """The remote copy of a home ConfigMap or Secret: only the metadata differs."""
    return {**home, "metadata": remote_metadata(home, identity)}
