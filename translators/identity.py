"""Ownership and identity: mapped namespaces, ownership labels, and the link from copies to their
originals.

Every object that the bridge creates in the remote has labels with the identity of home and the name
of the virtual node (so that watches can select by them), and annotations with the namespace, name
and UID of its home object (annotation values may exceed 63 characters). An object whose labels name
this home is *managed*; all others are *unmanaged*, and the bridge never changes or deletes them.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import string
from dataclasses import dataclass

from translators.names import label_value, short_hash
from translators.objects import HomeNamespace, HomeUid, Object, RemoteNamespace, metadata, name_of

#: The domain of the bridge's labels, annotations and taints.
DOMAIN = "cluster-bridge.io"

LABEL_HOME = f"{DOMAIN}/home"
LABEL_NODE = f"{DOMAIN}/node"
#: On the Node of a virtual node. A pod selects this label to run on any virtual node.
LABEL_VIRTUAL = f"{DOMAIN}/virtual-node"
ANNOTATION_HOME_NAMESPACE = f"{DOMAIN}/home-namespace"
#: On a namespace that the bridge created: a hash of its name and of a secret recorded at home
#: beforehand.
ANNOTATION_NONCE = f"{DOMAIN}/created-by"
ANNOTATION_HOME_NAME = f"{DOMAIN}/home-name"
ANNOTATION_HOME_UID = f"{DOMAIN}/home-uid"
ANNOTATION_NODE_NAME = f"{DOMAIN}/node-name"
#: Text of downward API files that contain all labels or annotations
#: (`translators.pods.downward_api`).
ANNOTATION_LABELS_FILE = f"{DOMAIN}/labels-file"
ANNOTATION_ANNOTATIONS_FILE = f"{DOMAIN}/annotations-file"
#: The keys of labels and annotations with a domain that were copied from the home pod
#: (`translators.pods.last_applied_annotations`).
ANNOTATION_CARRIED_KEYS = f"{DOMAIN}/carried-keys"
#: The last applied images of the home pod's containers
#: (`translators.pods.last_applied_annotations`).
ANNOTATION_CARRIED_IMAGES = f"{DOMAIN}/carried-images"
#: The last applied CPU and memory of the home pod's containers, and digests of its last applied
#: tolerations and deadline (`translators.pods.last_applied_annotations`).
ANNOTATION_CARRIED_RESOURCES = f"{DOMAIN}/carried-resources"
ANNOTATION_CARRIED_FIELDS = f"{DOMAIN}/carried-fields"
#: On a home Service: ``"false"`` prevents its copy (`translators.mirror.service`).
ANNOTATION_MIRROR = f"{DOMAIN}/mirror"
#: On a namespace of the remote, set by its administrator: the home (its ``--home-name``, or ``*``)
#: whose pods may run there. Home has to accept the namespace too (`Identity.accepted_namespaces`).
ANNOTATION_ACCEPTS = f"{DOMAIN}/accepts-home"
#: Domain of the annotations of a remote namespace that name the virtual nodes which use it. Each
#: node writes its own key. A bridge deletes the namespace only if no other node uses it.
USED_BY_DOMAIN = f"used-by.{DOMAIN}"

#: A namespace name (RFC 1123 label).
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class NamespaceTemplateError(ValueError):
    """The namespace template does not result in valid, distinct names."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a virtual node in the remote, and how it maps namespaces.

    ``home_id`` is the `home_id_from_uid` of home's kube-system namespace, ``home_name`` the
    readable name that replaces ``{home}`` in ``namespace_template``, ``node`` the name of the
    virtual node.
    """

    home_id: str
    home_name: str
    node: str
    namespace_template: str = "{namespace}-{home}"
    accepted_namespaces: tuple[str, ...] = ()
    """Names or globs of unmanaged remote namespaces that the bridge may use, if the remote grants
    them."""

    @property
    def node_label(self) -> str:
        """The name of the virtual node as a label value."""
        return label_value(self.node)

    @property
    def home_selector(self) -> str:
        """Label selector of the managed objects in the remote."""
        return f"{LABEL_HOME}={self.home_id}"

    @property
    def unmanaged_selector(self) -> str:
        """Label selector of the unmanaged objects in the remote."""
        return f"{LABEL_HOME}!={self.home_id}"

    def remote_namespace(self, namespace: HomeNamespace) -> RemoteNamespace:
        """The mapped namespace of ``namespace``.

        A name of more than 63 characters is truncated and ends with a hash of the whole name
        (`translators.names.label_value`). Home namespaces of joins with different templates can be
        mapped to the same remote namespace; the annotations of a remote object name its home
        namespace, and callers compare it (`matches_home_namespace`).
        """
        return _remote_namespace(self.namespace_template, namespace, self.home_name)


@functools.lru_cache(maxsize=4096)  # called several times for each event
def _remote_namespace(template: str, namespace: HomeNamespace, home_name: str) -> RemoteNamespace:
    return RemoteNamespace(label_value(template.format(namespace=namespace, home=home_name)))


def home_id_from_uid(kube_system_uid: str) -> str:
    """Home's identity, from the UID of its kube-system namespace, which is unique and lasts as long
    as the cluster."""
    return short_hash(kube_system_uid)


def validate_namespace_template(template: str, *, home_name: str) -> None:
    """Raises NamespaceTemplateError unless ``template`` results in valid and distinct names."""
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise NamespaceTemplateError(f"{template!r}: {error}") from error
    fields = {field for _, field, _, _ in parts}
    # A format specification could truncate names, and map two namespaces to one name.
    formatted = any(spec or conversion for _, _, spec, conversion in parts)
    if formatted or fields - {"namespace", "home"}:
        raise NamespaceTemplateError(f"{template!r}: only {{namespace}} and {{home}} can be used")
    if "namespace" not in fields:
        raise NamespaceTemplateError(
            f"{template!r}: {{namespace}} is missing, so all namespaces would have one name"
        )
    sample = template.format(namespace="a", home=home_name)
    if not _DNS_LABEL.fullmatch(sample):
        raise NamespaceTemplateError(
            f"{template!r} gives {sample!r} for namespace 'a': a namespace name consists of "
            "lower case letters, digits and '-', and starts and ends with a letter or digit"
        )


# -- ownership -----------------------------------------------------------------------------


def owner_labels(identity: Identity) -> dict[str, str]:
    """The labels of managed objects."""
    return {LABEL_HOME: identity.home_id, LABEL_NODE: identity.node_label}


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
    keys = metadata(remote_namespace).get("annotations") or {}
    return frozenset(
        name for domain, _, name in (key.partition("/") for key in keys) if domain == USED_BY_DOMAIN
    )


def is_in_mapped_namespace(remote: Object, identity: Identity) -> bool:
    """Whether the object is in the mapped namespace of the home namespace that its annotations
    name.

    A user of the remote can copy the bridge's labels and annotations to an object elsewhere; the
    bridge ignores such objects.
    """
    namespace = home_namespace_of(remote)
    return namespace is not None and (
        metadata(remote).get("namespace") == identity.remote_namespace(namespace)
    )


def is_usable_namespace(remote_namespace: Object, identity: Identity) -> bool:
    """Whether the bridge may use the remote namespace according to its labels and annotations: it
    is managed, or the remote grants it to this home and home accepts it. Only the record at home
    proves that this home created a namespace with its labels
    (`sync.namespaces.namespace_ownership`)."""
    if is_owned(remote_namespace, identity):
        return True
    return is_granted_by_remote(remote_namespace, identity) and is_accepted_by_home(
        remote_namespace, identity
    )


def is_granted_by_remote(remote_namespace: Object, identity: Identity) -> bool:
    """Whether the namespace's annotation grants it to this home."""
    annotations = metadata(remote_namespace).get("annotations") or {}
    return annotations.get(ANNOTATION_ACCEPTS) in ("*", identity.home_name, identity.home_id)


