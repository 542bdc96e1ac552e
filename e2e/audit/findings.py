"""Findings of an audit, and the labels that identify managed objects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

#: Labels and annotations of the bridge's objects in a remote. Repeated here, because an auditor
#: that imported them would not notice a change.
DOMAIN = "cluster-bridge.io"
LABEL_HOME = f"{DOMAIN}/home"
LABEL_NODE = f"{DOMAIN}/node"
HOME_NAMESPACE = f"{DOMAIN}/home-namespace"
HOME_NAME = f"{DOMAIN}/home-name"
HOME_UID = f"{DOMAIN}/home-uid"
#: Annotation of copies: the keys of labels and annotations that were copied, by field, as JSON.
COPIED_KEYS = f"{DOMAIN}/carried-keys"
#: The scheduling gate of a run-once pod.
GATE = f"{DOMAIN}/once"
#: Annotation by which the owner of an unmanaged namespace hands it over to a home.
ACCEPTS = f"{DOMAIN}/accepts-home"

#: Annotation of remote pods whose requests a test's webhook changed at creation.
MUTATED = "faults.example.com/mutated"

TERMINAL = ("Succeeded", "Failed")


class Kind(StrEnum):
    """Kinds of findings."""

    LOST = "lost"
    """Home has the object, and the remote lacks it."""
    DUPLICATED = "duplicated"
    """The remote has it more than once, or created it more often than allowed."""
    TWICE_RUN = "twice-run"
    """Something that may run once was started again."""
    LEAKED = "leaked"
    """The remote has a managed object that home does not need."""
    STUCK = "stuck"
    """It should no longer exist at home."""
    DISAGREES = "disagreeing"
    """Both clusters have it, and they differ."""
    UNMANAGED_TOUCHED = "foreign-touched"
    """An unmanaged object was changed or removed."""
    HARMED = "harmed"
    """A running pod that no user touched ended or restarted."""
    UNSEEN = "unseen"
    """The auditor's watch missed it: its history is unknown."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One finding; ``subject`` is `subject_of` the object."""

    kind: Kind
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.detail}"


def meta(obj: Json) -> Json:
    """The object's metadata."""
    found: Json = obj["metadata"]
    return found


def uid(obj: Json) -> str:
    """``metadata.uid``."""
    return str(meta(obj)["uid"])


def subject_of(obj: Json) -> str:
    """``Kind namespace/name``."""
    namespace = meta(obj).get("namespace")
    return f"{obj['kind']} {namespace + '/' if namespace else ''}{meta(obj)['name']}"


def labels_of(obj: Json) -> dict[str, str]:
    """The object's labels."""
    return meta(obj).get("labels") or {}


def annotations_of(obj: Json) -> dict[str, str]:
    """The object's annotations."""
    return meta(obj).get("annotations") or {}


def is_deleting(obj: Json) -> bool:
    """Whether the object is being deleted."""
    return "deletionTimestamp" in meta(obj)


def is_terminal(pod: Json) -> bool:
    """Whether the pod has ended."""
    return phase(pod) in TERMINAL


def phase(pod: Json) -> str:
    """The pod's phase; Pending if it has none."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_daemon(pod: Json) -> bool:
    """Whether a DaemonSet created the pod; such pods do not run in a remote."""
    return any(owner["kind"] == "DaemonSet" for owner in meta(pod).get("ownerReferences") or ())


def written_by_controller(obj: Json) -> bool:
    """Whether the remote's own controller created this EndpointSlice, with the labels of its
    Service."""
    writer = labels_of(obj).get("endpointslice.kubernetes.io/managed-by", "")
    return writer.endswith("controller.k8s.io")


def is_managed(remote: Json, node: str) -> bool:
    """Whether a bridge created this remote object for the virtual node ``node``."""
    return labels_of(remote).get(LABEL_NODE) == node and not written_by_controller(remote)


def is_unmanaged(remote: Json) -> bool:
    """Whether no bridge created this remote object."""
    return LABEL_HOME not in labels_of(remote)


def of_kind(objects: Iterable[Json], *kinds: str) -> Iterator[Json]:
    """The objects of these kinds."""
    return (obj for obj in objects if obj["kind"] in kinds)


def field_differences(
    where: str, home: Mapping[str, Any], remote: Mapping[str, Any], keys: Iterable[str]
) -> Iterator[str]:
    """The differences of the values of these keys."""
    for key in keys:
        if home.get(key) != remote.get(key):
            yield f"{where}{key}: home {home.get(key)!r}, remote {remote.get(key)!r}"


def metadata_differences(
    home: Json, remote: Json, fields: Iterable[str] = ("labels", "annotations")
) -> Iterator[str]:
    """Differences of labels and annotations that should be copied from home.

    The remote's users and controllers may add keys. Those that the bridge has copied are in its
    record.
    """
    recorded: Mapping[str, list[str]] = json.loads(annotations_of(remote).get(COPIED_KEYS, "{}"))
    for field in fields:
        copied = {
            key: value
            for key, value in (meta(home).get(field) or {}).items()
            if not _is_private(key)
        }
        remote_values = meta(remote).get(field) or {}
        for key, value in copied.items():
            if remote_values.get(key) != value:
                yield f"{field} {key}: home {value!r}, remote {remote_values.get(key)!r}"
        for key in recorded.get(field, ()):
            if key in remote_values and key not in copied:
                yield f"{field} {key}: only in the remote"


def _is_private(key: str) -> bool:
    domain = key.partition("/")[0]
    return (
        domain == DOMAIN
        or domain.endswith(f".{DOMAIN}")
        or key == "kubectl.kubernetes.io/last-applied-configuration"
    )
