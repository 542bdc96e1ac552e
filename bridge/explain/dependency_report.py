"""The dependencies and Services of a pod, as part of the report of `bridge.explain.json_report`.
Pure."""

from __future__ import annotations

from bridge.explain.cluster_lookup import PodFacts
from translators.explain.dependencies import Dependency
from translators.mirror import service
from translators.object_accessors import HomeNamespace, Object, name_of, namespace_of
from translators.ownership_labels import is_owned
from translators.storage import pvc_resolution, remote_pvc, storage_class
from translators.storage.identifiers import bound_volume, claim_names, class_name
from translators.storage.pvc_resolution import Unresolved
from translators.translation_options import Policy


def describe_dependency(it: Dependency, facts: PodFacts) -> Object:
    """A dependency: whether it exists in both clusters, and what the remote pod uses instead."""
    key = (it.kind, it.name)
    home = _presence(facts.objects, key)
    keys = []
    if (found := facts.objects.get(key)) is not None:
        keys = sorted(it.keys - (found.get("data") or {}).keys())
    remote = _presence(facts.remote.objects, key) if facts.remote is not None else "unknown"
    becomes, needed_in = _remote_counterpart(it, facts)
    if it.kind == "PriorityClass" and facts.remote is not None:
        remote = "found" if it.name in facts.remote.priority_classes else "missing"
    return {
        "kind": it.kind,
        "name": it.name,
        "required": it.required,
        "home": home if needed_in == "home" or home != "unknown" else "-",
        "missingKeys": keys,
        "remote": remote if needed_in != "home" else _copy_presence(it, facts),
        "neededIn": needed_in,
        "becomes": becomes,
    }


def _copy_presence(it: Dependency, facts: PodFacts) -> str:
    """Whether the copy exists in the remote; "-" if no copy is due yet, or the remote was not
    read."""
    there = facts.remote
    if there is None or facts.policy is None or it.kind not in ("ConfigMap", "Secret"):
        return "-"
    copy = there.objects.get((it.kind, it.name))
    if copy is not None and is_owned(copy, facts.policy.identity):
        return "found"
    is_due = there.pod is not None and facts.objects.get((it.kind, it.name)) is not None
    return "missing" if is_due and (it.kind, it.name) in there.objects else "-"


def _presence(objects: dict[tuple[str, str], Object | None], key: tuple[str, str]) -> str:
    if key not in objects:
        return "unknown"
    return "missing" if objects[key] is None else "found"


def _remote_counterpart(it: Dependency, facts: PodFacts) -> tuple[str, str]:
    """The object that the remote pod uses, and the cluster that has to contain the dependency."""
    policy = facts.policy
    if policy is None:
        return "", "home"
    namespace = policy.identity.remote_namespace(HomeNamespace(namespace_of(facts.pod)))
    match it.kind:
        case "ConfigMap" | "Secret":
            return f"a copy, {namespace}/{it.name}", "home"
        case "ServiceAccount" if policy.service_accounts == "home":
            return f"its tokens, in a Secret in {namespace}", "home"
        case "ServiceAccount" if policy.service_accounts == "remote":
            return f"the existing account {namespace}/{it.name}", "remote"
        case "ServiceAccount":
            return "nothing: pods have no identity in the remote", "home"
        case "PersistentVolumeClaim" if policy.storage == "provision":
            return _provisioned_claim(it.name, facts, policy), "home"
        case "PersistentVolumeClaim":
            return f"the existing claim {namespace}/{it.name}", "remote"
        case _:
            return "the existing class of that name", "remote"


def remote_claims(facts: PodFacts) -> dict[str, str]:
    """The remote PVCs that the pod mounts, by the name of the volume, as far as they are known;
    none if the bridge provisions no volumes."""
    policy, storage, found = facts.policy, facts.storage, {}
    if policy is None or policy.storage != "provision":
        return {}
    for volume, name in claim_names(facts.pod).items():
        home = storage.claims.get(name)
        behind = storage.volumes.get(bound_volume(home or {}))
        handle = pvc_resolution.used_handle(home, behind, policy, name=name)
        if not isinstance(handle, Unresolved):
            found[volume] = handle.name
    return found


def _provisioned_claim(name: str, facts: PodFacts, policy: Policy) -> str:
    """The remote PVC that the pod mounts for home's, or why it waits."""
    if name not in facts.storage.claims:
        return ""
    home = facts.storage.claims[name]
    if home is None:
        return "nothing: home has no such claim"
    volume = facts.storage.volumes.get(bound_volume(home))
    handle = pvc_resolution.used_handle(home, volume, policy, name=name)
    if not isinstance(handle, Unresolved):
        return f"the claim {handle.namespace}/{handle.name}{_claim_state(handle.name, facts)}"
    found = facts.storage.classes.get(class_name(home))
    if not bound_volume(home) and found is not None and storage_class.is_served(found):
        return "a new volume in the remote, once a node is selected"
    return f"nothing: {handle.message}"


def _claim_state(name: str, facts: PodFacts) -> str:
    """Phase, capacity and class of a remote PVC, as the end of a sentence."""
    if facts.remote is None or name not in facts.remote.claims:
        return ", with its data"
    claim = facts.remote.claims[name]
    if claim is None:
        return ", which is missing in the remote"
    phase = str((claim.get("status") or {}).get("phase") or "Pending")
    parts = [phase, remote_pvc.capacity(claim), class_name(claim)]
    return f" with its data: {', '.join(filter(None, parts))}"


def missing_message(it: Object) -> str:
    """Why the pod waits for a dependency; "" if it does not."""
    if not it["required"]:
        return ""
    where = it["neededIn"]
    if it[where] == "missing":
        # Copies and tokens are created from objects of home.
        cluster = "at home" if where == "home" else "in the remote"
        return f"{it['kind']} {it['name']} is missing {cluster}"
    if it["missingKeys"]:
        return f"{it['kind']} {it['name']} lacks the key {', '.join(it['missingKeys'])}"
    return ""


def describe_services(facts: PodFacts) -> list[Object]:
    """The Services of the namespace that remote pods can resolve by name."""
    return [
        {
            "name": name_of(it),
            "copied": service.is_copied(it),
            "remote": "found" if facts.remote and name_of(it) in facts.remote.services else "-",
        }
        for it in sorted(facts.services, key=name_of)
    ]
