"""Translates a home PVC to the PVC in the remote that has its data.

The remote PVC has home's labels and annotations (`translators.storage.followed_metadata`), access
modes, volume mode and request, and the remote's StorageClass. It has no annotation of home's
scheduler, binder and provisioner: those would bind it to a node that the remote does not have.
"""

from __future__ import annotations

from typing import NamedTuple

from translators.derived_names import label_value
from translators.object_accessors import (
    Object,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    has_home_uid,
    owner_labels,
    remote_metadata,
)
from translators.quantity import is_quantity, parse_quantity
from translators.storage import followed_metadata
from translators.storage.identifiers import (
    ANNOTATION_UNFINISHED,
    LABEL_DATA_SOURCE,
    remote_claim_name,
)
from translators.storage.storage_class import ServedClass
from translators.translation_options import Policy

STORAGE = "storage"
_CLAIM = "PersistentVolumeClaim"
_SNAPSHOTS, _SNAPSHOT = "snapshot.storage.k8s.io", "VolumeSnapshot"


def unsupported_field(home: Object, served: ServedClass) -> str:
    """Why the remote cannot have the PVC, with what to change; "" if it can."""
    spec: Object = home.get("spec") or {}
    if spec.get("selector"):
        return "spec.selector selects among home's volumes; remove it, or use another StorageClass"
    if attributes := spec.get("volumeAttributesClassName"):
        return (
            f"VolumeAttributesClass {attributes} has no counterpart in the remote; remove "
            "spec.volumeAttributesClassName, or use another StorageClass"
        )
    if not is_quantity(requested(home)):
        return (
            "spec.resources.requests.storage has more digits, or a larger exponent, than the "
            "bridge reads; request an amount such as 10Gi"
        )
    if served.access_modes:
        modes = spec.get("accessModes") or ()
        if other := [it for it in modes if it not in served.access_modes]:
            return (
                f"StorageClass {served.name} does not permit the access mode {other[0]}; use "
                f"{', '.join(served.access_modes)}"
            )
    source = _data_source(spec)
    if source and not (_is_claim(source) or _is_snapshot(source)):
        return (
            f"the data source {source.get('kind')} {source.get('name')} is not copied to the "
            "remote; use a PersistentVolumeClaim or VolumeSnapshot in the same remote, or none"
        )
    if source and source.get("namespace") not in (None, metadata(home).get("namespace")):
        return "the data source is in another namespace; use a PersistentVolumeClaim of this one"
    return ""


def source_claim(home: Object) -> str:
    """The name of the home PVC of which this PVC is a clone; "" if it is none."""
    source = _data_source(home.get("spec") or {})
    return str(source.get("name") or "") if source and _is_claim(source) else ""


def source_snapshot(home: Object) -> str:
    """The name of the home VolumeSnapshot from which this PVC is restored; "" if it is not."""
    source = _data_source(home.get("spec") or {})
    return str(source.get("name") or "") if source and _is_snapshot(source) else ""


class DataSource(NamedTuple):
    """The PVC or VolumeSnapshot of which a PVC of the same cluster is a copy."""

    kind: str
    namespace: str
    name: str


def data_source(remote: Object) -> DataSource | None:
    """The object of which a remote PVC is a copy; None if it starts empty."""
    source = _data_source(remote.get("spec") or {})
    if not source:
        return None
    return DataSource(str(source.get("kind")), namespace_of(remote), str(source.get("name")))


def awaited_source(remote: Object) -> DataSource | None:
    """The object that the remote may still have to copy to the PVC, which was never bound; None if
    there is none."""
    phase = (remote.get("status") or {}).get("phase") or "Pending"
    return data_source(remote) if phase == "Pending" and not is_deleting(remote) else None


def to_remote(home: Object, served: ServedClass, policy: Policy, *, source: str = "") -> Object:
    """The remote PVC, marked as unfinished. ``source`` is the remote PVC that it is a clone of, or
    the remote VolumeSnapshot from which it is restored."""
    spec: Object = home.get("spec") or {}
    kept = ("accessModes", "volumeMode")
    remote_spec: Object = {key: spec[key] for key in kept if key in spec}
    remote_spec["resources"] = {"requests": {STORAGE: requested(home)}}
    if served.remote_class:
        remote_spec["storageClassName"] = served.remote_class
    if source:
        is_restored = _is_snapshot(_data_source(spec))
        kind = {"apiGroup": _SNAPSHOTS, "kind": _SNAPSHOT} if is_restored else {"kind": _CLAIM}
        remote_spec["dataSource"] = {**kind, "name": source}
    meta = remote_metadata(home, policy.identity)
    meta["name"] = remote_claim_name(home)
    passed = followed_metadata.passed_metadata(home, policy)
    copied = {LABEL_DATA_SOURCE: label_value(source)} if source else {}
    meta["labels"] = {**passed["labels"], **owner_labels(policy.identity), **copied}
    meta["annotations"] = {
        **passed["annotations"],
        **meta["annotations"],
        ANNOTATION_UNFINISHED: "true",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": meta,
        "spec": remote_spec,
    }


def origin_patch(home: Object, remote: Object) -> Object:
    """The patch by which a remote PVC names the home PVC that has its volume now; {} if it does.
    An administrator can bind a retained PersistentVolume to another home PVC."""
    if has_home_uid(remote, uid_of(home)):
        return {}
    origin = {
        ANNOTATION_HOME_NAMESPACE: namespace_of(home),
        ANNOTATION_HOME_NAME: name_of(home),
        ANNOTATION_HOME_UID: uid_of(home),
    }
    return {"metadata": {"annotations": origin}}


def requested(claim: Object) -> str:
    """The requested capacity of a PVC."""
    requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
    return str(requests.get(STORAGE) or "0")


def capacity(claim: Object) -> str:
    """The capacity of the PVC's volume; "" if it is not bound."""
    return str(((claim.get("status") or {}).get("capacity") or {}).get(STORAGE) or "")


def is_too_small(remote: Object, home: Object) -> bool:
    """Whether the remote's volume is smaller than home requests: home binds no such volume."""
    actual = capacity(remote)
    return bool(actual) and parse_quantity(actual) < parse_quantity(requested(home))


def request_patch(home: Object, remote: Object) -> Object:
    """The patch by which the remote PVC requests what home's does; {} if there is nothing to do.

    A request only grows, unless the remote has not reached the one before: then it may be reduced
    again (KEP-1790). A larger request of the remote is otherwise the work of its admission. A
    request that `unsupported_field` reports is not passed on.
    """
    if not is_quantity(requested(home)):
        return {}
    wanted, current = parse_quantity(requested(home)), parse_quantity(requested(remote))
    reached = parse_quantity(capacity(remote) or "0")
    if wanted > current or (0 < reached < wanted < current):
        return {"spec": {"resources": {"requests": {STORAGE: requested(home)}}}}
    return {}


def _data_source(spec: Object) -> Object:
    # API servers copy each of the two fields to the other, but for sources of other namespaces.
    source: Object = spec.get("dataSourceRef") or spec.get("dataSource") or {}
    return source


def _is_claim(source: Object) -> bool:
    return source.get("kind") == _CLAIM and not source.get("apiGroup")


def _is_snapshot(source: Object) -> bool:
    return source.get("kind") == _SNAPSHOT and source.get("apiGroup") == _SNAPSHOTS
