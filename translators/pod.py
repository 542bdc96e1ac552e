"""A home pod as it runs in the remote.

The rule is: carry everything, also fields that this version does not know, and change only what
would mean something else there. `to_remote` lists what it left out, so that it can be told.

- Identity (namespace, UID, node, service account) in the downward API stays home's.
- What home's admission and scheduler decided for home's cluster goes: node name, scheduler,
  priority, overhead, the token volume of the service account.
- Of node selectors and affinity stays what means something there (`translators.placement`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from translators import naming, placement
from translators.downward import identity_in_env, identity_in_volume
from translators.naming import Identity
from translators.policy import Policy
from translators.serviceaccount import without_home_token
from translators.spec import Dropped, each_container, put
from translators.types import Object, metadata

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


@dataclass(frozen=True, slots=True)
class Translated:
    """A remote pod, and what of the home pod is not in it."""

    pod: Object
    dropped: list[Dropped] = field(default_factory=list)


def to_remote(home: Object, policy: Policy) -> Translated:
    """The pod to create in the remote for a home pod that is bound to the virtual node."""
    identity = policy.identity
    dropped: list[Dropped] = []
    spec: Object = {
        key: value for key, value in (home.get("spec") or {}).items() if key not in _HOME_ONLY
    }
    # An ephemeral container cannot be part of a new pod; the API has a subresource for them.
    spec.pop("ephemeralContainers", None)
    kept = placement.kept_selector((home.get("spec") or {}).get("nodeSelector"))
    if kept:
        spec["nodeSelector"] = kept
    put(spec, "affinity", placement.affinity(spec.get("affinity"), identity))
    if spec.get("topologySpreadConstraints"):
        spec["topologySpreadConstraints"] = [
            placement.without_merged_keys(constraint)
            for constraint in spec["topologySpreadConstraints"]
        ]
    put(spec, "tolerations", tolerations(home))
    without_home_token(spec, dropped)
    account = str((home.get("spec") or {}).get("serviceAccountName") or "default")
    each_container(spec, lambda c: identity_in_env(c, account=account, address=policy.node_address))
    put(spec, "volumes", [identity_in_volume(volume) for volume in spec.get("volumes") or ()])
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
