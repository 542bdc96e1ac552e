"""Decides whether the bridge may use a remote namespace that it did not create: the remote's
administrator grants the namespace by an annotation, and the join accepts it by name."""

from __future__ import annotations

import fnmatch

from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import ANNOTATION_ACCEPTS, is_owned
from translators.virtual_node_identity import Identity


def is_usable_namespace(remote_namespace: Object, identity: Identity) -> bool:
    """Whether the labels and annotations allow the bridge to use the remote namespace. Only the
    record at home proves that this home created it (`sync.namespaces.namespace_ownership`)."""
    if is_owned(remote_namespace, identity):
        return True
    return is_granted_by_remote(remote_namespace, identity) and is_accepted_by_home(
        remote_namespace, identity
    )


def is_granted_by_remote(remote_namespace: Object, identity: Identity) -> bool:
    annotations = metadata(remote_namespace).get("annotations") or {}
    return annotations.get(ANNOTATION_ACCEPTS) in ("*", identity.home_name, identity.home_id)


def is_accepted_by_home(remote_namespace: Object, identity: Identity) -> bool:
    name = name_of(remote_namespace)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in identity.accepted_namespaces)


def unprepared_namespace_message(name: str) -> str:
    """Why a bridge that is limited to prepared namespaces does not use another one."""
    return (
        f"remote: namespace {name} does not exist or is none of --remote-namespaces, and the "
        "bridge creates none with that option; an administrator of the remote prepares it: "
        f"`bridge rbac remote --namespace {name}` prints its permissions"
    )


def unusable_namespace_message(remote_namespace: Object, identity: Identity) -> str:
    """Why the bridge does not use a remote namespace that `is_usable_namespace` rejects, and what
    to do."""
    name = name_of(remote_namespace)
    option = f"join with --accept-namespaces {name}"
    annotate = f"kubectl annotate namespace {name} {ANNOTATION_ACCEPTS}={identity.home_name}"
    if is_owned(remote_namespace, identity):
        return (
            f"namespace {name} of the remote cluster has this home's labels, but home has no "
            f"record that a bridge created it; to use it, {option}"
        )
    if is_granted_by_remote(remote_namespace, identity):
        return (
            f"namespace {name} of the remote cluster is granted to this home, but this bridge "
            f"does not accept it; {option}, or with another --namespace-template"
        )
    both = "" if is_accepted_by_home(remote_namespace, identity) else f", and {option}"
    return (
        f"namespace {name} exists in the remote cluster and is not managed by this bridge; join "
        "with another --namespace-template, or have its administrator grant it to this home: "
        f"{annotate}{both}"
    )
