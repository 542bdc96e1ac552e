"""Identity: which namespace of the remote stands for one of home, and whose an object is.

Every object that the bridge makes in the remote carries, as labels (so that a watch can select
by them), the identity of home and the virtual node, and, as annotations (which have no limit of
63 characters), the namespace, name and UID of the home object that it stands for. An object is
*owned* when its labels name this home, and *foreign* otherwise; foreign objects are never
touched.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import string
from dataclasses import dataclass

from translators.names import label_value, short_hash
from translators.objects import HomeNamespace, HomeUid, Object, RemoteNamespace, metadata, name_of

#: All labels, annotations and taints of ours are under this domain.
DOMAIN = "cluster-bridge.io"

LABEL_HOME = f"{DOMAIN}/home"
LABEL_NODE = f"{DOMAIN}/node"
#: On a virtual node's Node: what a pod selects to run on any of them.
LABEL_VIRTUAL = f"{DOMAIN}/virtual-node"
ANNOTATION_HOME_NAMESPACE = f"{DOMAIN}/home-namespace"
#: On a namespace that the bridge made: a random text that the bridge recorded at home before.
ANNOTATION_NONCE = f"{DOMAIN}/created-by"
ANNOTATION_HOME_NAME = f"{DOMAIN}/home-name"
ANNOTATION_HOME_UID = f"{DOMAIN}/home-uid"
ANNOTATION_NODE_NAME = f"{DOMAIN}/node-name"
#: What files of the downward API hold of home's labels and annotations (`translators.pods.downward_api`).
ANNOTATION_LABELS_FILE = f"{DOMAIN}/labels-file"
ANNOTATION_ANNOTATIONS_FILE = f"{DOMAIN}/annotations-file"
#: Which labels and annotations with a domain came from home (`translators.pods.update`).
ANNOTATION_CARRIED_KEYS = f"{DOMAIN}/carried-keys"
#: The images that home's containers had when they were last carried (`translators.pods.update`).
ANNOTATION_CARRIED_IMAGES = f"{DOMAIN}/carried-images"
#: The CPU and memory that home's containers had when they were last carried, and a digest of home's
#: tolerations and deadline (`translators.pods.update`).
ANNOTATION_CARRIED_RESOURCES = f"{DOMAIN}/carried-resources"
ANNOTATION_CARRIED_FIELDS = f"{DOMAIN}/carried-fields"
#: On a home Service: ``"false"`` keeps it out of the remote (`translators.mirror.service`).
ANNOTATION_MIRROR = f"{DOMAIN}/mirror"
#: Set by an administrator of the remote on a namespace of theirs: the value names the home
#: (its `--home-name`, or ``*``) whose pods may run in it. Home must accept it too
#: (`Identity.accepted_namespaces`).
ANNOTATION_ACCEPTS = f"{DOMAIN}/accepts-home"
#: Domain of the annotations of a remote namespace that name the virtual nodes which use it: a key
#: for each, so that they are written independently. No other one deletes the namespace meanwhile.
USED_BY_DOMAIN = f"used-by.{DOMAIN}"

#: A namespace name (RFC 1123 label).
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class NamespaceTemplateError(ValueError):
    """The namespace template cannot give valid, distinct names."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are in the remote: which home, which virtual node, and how namespaces map.

    ``home_id`` is `home_id` of home's kube-system namespace; ``home_name`` the readable name
    that stands for ``{home}`` in ``template``; ``node`` the virtual node's name.
    """

    home_id: str
    home_name: str
    node: str
    namespace_template: str = "{namespace}-{home}"
    accepted_namespaces: tuple[str, ...] = ()
    """Names of remote namespaces, or globs, that home accepts when they are handed over."""

    @property
    def node_label(self) -> str:
        """The virtual node's name as a label's value."""
        return label_value(self.node)

    @property
    def home_selector(self) -> str:
        """The label selector of all that this home owns in the remote."""
        return f"{LABEL_HOME}={self.home_id}"

    @property
    def unmanaged_selector(self) -> str:
        """The label selector of all that is not this home's."""
        return f"{LABEL_HOME}!={self.home_id}"

    def remote_namespace(self, namespace: HomeNamespace) -> RemoteNamespace:
        """The namespace of the remote that stands for ``namespace``.

        Where the template gives more than 63 characters, it is cut and ends in a hash of the
        whole, so that two long names stay two; so does one of 63 that looks like a name that was
        cut. A long name can still be cut to a shorter form (within its dashes), and two joins can
        have different templates: which home namespace a remote one stands for is in its
        annotations, and is compared wherever it is used (`matches_home_namespace`).
        """
        return _remote_namespace(self.namespace_template, namespace, self.home_name)


