"""The ValidatingAdmissionPolicy that confines the bridge's account at home to its virtual nodes.
Pure.

RBAC grants permissions on resources, and on objects by name. A node's authority is narrower: the
pods that are bound to it, tokens for them, its own Node and Leases. Where the bridge is a node
(`system:node:NAME`), the Node authorizer and NodeRestriction enforce that; this policy does for a
ServiceAccount what admission can see:

- A policy sees the request and its object, and nothing else. So a token must be bound to a pod, and
  the API server then requires that the pod exists and runs as that account, but not that the pod is
  on the virtual node.
- Reads are not admitted, and so not confined.
- An eviction does not contain the pod: `eviction_policy` compares it with each pod of its
  namespace. Nothing else is decided in this way, since every request of that kind, of whatever
  user, then costs time in proportion to these pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bridge.certificates.certificate_kinds import CLIENT, DIGEST_LENGTH, SERVING
from bridge.rbac.admission_policy import (
    AFTER,
    BEFORE,
    PLACE,
    Rule,
    Target,
    cel_list,
    is_user,
    policy_objects,
    written_by,
)
from bridge.rbac.permissions import Permission
from sync.kube.api_resources import LEASES, PODS
from sync.runtime.event_recorder import COMPONENT
from translators.derived_names import label_value
from translators.mirror.endpoint_slice import LABEL_MANAGED_BY
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_NODE
from translators.relay.forward_plan import MANAGER
from translators.storage.identifiers import ANNOTATION_SELECTED_NODE, DRIVER

#: Requests that change nothing: reviews of other users' credentials and permissions.
REVIEWS = frozenset({"tokenreviews", "subjectaccessreviews"})
EVICTION = "pods/eviction"

_ON_NODE = "variables.before.?spec.?nodeName.orValue('') in variables.nodes"
#: Fields of a pod that a status must not change, as NodeRestriction has it, and no kubelet does.
_FIXED_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_FIXED_STATUS = ("resourceClaimStatuses", "extendedResourceClaimStatus")


def _all_of(expression: str) -> str:
    """CEL: the expression holds for the object ``o`` before and after the request."""
    return f"[variables.before, variables.after].all(o, {expression})"


def _label(key: str) -> str:
    return f"o.metadata.?labels[?'{key}'].orValue('')"


#: CEL: no annotation but the selected node is added, changed or removed.
_ONLY_SELECTED_NODE = (
    "[[variables.before, variables.after], [variables.after, variables.before]].all(p, "
    f"p[0].metadata.?annotations.orValue({{}}).all(k, k == '{ANNOTATION_SELECTED_NODE}' || "
    "p[1].metadata.?annotations[?k] == p[0].metadata.?annotations[?k]))"
)

#: The rules by resource: CEL, and the sentence that follows "may".
RULES: dict[tuple[str, ...], tuple[str, str]] = {
    ("nodes", "nodes/status"): (
        "variables.name in variables.nodes",
        "write only the Nodes of its virtual nodes",
    ),
    ("leases",): (
        "request.namespace + '/' + variables.name in variables.leases",
        "write only the Leases of its virtual nodes",
    ),
    ("pods",): (_ON_NODE, "delete only pods on its virtual nodes"),
    ("pods/status",): (
        " && ".join(
            (
                _ON_NODE,
                *(
                    f"variables.after.{part}.?{key} == variables.before.{part}.?{key}"
                    for part, keys in (("metadata", _FIXED_METADATA), ("?status", _FIXED_STATUS))
                    for key in keys
                ),
            )
        ),
        "write only the status of pods on its virtual nodes, without metadata and resource claims",
    ),
    ("serviceaccounts/token",): (
        (
            "variables.before.spec.?boundObjectRef.?kind.orValue('') == 'Pod' && ['name', 'uid']"
            ".all(key, variables.before.spec.boundObjectRef[?key].orValue('') != '')"
        ),
        "request only tokens that are bound to a pod",
    ),
    ("events",): (
        _all_of(
            f"(o.?source.?component.orValue('') == '{COMPONENT}' && "
            "o.?source.?host.orValue('') in variables.nodes) || "
            f"{_label(LABEL_NODE)} in variables.labels"
        ),
        "write only Events with the source or the label of its virtual nodes",
    ),
    ("endpointslices",): (
        _all_of(
            f"{_label(LABEL_MANAGED_BY)} == '{MANAGER}' && {_label(LABEL_NODE)} in variables.labels"
        ),
        "write only EndpointSlices with the labels of its virtual nodes",
    ),
    ("persistentvolumes",): (
        _all_of(f"o.spec.?csi.?driver.orValue('') == '{DRIVER}'"),
        f"write only PersistentVolumes of the driver {DRIVER}",
    ),
    ("volumesnapshotcontents", "volumesnapshotcontents/status"): (
        " && ".join(
            (
                _all_of(f"o.?spec.?driver.orValue('') == '{DRIVER}'"),
                "variables.after.?spec == variables.before.?spec",
                *(
                    f"variables.after.metadata.?{key} == variables.before.metadata.?{key}"
                    for key in _FIXED_METADATA
                    if key != "finalizers"
                ),
            )
        ),
        f"change only the status and finalizers of VolumeSnapshotContents of the driver {DRIVER}",
    ),
    ("persistentvolumeclaims", "persistentvolumeclaims/status"): (
        " && ".join(
            (
                "variables.after.?spec == variables.before.?spec",
                *(
                    f"variables.after.metadata.?{key} == variables.before.metadata.?{key}"
                    for key in _FIXED_METADATA
                    if key != "annotations"
                ),
                _ONLY_SELECTED_NODE,
            )
        ),
        "change only the selected node and the status of PersistentVolumeClaims",
    ),
    ("csistoragecapacities",): (
        _all_of(f"{_label(LABEL_NODE)} in variables.labels"),
        "write only CSIStorageCapacities with the label of its virtual nodes",
    ),
    ("certificatesigningrequests",): (
        (
            "variables.requests.exists(p, variables.request.startsWith(p) && "
            f"size(variables.request) == size(p) + {DIGEST_LENGTH})"
        ),
        "request only certificates of its virtual nodes",
    ),
}


def home_policy(
    metadata: Object, account: str, user: str, nodes: Sequence[str], granted: Iterable[Permission]
) -> list[Object]:
    """The policy for the account's user, and its binding. ``granted`` are all permissions that the
    account may have, for these nodes: the names of Leases are theirs."""
    permissions = list(granted)
    targets = [
        it for it in written_by(permissions) if it.place not in REVIEWS and it.place != EVICTION
    ]
    rules = [
        Rule(f"{_not_in(where)} || ({expression})", _message(account, text))
        for where, (expression, text) in RULES.items()
    ]
    leases = dict.fromkeys(
        f"{it.namespace}/{name}" for it in permissions if it.resource == LEASES for name in it.names
    )
    variables = {
        "nodes": cel_list(nodes),
        "labels": cel_list(label_value(it) for it in nodes),
        "leases": cel_list(leases),
        "requests": cel_list(
            f"{kind.signer} {kind.request_name_prefix(node)}"
            for node in nodes
            for kind in (SERVING, CLIENT)
        ),
        "place": PLACE,
        "before": BEFORE,
        "after": AFTER,
        "name": "variables.before.metadata.?name.orValue('')",
        "request": "variables.before.?spec.?signerName.orValue('') + ' ' + variables.name",
    }
    return policy_objects(metadata, targets, rules, conditions=is_user(user), variables=variables)


def eviction_policy(
    metadata: Object, account: str, user: str, nodes: Sequence[str]
) -> list[Object]:
    """The policy for evictions by the account's user, and its binding."""
    rule = Rule(
        "params.metadata.name != object.metadata.name || "
        "params.spec.?nodeName.orValue('') in variables.nodes",
        _message(account, "evict only pods on its virtual nodes"),
    )
    return policy_objects(
        metadata,
        [Target(PODS.group, EVICTION, ("CREATE",))],
        [rule],
        conditions=is_user(user),
        variables={"nodes": cel_list(nodes)},
        per_pod=True,
    )


def _not_in(places: Sequence[str]) -> str:
    if len(places) == 1:
        return f"variables.place != '{places[0]}'"
    return f"!(variables.place in {cel_list(places)})"


def _message(account: str, text: str) -> str:
    return (
        f"ServiceAccount {account} may {text}; `bridge rbac home --name NODE --account {account}` "
        "prints what to apply for another virtual node"
    )
