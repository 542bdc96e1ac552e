"""Translates a home pod to the pod that runs in the remote.

Every field is kept, including fields that this version does not know, unless it would mean
something else in the remote. `translators.pods.field_rules` decides each field; the result lists
the dropped ones. `translators.pods.update` handles later changes of the home pod.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from translators.field_paths import FieldMessage, replace_containers, set_or_remove
from translators.object_accessors import Object
from translators.ownership_labels import (
    ANNOTATION_NODE_NAME,
    copied_annotations,
    copied_labels,
    owner_labels,
    remote_metadata,
)
from translators.pods import (
    downward_api,
    dropped_metadata,
    field_rules,
    last_applied_home_values,
    optional_references,
    references,
    restart_policy_never,
    scheduling_fields,
)
from translators.pods.downward_api import env_values, translate_env, translate_volume
from translators.pods.references import Reference
from translators.pods.service_accounts import apply_service_account, service_account_name
from translators.translation_options import Policy

#: Why a reference to a token Secret of the bridge is rejected.
RESERVED_SECRET_MESSAGE = (
    f"names that begin with {references.TOKEN_PREFIX} are reserved for service account tokens "
    "that the bridge writes: rename the Secret"
)


@dataclass(frozen=True, slots=True)
class TranslatedPod:
    """A remote pod, and the dropped fields of the home pod."""

    pod: Object
    dropped: list[FieldMessage] = field(default_factory=list)


def rejection_message(home: Object) -> str:
    """Why the pod cannot run in the remote, for its owner; "" if it can."""
    return "; ".join(map(str, rejections(home)))


def rejections(home: Object) -> list[FieldMessage]:
    """The fields for which the pod cannot run in the remote, each with what to do about it."""
    spec = home.get("spec") or {}
    # An ephemeral container is added to a running pod, and must not fail it
    # (`sync.pods.pod_update_writer`).
    checked = {key: value for key, value in spec.items() if key != "ephemeralContainers"}
    return field_rules.rejected_fields(home) + [
        FieldMessage(f"Secret {name}", RESERVED_SECRET_MESSAGE)
        for name in references.reserved_secrets(checked)
    ]


def translate_pod(
    home: Object, policy: Policy, *, priority_classes: frozenset[str] = frozenset()
) -> TranslatedPod:
    """The remote pod for a home pod that is bound to the virtual node.

    ``priority_classes`` are the names of the remote's PriorityClasses. Ephemeral containers are
    removed: a new pod cannot have them.
    """
    translated = _translated(home, policy, priority_classes)
    spec = translated.pod["spec"]
    spec.pop("ephemeralContainers", None)
    restart_policy_never.add_gate(spec)
    return translated


def without_optional_references(
    translated: TranslatedPod, refs: Collection[Reference]
) -> TranslatedPod:
    """The remote pod without these optional references (see `optional_references`)."""
    spec, dropped = optional_references.remove_optional_references(translated.pod["spec"], refs)
    return TranslatedPod({**translated.pod, "spec": spec}, [*translated.dropped, *dropped])


def translate_ephemeral_containers(home: Object, policy: Policy) -> list[Object]:
    containers: list[Object] = (
        _translated(home, policy, frozenset()).pod["spec"].get("ephemeralContainers", [])
    )
    return containers


def _translated(home: Object, policy: Policy, priority_classes: frozenset[str]) -> TranslatedPod:
    identity = policy.identity
    kept, dropped = field_rules.drop_fields(home)
    spec: Object = dict(kept.get("spec") or {})
    set_or_remove(
        spec, "nodeSelector", scheduling_fields.translate_node_selector(spec.get("nodeSelector"))
    )
    set_or_remove(
        spec,
        "affinity",
        scheduling_fields.translate_affinity(spec.get("affinity"), identity, dropped),
    )
    scheduling_fields.restrict_to_nodes(spec, policy.node_selector)
    if spec.get("topologySpreadConstraints"):
        spec["topologySpreadConstraints"] = [
            scheduling_fields.remove_merged_label_keys(constraint)
            for constraint in spec["topologySpreadConstraints"]
        ]
    set_or_remove(spec, "tolerations", scheduling_fields.translate_tolerations(home, policy))
    dropped += scheduling_fields.dropped_tolerations(home, policy)
    without_class = scheduling_fields.dropped_priority_class(
        spec.get("priorityClassName"),
        priority_classes,
        are_known=policy.cluster_reads.priority_classes,
    )
    if without_class is not None:
        del spec["priorityClassName"]
        dropped.append(without_class)
    apply_service_account(spec, home, policy, dropped)
    name, address = service_account_name(home), policy.node_address
    left_out = dropped_metadata.dropped_values(home, policy)
    values = env_values(account=name, address=address, dropped=left_out)
    replace_containers(spec, lambda container: translate_env(container, values))
    meta = remote_pod_metadata(home, policy)
    dropped += dropped_metadata.dropped_messages(home, policy)
    texts = downward_api.file_texts(home, lambda: left_out)
    if downward_api.fits_annotation_limit(meta["annotations"], texts):
        meta["annotations"] |= texts
    else:
        dropped += downward_api.oversized_map_files(home)
        texts = {}
    set_or_remove(
        spec, "volumes", [translate_volume(item, texts) for item in spec.get("volumes") or ()]
    )
    pod = {key: value for key, value in kept.items() if key != "status"}
    return TranslatedPod(pod={**pod, "metadata": meta, "spec": spec}, dropped=dropped)


def remote_pod_metadata(home: Object, policy: Policy) -> Object:
    """The `remote_metadata` of a pod with the labels and annotations that are kept, the node name
    for the downward API, and the record of applied values."""
    meta = remote_metadata(home, policy.identity)
    kept = dropped_metadata.kept_keys(copied_labels(home), policy)
    meta["labels"] = {**kept, **owner_labels(policy.identity)}
    meta["annotations"] = {
        **dropped_metadata.kept_keys(copied_annotations(home), policy),
        **meta["annotations"],
        ANNOTATION_NODE_NAME: policy.identity.node,
        **last_applied_home_values.record_annotations(home),
    }
    return meta