@functools.lru_cache(maxsize=4096)  # asked for several times for each event
def _remote_namespace(template: str, namespace: HomeNamespace, home_name: str) -> RemoteNamespace:
    return RemoteNamespace(label_value(template.format(namespace=namespace, home=home_name)))


def home_id_from_uid(kube_system_uid: str) -> str:
    """Home's identity, from the UID of its kube-system namespace: it lives as long as the
    cluster does, and no two clusters have the same."""
    return short_hash(kube_system_uid)


def validate_namespace_template(template: str, *, home_name: str) -> None:
    """Raises TemplateError, in words for the person who wrote ``template``."""
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise NamespaceTemplateError(f"{template!r}: {error}") from error
    fields = {field for _, field, _, _ in parts}
    # A format could cut or fill the name, and two namespaces could become one.
    formatted = any(spec or conversion for _, _, spec, conversion in parts)
    if formatted or fields - {"namespace", "home"}:
        raise NamespaceTemplateError(
            f"{template!r}: only {{namespace}} and {{home}} have a meaning in it"
        )
    if "namespace" not in fields:
        raise NamespaceTemplateError(
            f"{template!r}: without {{namespace}} all namespaces would be one"
        )
    sample = template.format(namespace="a", home=home_name)
    if not _DNS_LABEL.fullmatch(sample):
        raise NamespaceTemplateError(
            f"{template!r} gives {sample!r} for namespace 'a': a namespace's name has only "
            "lower case letters, digits and '-', and starts and ends with a letter or digit"
        )


# -- ownership -----------------------------------------------------------------------------


def owner_labels(identity: Identity) -> dict[str, str]:
    """The labels by which an object in the remote is ours."""
    return {LABEL_HOME: identity.home_id, LABEL_NODE: identity.node_label}


def is_owned(remote: Object, identity: Identity) -> bool:
    """Whether an object of the remote is this home's. Everything else is foreign."""
    labels = metadata(remote).get("labels") or {}
    return bool(labels.get(LABEL_HOME) == identity.home_id)


def is_owned_by_node(remote: Object, identity: Identity) -> bool:
    """Whether an object of the remote was made for this virtual node, not another of home's."""
    labels = metadata(remote).get("labels") or {}
    return is_owned(remote, identity) and labels.get(LABEL_NODE) == identity.node_label


def used_by_annotation(node_label: str) -> str:
    """The annotation's key by which a virtual node claims a remote namespace."""
    return f"{USED_BY_DOMAIN}/{node_label}"


def namespace_users(remote_namespace: Object) -> frozenset[str]:
    """The virtual nodes, as labels' values, that claim a remote namespace."""
    keys = metadata(remote_namespace).get("annotations") or {}
    return frozenset(
        name for domain, _, name in (key.partition("/") for key in keys) if domain == USED_BY_DOMAIN
    )


def is_in_mapped_namespace(remote: Object, identity: Identity) -> bool:
    """Whether an object is in the namespace that the home namespace which it names is mapped to.
    Whoever may create objects elsewhere in the remote can copy labels and annotations of ours; such
    an object counts for nothing."""
    namespace = home_namespace_of(remote)
    return namespace is not None and (
        metadata(remote).get("namespace") == identity.remote_namespace(namespace)
    )


def is_usable_namespace(remote_namespace: Object, identity: Identity) -> bool:
    """Whether the bridge may use this namespace, as far as its labels tell: its own, or handed over
    to this home by the remote and accepted by home. Whether this home really made a namespace that
    has its labels is known at home (`sync.namespaces.ownership`)."""
    if is_owned(remote_namespace, identity):
        return True
    return is_granted_by_remote(remote_namespace, identity) and is_accepted_by_home(
        remote_namespace, identity
    )


def is_granted_by_remote(remote_namespace: Object, identity: Identity) -> bool:
    """Whether the remote's side of it is done: the annotation names this home."""
    annotations = metadata(remote_namespace).get("annotations") or {}
    return annotations.get(ANNOTATION_ACCEPTS) in ("*", identity.home_name, identity.home_id)


