"""The resources that `sync.mirror.copies` copies to the remote, and what becomes of an object of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sync.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, SECRETS, SERVICES, Resource
from translators.identity import LABEL_NODE, Identity, may_be_set_by_remote
from translators.merge_patch import merge_patch
from translators.mirror import configmap_secret, endpointslice, service
from translators.objects import Object, metadata

#: Maps that are to be the same on both sides, keys that were removed included.
_EXACT = frozenset({"annotations", "labels", "data", "binaryData", "selector"})


@dataclass(frozen=True, slots=True)
class CopyRule:
    """How objects of one resource are copied."""

    to_remote: Callable[[Object, Identity], Object]
    is_copied: Callable[[Object, Identity], bool]
    """Whether the home object may be copied at all."""
    remote_name: Callable[[str, Identity], str] = lambda name, _: name
    selector: str = ""
    """What tells copies from other objects that have our labels too."""


COPY_RULES: dict[Resource, CopyRule] = {
    CONFIG_MAPS: CopyRule(configmap_secret.translate_data, lambda *_: True),
    SECRETS: CopyRule(
        configmap_secret.translate_data, lambda home, _: configmap_secret.is_copied_secret(home)
    ),
    SERVICES: CopyRule(service.translate_service, lambda home, _: service.is_copied(home)),
    ENDPOINT_SLICES: CopyRule(
        endpointslice.translate_endpoint_slice,
        endpointslice.has_endpoints,
        remote_name=endpointslice.remote_name,
        selector=endpointslice.SELECTOR,
    ),
}


def patch(resource: Resource, home: Object, copy: Object, identity: Identity) -> Object:
    """The merge patch that makes the copy what its original is; empty where it is.

    Several virtual nodes of one home can share it; the node's label stays that of the one that made
    it, or they would take it from each other for ever.
    """
    desired = COPY_RULES[resource].to_remote(home, identity)
    if resource is SERVICES:
        desired["spec"] = {**dict.fromkeys(service.REMOVABLE_FIELDS), **desired["spec"]}
    labels = desired["metadata"]["labels"]
    labels[LABEL_NODE] = (metadata(copy).get("labels") or {}).get(LABEL_NODE, labels[LABEL_NODE])
    for field in ("labels", "annotations"):
        present = metadata(copy).get(field) or {}
        theirs = {k: v for k, v in present.items() if may_be_set_by_remote(k)}
        desired["metadata"][field] = {**theirs, **desired["metadata"][field]}
    found: Object = merge_patch(copy, desired, exact=_EXACT)
    return found
