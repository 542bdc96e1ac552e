"""Volumes: each PersistentVolume of the bridge at home has its data in exactly one remote PVC, and
no data is deleted unless home's PVC was, with the reclaim policy Delete.

The checks need what earlier audits have seen: a deletion that is not allowed leaves no object. The
content of a volume is a checksum that the auditor reads from the folder of the node
(`e2e.audit.tokens`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from e2e.audit.findings import (
    DOMAIN,
    HOME_UID,
    Finding,
    Json,
    Kind,
    annotations_of,
    is_deleting,
    is_managed,
    meta,
    of_kind,
    subject_of,
    uid,
)

DRIVER = f"volumes.{DOMAIN}"
#: On a remote PVC that no pod can mount yet.
UNFINISHED = f"{DOMAIN}/unfinished"
RETAIN = "Retain"


@dataclass(frozen=True, slots=True)
class _Volume:
    """A volume as an earlier audit has seen it, by the UID of its home PVC."""

    subject: str
    claim: str
    """UID of the remote PVC."""
    disk: str
    """UID of the remote PersistentVolume; "" while the remote has none."""
    policy: str
    token: str
    """Checksum of the content; "" if it is unknown."""


@dataclass(slots=True)
class Volumes:
    """The volumes of one virtual node through all audits."""

    node: str
    _known: dict[str, _Volume] = field(default_factory=dict)

    def findings(
        self, home: Sequence[Json], remote: Sequence[Json], tokens: Mapping[str, str]
    ) -> set[Finding]:
        """``tokens``: checksums by the UID of the remote PersistentVolume."""
        claims = {uid(it): it for it in of_kind(home, "PersistentVolumeClaim")}
        ours = [it for it in of_kind(home, "PersistentVolume") if _handle(it)]
        there = list(of_kind(remote, "PersistentVolumeClaim"))
        mine = [it for it in there if is_managed(it, self.node)]
        disks = {meta(it)["name"]: it for it in of_kind(remote, "PersistentVolume")}
        found = {
            *_duplicates(mine, ours),
            *_leaks(mine, claims, self._retained(ours)),
            *(it for volume in ours for it in _check(volume, there, claims, disks)),
        }
        for volume in ours:
            self._observe(volume, there, disks, tokens)
        found.update(self._losses(claims, there, disks, tokens))
        return found

    def counts(self) -> dict[str, int]:
        """How many volumes were seen, and of how many the content is compared."""
        contents = sum(bool(known.token) for known in self._known.values())
        return {"volumes": len(self._known), "contents of volumes": contents}

    def _retained(self, ours: Sequence[Json]) -> set[str]:
        """UIDs of the home PVCs whose data stays, also after the deletion of the volume at home."""
        return {
            *(owner for owner, known in self._known.items() if known.policy == RETAIN),
            *(
                str(it["spec"]["claimRef"]["uid"])
                for it in ours
                if it["spec"]["persistentVolumeReclaimPolicy"] == RETAIN
            ),
        }

    def _observe(
        self,
        volume: Json,
        there: Sequence[Json],
        disks: Mapping[str, Json],
        tokens: Mapping[str, str],
    ) -> None:
        """Remembers a volume; later audits add what is not known yet, and the reclaim policy, which
        a user may change."""
        remote = _remote_of(volume, there)
        if remote is None or not is_managed(remote, self.node):
            return
        disk = disks.get((remote.get("spec") or {}).get("volumeName", ""))
        disk_uid = uid(disk) if disk is not None else ""
        owner = str(volume["spec"]["claimRef"]["uid"])
        before = self._known.get(owner)
        self._known[owner] = _Volume(
            subject_of(volume),
            before.claim if before else uid(remote),
            (before.disk if before else "") or disk_uid,
            str(volume["spec"]["persistentVolumeReclaimPolicy"]),
            (before.token if before else "") or tokens.get(disk_uid, ""),
        )

    def _losses(
        self,
        claims: Mapping[str, Json],
        there: Sequence[Json],
        disks: Mapping[str, Json],
        tokens: Mapping[str, str],
    ) -> Iterator[Finding]:
        """Data that a deletion of home's PVC does not explain."""
        present = {uid(it) for it in there if not is_deleting(it)}
        standing = {uid(it) for it in disks.values()}
        for owner, known in self._known.items():
            if owner not in claims and known.policy != RETAIN:
                continue
            if known.claim not in present:
                yield Finding(Kind.LOST, known.subject, "its PVC in the remote was deleted")
            elif known.disk and known.disk not in standing:
                yield Finding(
                    Kind.LOST, known.subject, "its PersistentVolume in the remote was deleted"
                )
            elif known.token and tokens.get(known.disk) != known.token:
                yield Finding(Kind.LOST, known.subject, "its content is not what was written")


