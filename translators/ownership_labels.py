"""The bridge's labels and annotations, which identify its objects in the remote and the home object
of each.

Every object that the bridge creates in the remote has labels with the identity of home and the name
of the virtual node (so that watches can select by them), and annotations with the namespace, name
and UID of its home object (annotation values may exceed 63 characters). An object whose labels name
this home is *managed*; all others are *unmanaged*, and the bridge never changes or deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from translators.derived_names import OBJECT_NAME_MAX
from translators.object_accessors import HomeNamespace, HomeUid, Object, metadata
from translators.virtual_node_identity import Identity

#: The domain of the bridge's labels, annotations and taints.
DOMAIN = "cluster-bridge.io"
LABEL_HOME = f"{DOMAIN}/home"
LABEL_NODE = f"{DOMAIN}/node"
#: On the Node of a virtual node. A pod selects this label to run on any virtual node.
LABEL_VIRTUAL = f"{DOMAIN}/virtual-node"
#: On the Node of a virtual node: the remote's identity. The virtual nodes of one remote share it.
LABEL_REMOTE = f"{DOMAIN}/remote"
#: On the Node of a virtual node; their values are the user's. Overviews sort by them.
LABEL_TIER, LABEL_COST = f"{DOMAIN}/tier", f"{DOMAIN}/cost"
#: On a pod of `bridge volume copy`: the run of the command that created it. No policy of
#: `bridge offload` changes the pod, which runs where its volume is.
LABEL_VOLUME_COPY = f"{DOMAIN}/volume-copy"
ANNOTATION_HOME_NAMESPACE = f"{DOMAIN}/home-namespace"
#: On a namespace that the bridge created: a hash of its name and a secret recorded at home.
ANNOTATION_NONCE = f"{DOMAIN}/created-by"
ANNOTATION_HOME_NAME = f"{DOMAIN}/home-name"
ANNOTATION_HOME_UID = f"{DOMAIN}/home-uid"
ANNOTATION_NODE_NAME = f"{DOMAIN}/node-name"
#: Text of files with all labels or annotations (`translators.pods.downward_api`).
ANNOTATION_LABELS_FILE = f"{DOMAIN}/labels-file"
ANNOTATION_ANNOTATIONS_FILE = f"{DOMAIN}/annotations-file"
#: State last applied from the home object (`translators.pods.last_applied_home_values`): the keys
#: of its labels and annotations; of a pod also its containers' images, CPU and memory, and digests
#: of tolerations and deadline.
ANNOTATION_CARRIED_KEYS = f"{DOMAIN}/carried-keys"
ANNOTATION_CARRIED_IMAGES = f"{DOMAIN}/carried-images"
ANNOTATION_CARRIED_RESOURCES = f"{DOMAIN}/carried-resources"
ANNOTATION_CARRIED_FIELDS = f"{DOMAIN}/carried-fields"
#: On a home Service: ``"false"`` prevents its copy (`translators.mirror.service`).
ANNOTATION_MIRROR = f"{DOMAIN}/mirror"
#: On a namespace of the remote, set by its administrator: the home (its ``--home-name``, or ``*``)
#: whose pods may run there. Home has to accept the namespace too (`Identity.accepted_namespaces`).
ANNOTATION_ACCEPTS = f"{DOMAIN}/accepts-home"
#: Domain of the annotations of a remote namespace that name the virtual nodes which use it. Each
#: node writes its own key, with its limit of the Pod Security level (`translators.pod_security`). A
#: bridge deletes the namespace only if no other node uses it.
USED_BY_DOMAIN = f"used-by.{DOMAIN}"


def owner_labels(identity: Identity) -> dict[str, str]:
    return {LABEL_HOME: identity.home_id, LABEL_NODE: identity.node_label}


def home_selector(identity: Identity) -> str:
    """Label selector of the managed objects in the remote."""
    return f"{LABEL_HOME}={identity.home_id}"


def unmanaged_selector(identity: Identity) -> str:
    """Label selector of the unmanaged objects in the remote."""
    return f"{LABEL_HOME}!={identity.home_id}"


def is_owned(remote: Object, identity: Identity) -> bool:
    """Whether the remote object is managed by this home."""
    labels = metadata(remote).get("labels") or {}
    return bool(labels.get(LABEL_HOME) == identity.home_id)


def is_owned_by_node(remote: Object, identity: Identity) -> bool:
    """Whether the remote object is managed by this virtual node of this home."""
    labels = metadata(remote).get("labels") or {}
    return is_owned(remote, identity) and labels.get(LABEL_NODE) == identity.node_label


def used_by_annotation(node_label: str) -> str:
    """The annotation key by which a virtual node registers as user of a remote namespace."""
    return f"{USED_BY_DOMAIN}/{node_label}"


def namespace_users(remote_namespace: Object) -> frozenset[str]:
    """The virtual nodes, as label values, that use a remote namespace."""
    return frozenset(users_of_namespace(remote_namespace))


def users_of_namespace(remote_namespace: Object) -> dict[str, str]:
    """The virtual nodes that use a remote namespace, with the value that each registered
    (`translators.pod_security`)."""
    annotations = metadata(remote_namespace).get("annotations") or {}
    prefix = f"{USED_BY_DOMAIN}/"
    return {
        key.removeprefix(prefix): str(value)
        for key, value in annotations.items()
        if key.startswith(prefix)
    }


def is_in_mapped_namespace(remote: Object, identity: Identity) -> bool:
    """Whether the object is in the mapped namespace of the home namespace that its annotations
    name. A user of the remote can copy the bridge's metadata to an object elsewhere."""
    namespace = home_namespace_of(remote)
    return namespace is not None and (
        metadata(remote).get("namespace") == identity.remote_namespace(namespace)
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """The home object of a remote object."""

    namespace: HomeNamespace
    name: str
    uid: HomeUid


def origin_of(remote: Object) -> Origin | None:
    """The home object that the annotations name; None unless all three annotations exist, with
    texts that are short enough for a name."""
    annotations = metadata(remote).get("annotations") or {}
    namespace = str(annotations.get(ANNOTATION_HOME_NAMESPACE) or "")
    name = str(annotations.get(ANNOTATION_HOME_NAME) or "")
    uid = str(annotations.get(ANNOTATION_HOME_UID) or "")
    if not (namespace and name and uid):
        return None
    if max(len(namespace), len(name), len(uid)) > OBJECT_NAME_MAX:
        return None
    return Origin(HomeNamespace(namespace), name, HomeUid(uid))


def home_namespace_of(remote: Object) -> HomeNamespace | None:
    """The home namespace of a managed namespace, or of an object in it; None without the
    annotation."""
    annotations = metadata(remote).get("annotations") or {}
    name = str(annotations.get(ANNOTATION_HOME_NAMESPACE) or "")
    return HomeNamespace(name) if name else None


def matches_home_namespace(remote: Object, namespace: str) -> bool:
    """Whether a managed object belongs to home's ``namespace``: two home namespaces can be mapped
    to one remote namespace. Without the annotation, which a user can remove, the labels decide."""
    return (home_namespace_of(remote) or namespace) == namespace


def has_home_uid(remote: Object, home_uid: str) -> bool:
    """Whether the annotations name the home object with this UID."""
    origin = origin_of(remote)
    return origin is not None and origin.uid == home_uid


def remote_metadata(home: Object, identity: Identity) -> Object:
    """The metadata of the remote object for ``home``: labels without those of the bridge's own
    domain (home can be the remote of another home), and the annotations that name the home object;
    no other annotations, owner references, finalizers and server-side fields."""
    meta = metadata(home)
    namespace = HomeNamespace(meta.get("namespace", ""))
    return {
        "name": meta["name"],
        "namespace": identity.remote_namespace(namespace),
        "labels": {**copied_labels(home), **owner_labels(identity)},
        "annotations": {
            ANNOTATION_HOME_NAMESPACE: namespace,
            ANNOTATION_HOME_NAME: meta["name"],
            ANNOTATION_HOME_UID: meta["uid"],
        },
    }


def copied_labels(home: Object) -> dict[str, str]:
    labels = metadata(home).get("labels") or {}
    return {key: value for key, value in labels.items() if not is_bridge_key(key)}


def copied_annotations(home: Object) -> dict[str, str]:
    """A pod's annotations without those of the bridge's own domain and kubectl's last-applied
    configuration."""
    annotations = metadata(home).get("annotations") or {}
    return {
        key: value
        for key, value in annotations.items()
        if not is_bridge_key(key) and key != "kubectl.kubernetes.io/last-applied-configuration"
    }


def is_bridge_key(key: str) -> bool:
    """Whether a label or annotation key is in the bridge's domain."""
    domain = key.partition("/")[0]
    return domain == DOMAIN or domain.endswith("." + DOMAIN)
