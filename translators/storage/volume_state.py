"""States whether the data of home's PersistentVolumes is in the remote, and sums volumes up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from translators.object_accessors import Object, is_deleting, name_of
from translators.quantity import QuantityError, parse_quantity
from translators.storage.identifiers import VolumeHandle, claim_of_volume, volume_handle
from translators.storage.pvc_resolution import holds_data_of
from translators.storage.remote_pvc import STORAGE
from translators.virtual_node_identity import Identity

#: Finds the remote PVC of a handle among the managed ones; None if there is none.
RemoteClaims = Callable[[VolumeHandle], Object | None]


@dataclass(frozen=True, slots=True)
class MissingVolume:
    """One of home's PersistentVolumes without its data in the remote."""

    name: str
    claim: str
    """``namespace/name`` of the home PVC; "" if the PersistentVolume is for none."""
    problem: str


@dataclass(slots=True)
class VolumeSummary:
    """Home's PersistentVolumes with data in one remote."""

    remote_id: str
    identity: Identity
    total: int = 0
    capacity: Fraction = Fraction(0)
    """The sum of their capacities, in bytes."""
    missing: list[MissingVolume] = field(default_factory=list)

    def add(self, volume: Object, remote_claim: RemoteClaims) -> None:
        """Adds one of home's PersistentVolumes, if its data is in the remote."""
        handle = volume_handle(volume)
        if handle is None or handle.remote_id != self.remote_id:
            return
        self.total += 1
        self.capacity += _capacity(volume)
        if problem := missing_data(volume, remote_claim(handle), self.identity):
            claim = claim_of_volume(volume)
            self.missing.append(MissingVolume(name_of(volume), "/".join(claim or ()), problem))


def missing_data(volume: Object, remote: Object | None, identity: Identity) -> str:
    """Why the remote does not have the data of home's PersistentVolume; "" if it has.

    ``remote`` is the managed PVC of the volume's handle. A released volume of the reclaim policy
    Delete, and one that is being deleted, lose their data by order of home.
    """
    spec, phase = volume.get("spec") or {}, (volume.get("status") or {}).get("phase")
    is_reclaimed = phase == "Released" and spec.get("persistentVolumeReclaimPolicy") == "Delete"
    handle = volume_handle(volume)
    if handle is None or is_reclaimed or is_deleting(volume):
        return ""
    where = f"PersistentVolumeClaim {handle.namespace}/{handle.name}"
    if remote is None:
        return f"{where} does not exist, or is no longer managed by this home"
    if not holds_data_of(remote, volume, identity):
        return f"{where} is another one of the same name"
    if (remote.get("status") or {}).get("phase") == "Lost":
        return f"{where} has lost its PersistentVolume"
    return f"{where} is being deleted" if is_deleting(remote) else ""


def _capacity(volume: Object) -> Fraction:
    amount = ((volume.get("spec") or {}).get("capacity") or {}).get(STORAGE)
    try:
        return parse_quantity(str(amount or "0"))
    except QuantityError:
        return Fraction(0)  # Another writer's PersistentVolume.
