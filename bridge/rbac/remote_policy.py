"""The ValidatingAdmissionPolicies for the remote that `bridge rbac remote --policy` prints. Pure.

RBAC cannot select by labels, and the bridge recognises its objects and namespaces by labels and
annotations, which every user who may create an object can set. Two policies close both gaps:

- `reservation_policy`, one for the cluster: only who may ``set`` the ``ownership`` of
  `cluster-bridge.io` in the object's namespace (a bridge's account, by `bridge rbac remote`, and
  cluster administrators) creates, changes or removes this metadata, and only who may ``set`` the
  ``handover`` hands a namespace over. Neither is a resource of an API server: the policies ask the
  authorizer, so that the policies of several bridges are one.
- `confinement_policy`, one for each account: the account writes only managed objects, in managed
  namespaces and those that were handed over, and connects only to pods there.

Three limits remain: reads are not admitted; a connection does not show the pod's labels, so in
a namespace that was handed over the account reaches every pod; and the account of one bridge may
write the objects of another bridge. Pod Security decides on the pods themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.election.election_lease import CLAIM_PREFIX
from bridge.rbac.admission_policy import (
    BEFORE,
    CONNECTED,
    PLACE,
    Rule,
    Target,
    cel_list,
    is_user,
    policy_objects,
    written_by,
)
from bridge.rbac.permissions import REMOTE_OWNERSHIP, Permission
from translators.object_accessors import Object
from translators.offload_admission_patch import ANNOTATIONS as OFFLOAD_ANNOTATIONS
from translators.offload_admission_patch import LABEL_OFFLOAD
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_MIRROR,
    DOMAIN,
    LABEL_HOME,
    USED_BY_DOMAIN,
)

#: The name of the policy that all bridges of a remote share.
RESERVATION = f"reserved-metadata.{DOMAIN}"
#: The virtual resource that lets an administrator hand namespaces over; its verb is ``set``.
HANDOVER = "handover"
#: Keys of the domain that users set, also where the remote is a home as well.
OPEN_KEYS = (ANNOTATION_ACCEPTS, ANNOTATION_MIRROR, LABEL_OFFLOAD, *OFFLOAD_ANNOTATIONS)
#: Paths of kubelets that the bridge requests (`bridge.pod_metrics`). Others run commands.
KUBELET_PATHS = ("/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/stats/summary")

_WRITES = ("CREATE", "UPDATE")
#: The resources that the bridge writes, with every subresource through which metadata can change.
#: The controllers copy the labels of Services and Endpoints to EndpointSlices.
_LABELLED = {
    "": (
        *("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding"),
        *("bindings", "namespaces", "namespaces/status", "namespaces/finalize"),
        *("configmaps", "secrets", "services", "services/status", "endpoints"),
        *("persistentvolumeclaims", "persistentvolumeclaims/status"),
    ),
    "discovery.k8s.io": ("endpointslices",),
    "coordination.k8s.io": ("leases",),
    "snapshot.storage.k8s.io": ("volumesnapshots", "volumesnapshots/status"),
}
_IS_NAMESPACE = "request.resource.resource == 'namespaces'"
_IS_BINDING = (
    "request.resource.resource == 'bindings' || request.?subResource.orValue('') == 'binding'"
)


def _labels(of: str) -> str:
    return f"{of}.metadata.?labels.orValue({{}})"


def _annotations(of: str) -> str:
    return f"{of}.metadata.?annotations.orValue({{}})"


def _before(what: str) -> str:
    """CEL: the labels or annotations before the request; none of a created object."""
    return f"request.operation == 'CREATE' ? dyn({{}}) : {what}"


def reservation_policy(metadata: Object) -> list[Object]:
    """The policy that reserves the bridge's labels and annotations, and its binding.

    A controller that changes an object without changing these is not affected: old and new are
    compared. Of an object without the bridge's label only that label matters, on namespaces also
    the annotations of their users.
    """
    is_ours = f"(k.startsWith('{DOMAIN}/') || k.contains('.{DOMAIN}/'))"
    is_reserved = (
        f"(variables.managed ? {is_ours} && !(k in {cel_list(OPEN_KEYS)}) : "
        f"k.startsWith('{USED_BY_DOMAIN}/'))"
    )
    differs = (
        f"p[0].exists(k, {is_reserved} && !(k in p[1] && p[1][k] == p[0][k])) || "
        f"p[1].exists(k, {is_reserved} && !(k in p[0]))"
    )
    accepts = f"annotations[?'{ANNOTATION_ACCEPTS}']"
    (ownership,) = REMOTE_OWNERSHIP
    may_own = _is_allowed(ownership.resource.plural, in_namespace=True)
    return policy_objects(
        metadata,
        [Target(group, it, _WRITES) for group, places in _LABELLED.items() for it in places],
        [
            Rule(
                f"!variables.changed || {may_own}",
                f"the labels and annotations of {DOMAIN} are reserved to Cluster Bridge: leave "
                "them out; an account of a bridge gets the permission by `bridge rbac remote`",
            ),
            Rule(
                f"!({_IS_NAMESPACE}) || variables.{accepts} == variables.old_{accepts} || "
                f"{_is_allowed(HANDOVER)}",
                f"the annotation {ANNOTATION_ACCEPTS} hands a namespace over to another cluster: "
                f"that takes the permission to set {HANDOVER}.{DOMAIN}, as cluster administrators "
                "have it",
            ),
        ],
        conditions={
            "has-a-label-of-the-bridge": f"{_IS_NAMESPACE} || {_IS_BINDING} || "
            f"[dyn(object), dyn(oldObject)].exists(o, o != null && '{LABEL_HOME}' in "
            f"{_labels('o')})",
            "is-not-copied-by-a-controller": "!(request.resource.resource in "
            "['endpoints', 'endpointslices'] && (request.userInfo.username == "
            "'system:kube-controller-manager' || request.userInfo.username.startsWith("
            "'system:serviceaccount:kube-system:endpoint')))",
        },
        variables={
            "labels": _labels("dyn(object)"),
            "annotations": _annotations("dyn(object)"),
            "old_labels": _before(_labels("dyn(oldObject)")),
            "old_annotations": _before(_annotations("dyn(oldObject)")),
            "managed": f"{_IS_BINDING} || '{LABEL_HOME}' in variables.labels || '{LABEL_HOME}' in "
            "variables.old_labels",
            "changed": "[[variables.labels, variables.old_labels], "
            f"[variables.annotations, variables.old_annotations]].exists(p, {differs})",
        },
    )


def confinement_policy(
    metadata: Object, account: str, user: str, granted: Iterable[Permission]
) -> list[Object]:
    """The policy for the account's user with these permissions, and its binding."""
    targets = written_by(granted)
    connected = [it.place for it in targets if it.place.rpartition("/")[2] in CONNECTED]
    who = f"ServiceAccount {account} may"
    rules = [
        Rule(
            "variables.place in ['namespaces', 'leases', 'nodes/proxy'] || variables.mapped",
            f"{who} write and connect only in namespaces of the bridge and those that were handed "
            f"over (annotation {ANNOTATION_ACCEPTS})",
        ),
        Rule(
            "variables.place != 'leases' || "
            f"variables.before.metadata.name.startsWith('{CLAIM_PREFIX}')",
            f"{who} write only Leases of claims, whose names begin with {CLAIM_PREFIX}",
        ),
        Rule(
            f"variables.place in {cel_list(('namespaces', *connected))} || "
            f"'{LABEL_HOME}' in variables.labels",
            f"{who} write only objects with the label {LABEL_HOME}",
        ),
        Rule(
            f"variables.place != 'nodes/proxy' || dyn(object).?path.orValue('') in "
            f"{cel_list(KUBELET_PATHS)}",
            f"{who} request only metrics of kubelets: {', '.join(KUBELET_PATHS)}",
        ),
        Rule(
            f"variables.place != 'namespaces' || request.operation == 'UPDATE' || "
            f"'{LABEL_HOME}' in variables.labels",
            f"{who} create and delete only namespaces with the label {LABEL_HOME}",
        ),
        Rule(
            "variables.place != 'namespaces' || request.operation != 'UPDATE' || "
            f"('{LABEL_HOME}' in variables.labels ? {_keeps_label()} : "
            f"'{ANNOTATION_ACCEPTS}' in variables.annotations && {_only_registers()})",
            f"{who} change only namespaces of the bridge, and of those that were handed over only "
            f"the annotations of {USED_BY_DOMAIN}",
        ),
    ]
    variables = {
        "place": PLACE,
        "before": BEFORE,
        "labels": _labels("variables.before"),
        "annotations": _annotations("variables.before"),
        "mapped": f"namespaceObject != null && ('{LABEL_HOME}' in {_labels('namespaceObject')} || "
        f"'{ANNOTATION_ACCEPTS}' in {_annotations('namespaceObject')})",
    }
    return policy_objects(metadata, targets, rules, conditions=is_user(user), variables=variables)