def is_accepted_by_home(remote_namespace: Object, identity: Identity) -> bool:
    """Whether home's side of it is done: the join accepts a namespace of this name."""
    name = name_of(remote_namespace)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in identity.accepted_namespaces)


def unusable_namespace_message(remote_namespace: Object, identity: Identity) -> str:
    """Why a namespace of the remote that `is_usable_namespace` rejects is not used, and what to do."""
    name = name_of(remote_namespace)
    option = f"join with --accept-namespaces {name}"
    annotate = f"kubectl annotate namespace {name} {ANNOTATION_ACCEPTS}={identity.home_name}"
    if is_owned(remote_namespace, identity):
        return (
            f"namespace {name} of the remote cluster carries this home's labels, but home has no "
            f"record that a bridge made it; if it is to be used, {option}"
        )
    if is_granted_by_remote(remote_namespace, identity):
        return (
            f"namespace {name} of the remote cluster was handed over to this home, but this bridge "
            f"does not accept it; {option}, or with another --namespace-template"
        )
    both = "" if is_accepted_by_home(remote_namespace, identity) else f", and {option}"
    return (
        f"namespace {name} exists in the remote cluster and is not this bridge's; join with "
        "another --namespace-template, or have its administrator hand it over in the remote: "
        f"{annotate}{both}"
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """The home object that an object of the remote stands for."""

    namespace: HomeNamespace
    name: str
    uid: HomeUid


def origin_of(remote: Object) -> Origin | None:
    """Read back from the annotations; None where they are not all there."""
    annotations = metadata(remote).get("annotations") or {}
    namespace = str(annotations.get(ANNOTATION_HOME_NAMESPACE) or "")
    name = str(annotations.get(ANNOTATION_HOME_NAME) or "")
    uid = str(annotations.get(ANNOTATION_HOME_UID) or "")
    if not (namespace and name and uid):
        return None
    return Origin(HomeNamespace(namespace), name, HomeUid(uid))


def home_namespace_of(remote: Object) -> HomeNamespace | None:
    """The home namespace that a remote namespace of ours, or an object in it, is for; None where
    it does not tell."""
    annotations = metadata(remote).get("annotations") or {}
    name = str(annotations.get(ANNOTATION_HOME_NAMESPACE) or "")
    return HomeNamespace(name) if name else None


def matches_home_namespace(remote: Object, namespace: str) -> bool:
    """Whether an object of this home's in the remote is for home's ``namespace``, as far as the
    object tells: two home namespaces can be mapped to one of the remote. The annotation can have
    been removed by somebody; then the labels alone count."""
    return (home_namespace_of(remote) or namespace) == namespace


def has_home_uid(remote: Object, home_uid: str) -> bool:
    """Whether an object of the remote is that of this very home object, not of a former one that
    had its name."""
    known = origin_of(remote)
    return known is not None and known.uid == home_uid


def may_be_set_by_remote(key: str) -> bool:
    """Whether a label or annotation that home's object lacks may be the remote's own machinery's
    (CNI, schedulers, policy engines), which would write it anew each time we took it off. Those
    keys have a domain; those without one are people's, and people write them at home."""
    return "/" in key


def remote_metadata(home: Object, identity: Identity) -> Object:
    """The metadata of the remote object that stands for ``home``.

    Labels and annotations are carried, but for those of our own domain (home can itself be a
    remote of another home) and kubectl's copy of the whole object. Owner references, finalizers
    and what the server writes (UID, versions, managed fields) mean nothing in the remote.
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
    """The labels of a home object that its remote counterpart carries."""
    labels = metadata(home).get("labels") or {}
    return {key: value for key, value in labels.items() if not is_bridge_key(key)}


def copied_annotations(home: Object) -> dict[str, str]:
    """The annotations of a home object that its remote counterpart carries."""
    annotations = metadata(home).get("annotations") or {}
    return {
        key: value
        for key, value in annotations.items()
        if not is_bridge_key(key) and key != "kubectl.kubernetes.io/last-applied-configuration"
    }


def is_bridge_key(key: str) -> bool:
    """Whether a label or annotation is of our own domain."""
    domain = key.partition("/")[0]
    return domain == DOMAIN or domain.endswith("." + DOMAIN)
