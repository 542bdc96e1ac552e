"""Unmanaged objects: a bridge changes or removes none of them, in either cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from e2e.audit.findings import (
    Finding,
    Json,
    Kind,
    is_deleting,
    is_unmanaged,
    meta,
    of_kind,
    subject_of,
    uid,
)

#: The field manager of the bridge in ``metadata.managedFields``, from its user agent.
MANAGER = "cluster-bridge"
#: Namespaces whose objects the cluster's own controllers change all the time.
_OWN_NAMESPACES = ("kube-system", "kube-node-lease", "kube-public")
#: The first join creates it.
_ELECTIONS = "Namespace cluster-bridge"
#: Published into every namespace, and deleted with it.
_ROOT_CA = "kube-root-ca.crt"


@dataclass(frozen=True, slots=True)
class Seen:
    """The recorded state of an unmanaged object; another UID or version is a change."""

    uid: str
    version: str


def snapshot(remote: Collection[Json]) -> dict[str, Seen]:
    """All unmanaged objects in the remote, by `subject_of`, except those that are being deleted
    already, by themselves or with their namespace."""
    ending = {meta(it)["name"] for it in of_kind(remote, "Namespace") if is_deleting(it)}
    return {
        subject_of(obj): Seen(uid(obj), str(meta(obj)["resourceVersion"]))
        for obj in remote
        if is_unmanaged(obj)
        and meta(obj)["name"] != _ROOT_CA
        and not is_deleting(obj)
        and meta(obj).get("namespace") not in ending
    }


def check_unmanaged(before: Mapping[str, Seen], remote: Iterable[Json]) -> Iterator[Finding]:
    """Every object in ``before`` still exists, and the bridge has not written it.

    A new version is a finding if the bridge wrote it, and for objects that no client writes:
    ConfigMaps and Secrets outside of the cluster's own namespaces. Kubelets and controllers update
    pods, nodes and the like.
    """
    there = {subject_of(obj): obj for obj in remote}
    for subject, seen in sorted(before.items()):
        obj = there.get(subject)
        if obj is None:
            yield Finding(Kind.UNMANAGED_TOUCHED, subject, "was deleted")
        elif uid(obj) != seen.uid:
            yield Finding(Kind.UNMANAGED_TOUCHED, subject, "was deleted and re-created")
        elif _is_still(obj) and meta(obj)["resourceVersion"] != seen.version:
            yield Finding(
                Kind.UNMANAGED_TOUCHED,
                subject,
                f"was written (versions {seen.version} and {meta(obj)['resourceVersion']})",
            )
    for subject, obj in sorted(there.items()):
        if is_unmanaged(obj) and _written(obj):
            yield Finding(Kind.UNMANAGED_TOUCHED, subject, "has a write of the bridge")


def check_home(home: Iterable[Json]) -> Iterator[Finding]:
    """At home the bridge writes the status of pods and its own objects only: the Node, its Lease,
    Events, and the namespace of the election's Lease."""
    for obj in home:
        if subject_of(obj) == _ELECTIONS:
            continue
        if any(part != "status" or obj["kind"] != "Pod" for part in _written(obj)):
            yield Finding(
                Kind.UNMANAGED_TOUCHED, f"home's {subject_of(obj)}", "has a write of the bridge"
            )


def _is_still(obj: Json) -> bool:
    return (
        obj["kind"] in ("ConfigMap", "Secret") and meta(obj).get("namespace") not in _OWN_NAMESPACES
    )


def _written(obj: Json) -> list[str]:
    """The subresources ("" for the object itself) that the bridge has written of an object."""
    return [
        str(entry.get("subresource", ""))
        for entry in meta(obj).get("managedFields") or ()
        if entry["manager"] == MANAGER
    ]
