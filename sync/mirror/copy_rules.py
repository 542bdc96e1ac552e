"""The resources that are copied to the remote, and the rule for each: one entry of `COPY_RULES`.

`sync.mirror.copy_controller` keeps the copies up to date.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sync.kube.api_resources import CONFIG_MAPS, ENDPOINT_SLICES, SECRETS, SERVICES, Resource
from sync.references.content_digest import CONTENT, DIGEST
from translators.merge_patch import merge_patch
from translators.mirror import configmap_secret, endpoint_slice, service
from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import LABEL_NODE, copied_labels
from translators.pods import last_applied_home_values
from translators.pods.references import ROOT_CA
from translators.virtual_node_identity import Identity

#: Maps that must be equal on both sides, so that removed keys are removed from the copy.
_EXACT = frozenset({"annotations", "labels", "data", "binaryData", "selector"})


@dataclass(frozen=True, slots=True)
class CopyRule:
    """How one resource is copied."""

    to_remote: Callable[[Object, Identity], Object]
    is_copied: Callable[[Object, Identity], bool]
    """Whether this home object may be copied."""
    remote_name: Callable[[str, Identity], str] = lambda name, _: name
    selector: str = ""
    """Label selector that excludes other objects with the bridge's labels."""


COPY_RULES: dict[Resource, CopyRule] = {
    CONFIG_MAPS: CopyRule(
        # The remote publishes its own CA under that name.
        configmap_secret.translate_data,
        lambda home, _: name_of(home) != ROOT_CA,
    ),
    SECRETS: CopyRule(
        configmap_secret.translate_data, lambda home, _: configmap_secret.is_copied_secret(home)
    ),
    SERVICES: CopyRule(service.translate_service, lambda home, _: service.is_copied(home)),
    ENDPOINT_SLICES: CopyRule(
        endpoint_slice.translate_endpoint_slice,
        endpoint_slice.has_endpoints,
        remote_name=endpoint_slice.remote_name,
        selector=endpoint_slice.SELECTOR,
    ),
}
COPIED_RESOURCES = tuple(COPY_RULES)


def copies_selector(resource: Resource, labels: str) -> str:
    return ",".join(part for part in (labels, COPY_RULES[resource].selector) if part)


def desired_copy(resource: Resource, home: Object, identity: Identity) -> Object:
    """The copy of the home object, with the record of its labels."""
    desired = COPY_RULES[resource].to_remote(home, identity)
    record = last_applied_home_values.record_keys(labels=copied_labels(home))
    desired["metadata"]["annotations"] |= record
    return desired


def must_be_replaced(resource: Resource, home: Object, copy: Object, patch: Object) -> bool:
    """Whether the API permits ``patch``, which makes the copy match the home object, only as
    another object: the fields are immutable."""
    if resource is SERVICES:
        return service.is_headless(home) != service.is_headless(copy)
    if resource is ENDPOINT_SLICES:
        return "addressType" in patch
    is_frozen = copy.get("immutable") and patch.keys() & {*CONTENT, DIGEST, "immutable"}
    return bool(is_frozen) or "type" in patch


def copy_patch(resource: Resource, home: Object, copy: Object, identity: Identity) -> Object:
    """The merge patch that makes the copy match home's object.

    Several virtual nodes of one home can share a copy. The node label stays that of the node that
    created the copy; otherwise the nodes would overwrite each other's label for ever.

    If both have the digest of their content (`sync.references.content_digest`), and the content
    differs, the patch has `DIGEST` instead.
    """
    desired = desired_copy(resource, home, identity)
    for field in CONTENT if DIGEST in copy else (DIGEST,):
        desired.pop(field, None)
    if resource is SERVICES:
        desired["spec"] = {**dict.fromkeys(service.REMOVABLE_FIELDS), **desired["spec"]}
    labels = desired["metadata"]["labels"]
    labels[LABEL_NODE] = (metadata(copy).get("labels") or {}).get(LABEL_NODE, labels[LABEL_NODE])
    for field in ("labels", "annotations"):
        present = metadata(copy).get(field) or {}
        copied = last_applied_home_values.last_applied_keys(copy, field)
        set_by_remote = {key: value for key, value in present.items() if key not in copied}
        desired["metadata"][field] = {**set_by_remote, **desired["metadata"][field]}
    patch: Object = merge_patch(copy, desired, exact=_EXACT)
    return patch
