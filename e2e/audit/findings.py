"""What an audit finds, and how objects of the two clusters are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

#: What the bridge promises to write on each object of its own in a remote. Spelled out here: an
#: auditor that imported them would not notice when they change.
DOMAIN = "cluster-bridge.io"
LABEL_HOME = f"{DOMAIN}/home"
LABEL_NODE = f"{DOMAIN}/node"
HOME_NAMESPACE = f"{DOMAIN}/home-namespace"
HOME_NAME = f"{DOMAIN}/home-name"
HOME_UID = f"{DOMAIN}/home-uid"
#: The scheduling gate of a pod that runs once, until it may.
GATE = f"{DOMAIN}/once"
#: What others write on a namespace of theirs that a bridge may use.
ACCEPTS = f"{DOMAIN}/accepts-home"

#: A webhook of a test annotates pods of the remote with it whose requests it changed at creation.
MUTATED = "faults.example.com/mutated"

TERMINAL = ("Succeeded", "Failed")


class Kind(StrEnum):
    """What is wrong."""

    LOST = "lost"
    """Home has it, the remote should and has not."""
    DUPLICATED = "duplicated"
    """The remote has it more than once, or made it more often than it may."""
    TWICE_RUN = "twice-run"
    """What must run at most once was started again."""
    LEAKED = "leaked"
    """The remote has something of ours that nothing at home needs."""
    STUCK = "stuck"
    """It should be gone from home."""
    DISAGREES = "disagreeing"
    """Both have it, and they differ."""
    FOREIGN = "foreign-touched"
    """An object of others was changed or removed."""
    HARMED = "harmed"
    """A running pod that nobody touched ended, or was started again."""
    UNSEEN = "unseen"
    """The auditor's own watch missed it: what it went through is not known."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong; ``subject`` is `subject_of` the object."""

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
    """Whether its deletion was asked for."""
    return "deletionTimestamp" in meta(obj)


def is_terminal(pod: Json) -> bool:
    """Whether the pod has ended for good."""
    return phase(pod) in TERMINAL


def phase(pod: Json) -> str:
    """The pod's phase; Pending where nothing was said yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_daemon(pod: Json) -> bool:
    """Whether a DaemonSet made the pod; those are not run in a remote."""
    return any(owner["kind"] == "DaemonSet" for owner in meta(pod).get("ownerReferences") or ())


def written_by_controller(obj: Json) -> bool:
    """Whether the remote's own controller made this EndpointSlice: it copies the labels of its
    Service, ours included."""
    writer = labels_of(obj).get("endpointslice.kubernetes.io/managed-by", "")
    return writer.endswith("controller.k8s.io")


def is_ours(remote: Json, node: str) -> bool:
    """Whether a bridge made this object of the remote for the virtual node ``node``."""
    return labels_of(remote).get(LABEL_NODE) == node and not written_by_controller(remote)


def is_foreign(remote: Json) -> bool:
    """Whether no bridge made this object of the remote."""
    return LABEL_HOME not in labels_of(remote)


def of_kind(objects: Iterable[Json], *kinds: str) -> Iterator[Json]:
    """Those of the objects that are of these kinds."""
    return (obj for obj in objects if obj["kind"] in kinds)


def differing(
    where: str, home: Mapping[str, Any], remote: Mapping[str, Any], keys: Iterable[str]
) -> Iterator[str]:
    """What the two have under these keys, where that is not the same."""
    for key in keys:
        if home.get(key) != remote.get(key):
            yield f"{where}{key}: home {home.get(key)!r}, remote {remote.get(key)!r}"


def carried_differences(home: Json, remote: Json) -> Iterator[str]:
    """What labels and annotations of the remote object should be, by home's, and are not.

    Keys with a domain that only the remote has may be its own machinery's.
    """
    for field in ("labels", "annotations"):
        ours = {
            key: value
            for key, value in (meta(home).get(field) or {}).items()
            if not _is_private(key)
        }
        theirs = meta(remote).get(field) or {}
        for key, value in ours.items():
            if theirs.get(key) != value:
                yield f"{field} {key}: home {value!r}, remote {theirs.get(key)!r}"
        for key in theirs:
            if key not in ours and "/" not in key:
                yield f"{field} {key}: only in the remote"


def _is_private(key: str) -> bool:
    domain = key.partition("/")[0]
    return (
        domain == DOMAIN
        or domain.endswith(f".{DOMAIN}")
        or key == "kubectl.kubernetes.io/last-applied-configuration"
    )