def _handle(volume: Json) -> str:
    """The remote's ID, namespace and PVC, separated by slashes; "" for another driver's volume."""
    csi = volume["spec"].get("csi") or {}
    return str(csi.get("volumeHandle", "")) if csi.get("driver") == DRIVER else ""


def _remote_of(volume: Json, there: Sequence[Json]) -> Json | None:
    _, namespace, name = _handle(volume).split("/")
    found = (it for it in there if (meta(it)["namespace"], meta(it)["name"]) == (namespace, name))
    return next(found, None)


def _duplicates(mine: Sequence[Json], ours: Sequence[Json]) -> Iterator[Finding]:
    by_owner, by_handle = defaultdict(list), defaultdict(list)
    for claim in mine:
        by_owner[annotations_of(claim).get(HOME_UID, "")].append(subject_of(claim))
    for volume in ours:
        by_handle[_handle(volume)].append(subject_of(volume))
    for owner, names in by_owner.items():
        if len(names) > 1:
            detail = f"the remote has {', '.join(sorted(names))}"
            yield Finding(Kind.DUPLICATED, f"PersistentVolumeClaim ({owner})", detail)
    for handle, names in by_handle.items():
        if len(names) > 1:
            detail = f"{', '.join(sorted(names))} have the same data"
            yield Finding(Kind.DUPLICATED, f"remote PersistentVolumeClaim {handle}", detail)


def _leaks(
    mine: Sequence[Json], claims: Mapping[str, Json], retained: Collection[str]
) -> Iterator[Finding]:
    for claim in mine:
        owner = annotations_of(claim).get(HOME_UID, "")
        if owner not in claims and owner not in retained:
            yield Finding(Kind.LEAKED, subject_of(claim), "home no longer has its PVC")


def _check(
    volume: Json,
    there: Sequence[Json],
    claims: Mapping[str, Json],
    disks: Mapping[str, Json],
) -> Iterator[Finding]:
    """One of home's volumes: its remote PVC is usable, and the capacities agree."""
    subject, spec = subject_of(volume), volume["spec"]
    claim = claims.get(str((spec.get("claimRef") or {}).get("uid")))
    if claim is None and spec["persistentVolumeReclaimPolicy"] != RETAIN:
        yield Finding(Kind.STUCK, subject, "its PVC was deleted, with the reclaim policy Delete")
        return
    remote = _remote_of(volume, there)
    if remote is None:
        yield Finding(Kind.LOST, subject, "its PVC is not in the remote")
        return
    if claim is None:
        return
    if UNFINISHED in annotations_of(remote):
        yield Finding(Kind.DISAGREES, subject, "its PVC in the remote is still unfinished")
    sizes = {"PersistentVolume": spec["capacity"]["storage"], "PVC": _capacity(claim)}
    if (theirs := _capacity(remote)) and set(sizes.values()) != {theirs}:
        yield Finding(Kind.DISAGREES, subject, f"capacity: home {sizes}, remote {theirs}")
    if theirs and (remote.get("spec") or {}).get("volumeName") not in disks:
        yield Finding(Kind.LOST, subject, "the remote has no PersistentVolume for its PVC")


def _capacity(claim: Json) -> str:
    return str(((claim.get("status") or {}).get("capacity") or {}).get("storage") or "")