def _keeps_label() -> str:
    return (
        f"dyn(object).metadata.?labels[?'{LABEL_HOME}'] == "
        f"optional.of(variables.labels['{LABEL_HOME}'])"
    )


def _only_registers() -> str:
    """CEL: a namespace changes only in the annotations of its users. An owner that does not exist
    would have the garbage collector delete the namespace, and a finalizer would keep it for
    ever."""
    after = _annotations("dyn(object)")
    is_user_key = f"k.startsWith('{USED_BY_DOMAIN}/')"
    fixed = " && ".join(
        f"dyn(object).{field} == variables.before.{field}"
        for field in ("metadata.?ownerReferences", "metadata.?finalizers", "?spec")
    )
    return (
        f"{fixed} && "
        f"{_labels('dyn(object)')} == variables.labels && "
        f"{after}.all(k, {is_user_key} || variables.annotations[?k] == {after}[?k]) && "
        f"variables.annotations.all(k, {is_user_key} || k in {after})"
    )


def _is_allowed(resource: str, *, in_namespace: bool = False) -> str:
    """CEL: whether the user may set this virtual resource; ``in_namespace``: a Role in the object's
    namespace is enough."""
    where = ".namespace(request.?namespace.orValue(''))" if in_namespace else ""
    checked = f"authorizer.group('{DOMAIN}').resource('{resource}'){where}.check('set')"
    return f"{checked}.allowed()"