def is_accepted_by_home(remote_namespace: Object, identity: Identity) -> bool:
    """Whether the join accepts a namespace of this name."""
    name = name_of(remote_namespace)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in identity.accepted_namespaces)


def unusable_namespace_message(remote_namespace: Object, identity: Identity) -> str:
    """Why the bridge does not use a remote namespace that `is_usable_namespace` rejects, and what
    to do."""
    name = name_of(remote_namespace)
    option = f"join with --accept-namespaces {name}"
    annotate = f"kubectl annotate namespace {name} {ANNOTATION_ACCEPTS}={identity.home_name}"
    if is_owned(remote_namespace, identity):
        return (
            f"namespace {name} of the remote cluster has this home's labels, but home has no "
            f"record that a bridge created it; to use it, {option}"
        )
    if is_granted_by_remote(remote_namespace, identity):
        return (
            f"namespace {name} of the remote cluster is granted to this home, but this bridge "
            f"does not accept it; {option}, or with another --namespace-template"
        )
    both = "" if is_accepted_by_home(remote_namespace, identity) else f", and {option}"
    return (
        f"namespace {name} exists in the remote cluster and is not managed by this bridge; join "
        "with another --namespace-template, or have its administrator grant it to this home: "
        f"{annotate}{both}"
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """The home object of a remote object."""

    namespace: HomeNamespace
    name: str
    uid: HomeUid


def origin_of(remote: Object) -> Origin | None:
    """The home object that the annotations name; None unless all three annotations exist."""
    annotations = metadata(remote).get("annotations") or {}
    namespace = str(annotations.get(ANNOTATION_HOME_NAMESPACE) or "")
    name = str(annotations.get(ANNOTATION_HOME_NAME) or "")
    uid = str(annotations.get(ANNOTATION_HOME_UID) or "")
    if not (namespace and name and uid):
        return None
    return Origin(HomeNamespace(namespace), name, HomeUid(uid))


def home_namespace_of(remote: Object) -> HomeNamespace | None:
    """The home namespace of a managed namespace, or of an object in it; None without the
    annotation."""
    annotations = metadata(remote).get("annotations") or {}
    name = str(annotations.get(ANNOTATION_HOME_NAMESPACE) or "")
    return HomeNamespace(name) if name else None


def matches_home_namespace(remote: Object, namespace: str) -> bool:
    """Whether a managed object belongs to home's ``namespace``, since two home namespaces can be
    mapped to one remote namespace. Without the annotation, which a user can remove, the labels
    decide."""
    return (home_namespace_of(remote) or namespace) == namespace


def has_home_uid(remote: Object, home_uid: str) -> bool:
    """Whether the object's annotations name the home object with this UID, and not a previous one
    of the same name."""
    known = origin_of(remote)
    return known is not None and known.uid == home_uid


def may_be_set_by_remote(key: str) -> bool:
    """Whether the remote's own components (CNI, scheduler, policy engine) may have set a label or
    annotation that the home object lacks.

    Components use keys with a domain, and would restore a key that the bridge removes. Keys without
    a domain are set by users, at home.
    """
    return "/" in key


def remote_metadata(home: Object, identity: Identity) -> Object:
    """The metadata of the remote object for ``home``.

    Labels and annotations are copied, except those of the bridge's own domain (home can itself be
    the remote of another home) and kubectl's last-applied configuration. Owner references,
    finalizers and server-side fields (UID, versions, managed fields) are dropped.
    """
    meta = metadata(home)
    namespace = HomeNamespace(meta.get("namespace", ""))
    return {
        "name": meta["name"],
        "namespace": identity.remote_namespace(namespace),
        "labels": {**copied_labels(home), **owner_labels(identity)},
        "annotations": {
            **copied_annotations(home),
            ANNOTATION_HOME_NAMESPACE: namespace,
            ANNOTATION_HOME_NAME: meta["name"],
            ANNOTATION_HOME_UID: meta["uid"],
        },
    }


def copied_labels(home: Object) -> dict[str, str]:
    """The labels of a home object that its remote copy has."""
    labels = metadata(home).get("labels") or {}
    return {key: value for key, value in labels.items() if not is_bridge_key(key)}


def copied_annotations(home: Object) -> dict[str, str]:
    """The annotations of a home object that its remote copy has."""
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
