"""A home pod as it runs in the remote.

The rule is: carry everything, also fields that this version does not know, and change only what
would mean something else there. `to_remote` lists what it left out, so that it can be told.

- Identity (namespace, UID, node, service account) in the downward API stays home's.
- What home's admission and scheduler decided for home's cluster goes: node name, scheduler,
  priority, overhead, the token volume of the service account.
- Node selectors and node affinity are kept where they speak of what a machine *is* (`_KEPT_KEYS`)
  and dropped where they can only mean home's nodes; home's scheduler has already obeyed them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from translators import naming, references
from translators.naming import Identity
from translators.types import HomeNamespace, Object, metadata

#: Labels that every kubelet sets to what its machine is, so they mean the same in any cluster.
_KEPT_KEYS = frozenset({"kubernetes.io/arch", "kubernetes.io/os"})

#: The lists of terms in pod affinity and anti-affinity.
_WHEN = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)

#: Where the API server mounts the token volume that it adds to each container
#: (plugin/pkg/admission/serviceaccount).
_TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path

#: Fields of the spec that home's admission or scheduler set for home's cluster alone.
_HOME_ONLY = (
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "serviceAccountName",
)

#: What identity in the downward API is read from instead, so that the pod sees home's.
_REWRITTEN_FIELDS = {
    "metadata.namespace": f"metadata.annotations['{naming.ANNOTATION_HOME_NAMESPACE}']",
    "metadata.uid": f"metadata.annotations['{naming.ANNOTATION_HOME_UID}']",
    "spec.nodeName": f"metadata.annotations['{naming.ANNOTATION_NODE_NAME}']",
}


@dataclass(frozen=True, slots=True)
class Dropped:
    """A field that was left out, and why, in words for the pod's owner."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


@dataclass(frozen=True, slots=True)
class Translated:
    """A remote pod, and what of the home pod is not in it."""

    pod: Object
    dropped: list[Dropped] = field(default_factory=list)


def to_remote(home: Object, identity: Identity, *, node_address: str) -> Translated:
    """The pod to create in the remote for a home pod that is bound to the virtual node.

    ``node_address`` is the virtual node's address, which is the pod's ``status.hostIP``.
    """
    dropped: list[Dropped] = []
    spec: Object = {
        key: value for key, value in (home.get("spec") or {}).items() if key not in _HOME_ONLY
    }
    # An ephemeral container cannot be part of a new pod; the API has a subresource for them.
    spec.pop("ephemeralContainers", None)
    kept = _kept_selector((home.get("spec") or {}).get("nodeSelector"))
    if kept:
        spec["nodeSelector"] = kept
    _put(spec, "affinity", _affinity(spec.get("affinity"), identity))
    if spec.get("topologySpreadConstraints"):
        spec["topologySpreadConstraints"] = [
            _without_merged_keys(constraint) for constraint in spec["topologySpreadConstraints"]
        ]
    _put(spec, "tolerations", tolerations(home))
    _without_home_token(spec, dropped)
    account = str((home.get("spec") or {}).get("serviceAccountName") or "default")
    _each_container(spec, lambda c: _identity_in_env(c, account=account, address=node_address))
    _put(spec, "volumes", [_identity_in_volume(volume) for volume in spec.get("volumes") or ()])
    spec["automountServiceAccountToken"] = False
    pod = {
        **{key: value for key, value in home.items() if key != "status"},
        "metadata": pod_metadata(home, identity),
        "spec": spec,
    }
    return Translated(pod=pod, dropped=dropped)


def pod_metadata(home: Object, identity: Identity) -> Object:
    """As `naming.remote_metadata`, and the node's name where the downward API finds it."""
    meta = naming.remote_metadata(home, identity)
    meta["annotations"][naming.ANNOTATION_NODE_NAME] = identity.node
    return meta


def tolerations(home: Object) -> list[Object]:
    """The pod's tolerations, less those that can only mean the virtual node's taint."""
    found = (home.get("spec") or {}).get("tolerations") or ()
    return [item for item in found if not str(item.get("key", "")).startswith(naming.DOMAIN + "/")]


