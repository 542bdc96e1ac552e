"""Builds the StorageClass and the CSIDriver of home with which the bridge provisions volumes. Pure.

The CSIDriver has no driver behind it. It makes home's scheduler read the capacity that the bridge
reports, and keeps the attach controller from attaching volumes to the virtual node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bridge.base.join_settings import invalid_option
from sync.kube.api_resources import CSI_DRIVERS, STORAGE_CLASSES
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_REMOTE
from translators.storage.identifiers import DRIVER
from translators.storage.storage_class import (
    ACCESS_MODES,
    ANNOTATION_DEFAULT,
    PARAMETER_CLASS,
    PARAMETER_MODES,
    WAIT_FOR_FIRST_CONSUMER,
)

ReclaimPolicy = Literal["Delete", "Retain"]


@dataclass(frozen=True, slots=True)
class StorageClassOptions:
    """The options of a StorageClass that the bridge serves."""

    name: str
    remote_class: str = ""
    """The remote's class; "" is its default class."""
    access_modes: Sequence[str] = ()
    """The access modes that PVCs may have; empty permits all."""
    reclaim_policy: ReclaimPolicy = "Delete"
    remote_id: str = ""
    """The identity of the only remote that provisions the class; "" permits all."""
    is_default: bool = False


def storage_objects(options: StorageClassOptions) -> list[Object]:
    """The CSIDriver and the StorageClass, for `kubectl apply`."""
    parameters: Object = {}
    if options.remote_class:
        parameters[PARAMETER_CLASS] = options.remote_class
    if options.access_modes:
        parameters[PARAMETER_MODES] = ",".join(options.access_modes)
    fields: Object = {
        "provisioner": DRIVER,
        "volumeBindingMode": WAIT_FOR_FIRST_CONSUMER,
        "reclaimPolicy": options.reclaim_policy,
        "allowVolumeExpansion": True,
    }
    if parameters:
        fields["parameters"] = parameters
    if options.remote_id:
        term = {"key": LABEL_REMOTE, "values": [options.remote_id]}
        fields["allowedTopologies"] = [{"matchLabelExpressions": [term]}]
    meta: Object = {"name": options.name}
    if options.is_default:
        meta["annotations"] = {ANNOTATION_DEFAULT: "true"}
    return [csi_driver(), STORAGE_CLASSES.manifest(meta, **fields)]


def csi_driver() -> Object:
    """The CSIDriver, one for all classes and virtual nodes."""
    spec = {
        "attachRequired": False,
        "storageCapacity": True,
        "podInfoOnMount": False,
        "volumeLifecycleModes": ["Persistent"],
    }
    return CSI_DRIVERS.manifest({"name": DRIVER}, spec=spec)


def parse_access_modes(text: str) -> tuple[str, ...]:
    """``MODE[,MODE]``; "" is none. Raises SettingsError."""
    modes = tuple(it.strip() for it in text.split(",")) if text else ()
    if not all(it in ACCESS_MODES for it in modes):
        raise invalid_option(
            "--access-modes", text, "a list of access modes", ", ".join(ACCESS_MODES)
        )
    return modes
