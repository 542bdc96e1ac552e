"""What a pod names, as part of the answer of `bridge.explain.json_report`. Pure."""

from __future__ import annotations

from bridge.explain.cluster_lookup import PodFacts
from translators.explain.dependencies import Dependency
from translators.identity import is_owned
from translators.mirror import service
from translators.objects import HomeNamespace, Object, name_of, namespace_of


def describe_dependency(it: Dependency, facts: PodFacts) -> Object:
    """An object that the pod names: whether both sides have it, and what becomes of it."""
    key = (it.kind, it.name)
    home = _presence(facts.objects, key)
    keys = []
    if (found := facts.objects.get(key)) is not None:
        keys = sorted(it.keys - (found.get("data") or {}).keys())
    remote = _presence(facts.remote.objects, key) if facts.remote is not None else "unknown"
    becomes, needed_in = _becomes(it, facts)
    if it.kind == "PriorityClass" and facts.remote is not None:
        remote = "found" if it.name in facts.remote.priority_classes else "missing"
    return {
        "kind": it.kind,
        "name": it.name,
        "required": it.required,
        "home": home if needed_in == "home" or home != "unknown" else "-",
        "missingKeys": keys,
        "remote": remote if needed_in != "home" else _copy(it, facts),
        "neededIn": needed_in,
        "becomes": becomes,
    }


def _copy(it: Dependency, facts: PodFacts) -> str:
    """Whether the remote has the copy; "-" where none is due (yet), or the remote was not asked."""
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


def _becomes(it: Dependency, facts: PodFacts) -> tuple[str, str]:
    """What stands for it in the remote, and where it has to exist."""
    policy = facts.policy
    if policy is None:
        return "", "home"
    namespace = policy.identity.remote_namespace(HomeNamespace(namespace_of(facts.pod)))
    match it.kind:
        case "ConfigMap" | "Secret":
            return f"a copy, {namespace}/{it.name}", "home"
        case "ServiceAccount" if policy.service_accounts == "home":
            return f"its tokens, in a Secret of {namespace}", "home"
        case "ServiceAccount" if policy.service_accounts == "remote":
            return f"the account {namespace}/{it.name} that is there", "remote"
        case "ServiceAccount":
            return "nothing: pods have no identity there", "home"
        case "PersistentVolumeClaim":
            return f"the claim {namespace}/{it.name} that is there", "remote"
        case _:
            return "the class of that name that is there", "remote"


def missing_message(it: Object) -> str:
    """Why the pod waits for something that it names; "" where it does not."""
    if not it["required"]:
        return ""
    where = it["neededIn"]
    if it[where] == "missing":
        # Copies and tokens are made of what home has.
        return f"{it['kind']} {it['name']} is missing {'at home' if where == 'home' else 'there'}"
    if it["missingKeys"]:
        return f"{it['kind']} {it['name']} lacks the key {', '.join(it['missingKeys'])}"
    return ""


def describe_services(facts: PodFacts) -> list[Object]:
    """Those that pods of the namespace find in the remote by name."""
    return [
        {
            "name": name_of(it),
            "copied": service.is_copied(it),
            "remote": "found" if facts.remote and name_of(it) in facts.remote.services else "-",
        }
        for it in sorted(facts.services, key=name_of)
    ]