def update(home: Object, remote: Object, identity: Identity) -> Object:
    """The merge patch that makes a running remote pod follow its home pod; {} if it does.

    Of a pod's spec the API allows images, tolerations (more of them, or for other times) and
    ``activeDeadlineSeconds`` to change. Labels and annotations are added and changed as at home;
    one that home's pod lacks is removed unless its key has a domain (`naming.set_by_remote`).
    """
    wanted, meta = pod_metadata(home, identity), metadata(remote)
    patch: Object = {}
    for field_name in ("labels", "annotations"):
        changes = {
            key: value
            for key, value in wanted[field_name].items()
            if (meta.get(field_name) or {}).get(key) != value
        }
        for key in meta.get(field_name) or {}:
            if key not in wanted[field_name] and not naming.set_by_remote(key):
                changes[key] = None
        if changes:
            patch.setdefault("metadata", {})[field_name] = changes
    spec = _spec_update(home, remote)
    if spec:
        patch["spec"] = spec
    return patch


def _spec_update(home: Object, remote: Object) -> Object:
    ours, theirs = home.get("spec") or {}, remote.get("spec") or {}
    patch: Object = {}
    for field_name in ("containers", "initContainers"):
        images = {c["name"]: c.get("image") for c in ours.get(field_name) or ()}
        current = theirs.get(field_name) or []
        moved = [{**c, "image": images[c["name"]]} if images.get(c["name"]) else c for c in current]
        if moved != current:
            patch[field_name] = moved
    deadline = ours.get("activeDeadlineSeconds")
    if deadline is not None and deadline != theirs.get("activeDeadlineSeconds"):
        patch["activeDeadlineSeconds"] = deadline
    has = theirs.get("tolerations") or []
    followed = _tolerations_update(has, tolerations(home))
    if followed != has:
        patch["tolerations"] = followed
    return patch


def _tolerations_update(has: list[Object], wanted: list[Object]) -> list[Object]:
    """What the API allows: the seconds of a toleration may change, and more may be added."""

    def lasting(toleration: Object) -> Object:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    followed = [
        item
        if item in wanted
        else next((other for other in wanted if lasting(other) == lasting(item)), item)
        for item in has
    ]
    return [*followed, *(item for item in wanted if item not in followed)]


# -- placement -----------------------------------------------------------------------------


def _kept_selector(selector: Object | None) -> Object:
    return {key: value for key, value in (selector or {}).items() if key in _KEPT_KEYS}


def _affinity(affinity: Object | None, identity: Identity) -> Object:
    """Affinity among the remote's nodes and pods; namespaces are renamed to the remote's."""
    found = dict(affinity or {})
    _put(found, "nodeAffinity", _node_affinity(found.get("nodeAffinity")))
    for kind in ("podAffinity", "podAntiAffinity"):
        if found.get(kind):
            found[kind] = {
                when: [_pod_term(term, identity) for term in terms] if when in _WHEN else terms
                for when, terms in found[kind].items()
            }
    return found


def _node_affinity(affinity: Object | None) -> Object:
    found = dict(affinity or {})
    required = found.pop("requiredDuringSchedulingIgnoredDuringExecution", None) or {}
    terms = [_node_term(term) for term in required.get("nodeSelectorTerms") or ()]
    # Terms are alternatives: one that says nothing any more allows every node.
    if terms and all(terms):
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {
            **required,
            "nodeSelectorTerms": terms,
        }
    preferred = found.pop("preferredDuringSchedulingIgnoredDuringExecution", None) or ()
    wishes = [{**wish, "preference": _node_term(wish.get("preference"))} for wish in preferred]
    _put(
        found,
        "preferredDuringSchedulingIgnoredDuringExecution",
        [wish for wish in wishes if wish["preference"]],
    )
    return found


def _node_term(term: Object | None) -> Object:
    """The term less what names home's nodes: their names (matchFields) and their own labels."""
    expressions = [
        e for e in (term or {}).get("matchExpressions") or () if e.get("key") in _KEPT_KEYS
    ]
    return {"matchExpressions": expressions} if expressions else {}


def _pod_term(term: Object, identity: Identity) -> Object:
    """A (weighted) pod affinity term with the namespaces that it lists renamed."""
    if "podAffinityTerm" in term:
        return {**term, "podAffinityTerm": _pod_term(term["podAffinityTerm"], identity)}
    term = _without_merged_keys(term)
    if not term.get("namespaces"):
        return term
    renamed = [identity.remote_namespace(HomeNamespace(name)) for name in term["namespaces"]]
    return {**term, "namespaces": renamed}


def _without_merged_keys(term: Object) -> Object:
    """A term or a spread constraint without ``matchLabelKeys`` that its selector has already.

    The API server writes the pod's own values of these labels into the label selector of a new
    pod, keeps the keys, and refuses a new pod whose selector names one of them beforehand.
    """
    expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    changed = dict(term)
    for field_name, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        merged = {e.get("key") for e in expressions if e.get("operator") == operator}
        kept = [key for key in term.get(field_name) or () if key not in merged]
        _put(changed, field_name, kept)
    return changed


# -- identity ------------------------------------------------------------------------------


def _without_home_token(spec: Object, dropped: list[Dropped]) -> None:
    """Takes out tokens of home's service account: they would be asked for in the remote.

    The volume that home's admission added goes without a word, with its mounts; a token that
    the pod's author asked for by name is reported.
    """
    mounted = {
        mount.get("name")
        for container in references.containers(spec)
        for mount in container.get("volumeMounts") or ()
        if mount.get("mountPath") == _TOKEN_MOUNT
    }
    added = {
        volume["name"]
        for volume in spec.get("volumes") or ()
        if volume["name"] in mounted and _token_sources(volume)
    }
    volumes = []
    for volume in spec.get("volumes") or ():
        if volume["name"] in added:
            continue
        sources = (volume.get("projected") or {}).get("sources") or ()
        kept = [source for source in sources if "serviceAccountToken" not in source]
        if len(kept) != len(sources):
            path = f"spec.volumes[{volume['name']}].projected.serviceAccountToken"
            dropped.append(Dropped(path, "tokens of home's service accounts stay at home"))
            volume = {**volume, "projected": {**volume["projected"], "sources": kept}}  # noqa: PLW2901
        volumes.append(volume)
    _put(spec, "volumes", volumes)
    _each_container(spec, lambda container: _without_mounts(container, added))


def _token_sources(volume: Object) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return any("serviceAccountToken" in source for source in sources)


def _without_mounts(container: Object, volumes: set[str]) -> Object:
    mounts = container.get("volumeMounts")
    if not mounts or not volumes:
        return container
    kept = [mount for mount in mounts if mount.get("name") not in volumes]
    changed = dict(container)
    _put(changed, "volumeMounts", kept)
    return changed


def _identity_in_env(container: Object, *, account: str, address: str) -> Object:
    if not container.get("env"):
        return container
    known = {
        "spec.serviceAccountName": account,
        "status.hostIP": address,
        "status.hostIPs": address,
    }
    return {**container, "env": [_variable(variable, known) for variable in container["env"]]}


def _variable(variable: Object, known: dict[str, str]) -> Object:
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path in known:
        return {"name": variable["name"], "value": known[path]}
    if path in _REWRITTEN_FIELDS:
        return {**variable, "valueFrom": {"fieldRef": _field_ref(path)}}
    return variable


def _identity_in_volume(volume: Object) -> Object:
    if volume.get("downwardAPI"):
        return {**volume, "downwardAPI": _identity_in_files(volume["downwardAPI"])}
    sources = (volume.get("projected") or {}).get("sources")
    if not sources:
        return volume
    renamed = [
        {**source, "downwardAPI": _identity_in_files(source["downwardAPI"])}
        if source.get("downwardAPI")
        else source
        for source in sources
    ]
    return {**volume, "projected": {**volume["projected"], "sources": renamed}}


def _identity_in_files(downward: Object) -> Object:
    items = []
    for item in downward.get("items") or ():
        path = (item.get("fieldRef") or {}).get("fieldPath")
        changed = {**item, "fieldRef": _field_ref(path)} if path in _REWRITTEN_FIELDS else item
        items.append(changed)
    return {**downward, "items": items} if items else downward


def _field_ref(path: str) -> Object:
    return {"apiVersion": "v1", "fieldPath": _REWRITTEN_FIELDS[path]}


# -- helpers -------------------------------------------------------------------------------


def _each_container(spec: Object, change: Callable[[Object], Object]) -> None:
    for field_name in ("initContainers", "containers"):
        if spec.get(field_name):
            spec[field_name] = [change(container) for container in spec[field_name]]


def _put(target: Object, key: str, value: Any) -> None:
    """Sets ``target[key]``, or removes it where the value is empty."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)
