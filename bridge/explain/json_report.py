"""Builds the report on a pod as JSON data. Pure.

`build_report` returns the complete report, which `-o json` prints: its field names are an
interface. `bridge.explain.text_report` formats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from bridge.explain import dependency_report
from bridge.explain.candidate_ranking import Candidate
from bridge.explain.cluster_lookup import PodFacts, RemoteFacts
from bridge.node.join_record import policy_options
from sync.pods import action_planner
from translators import pod_security
from translators.explain import differences, persistent_volume_claims
from translators.explain.differences import Difference
from translators.field_paths import FieldMessage
from translators.handed_over_namespaces import (
    is_usable_namespace,
    unprepared_namespace_message,
    unusable_namespace_message,
)
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_daemonset_pod,
    is_deleting,
    is_ready,
    metadata,
    name_of,
    namespace_of,
    namespaced_name,
)
from translators.offload_admission_patch import offloading_of, selector_text
from translators.ownership_labels import is_owned, is_owned_by_node
from translators.pod_security import Limit
from translators.pods import kubelet_admission, pod_status, remote_pod
from translators.pods.home_scheduler_filters import PredicateFailure
from translators.pods.remote_pod import TranslatedPod
from translators.storage import pvc_resolution
from translators.translation_options import Policy

#: The number of latest Events in the report.
MAX_EVENTS = 8


def translated_pod(facts: PodFacts) -> TranslatedPod | None:
    """The remote pod that the bridge would create; None without a virtual node."""
    if facts.policy is None:
        return None
    if facts.remote is not None:
        known = facts.remote.priority_classes
    else:  # Assumed to have the pod's class, as `_not_checked` reports.
        name = (facts.pod.get("spec") or {}).get("priorityClassName")
        known = frozenset({name} if name else ())
    translated = remote_pod.translate_pod(facts.pod, facts.policy, priority_classes=known)
    claims = dependency_report.remote_claims(facts)
    return replace(translated, pod=pvc_resolution.replace_claims(translated.pod, claims))


def build_report(facts: PodFacts) -> Object:
    """The report."""
    chosen, translated = facts.chosen, translated_pod(facts)
    references = [dependency_report.describe_dependency(it, facts) for it in facts.dependencies]
    answer: Object = {
        "pod": {
            "namespace": namespace_of(facts.pod),
            "name": name_of(facts.pod),
            "stored": facts.stored,
            "node": facts.bound_to or None,
            "phase": pod_status.phase(facts.pod) if facts.stored else None,
        },
        "node": None,
        "remote": None,
        "placement": _placement(facts),
        "decidedBy": _decided_by(facts),
        "nodes": [_candidate(it) for it in facts.candidates],
        "podSecurity": _pod_security(facts) or None,
        "refusals": _refusals(facts),
        "differences": [],
        "notCarried": [],
        "references": references,
        "services": dependency_report.describe_services(facts),
        "waiting": list(_waiting(facts, references)),
        "conditions": [
            *_conditions("home", facts.pod),
            *_conditions("remote", facts.remote_pod or {}),
        ],
        "events": _events(facts),
        "notLookedAt": _not_checked(facts),
    }
    if chosen is not None and translated is not None:
        answer["node"] = {
            "name": chosen.name,
            "others": [it.name for it in facts.candidates if it is not chosen],
            "tellsOptions": chosen.options_recorded,
            "options": policy_options(chosen.policy),
        }
        answer["remote"] = _remote(facts, translated)
        answer["differences"] = [
            _difference(it)
            for it in differences.find_differences(facts.pod, translated.pod, translated.dropped)
        ]
        answer["notCarried"] = [_obstacle(it) for it in translated.dropped]
    state, summary = _summary(facts, answer)
    return {"state": state, "summary": summary, **answer}


def _remote(facts: PodFacts, made: TranslatedPod) -> Object:
    there = facts.remote
    answer: Object = {"namespace": namespace_of(made.pod), "name": name_of(made.pod)}
    if there is not None:
        remote = there.pod
        answer |= {
            "server": there.server,
            "namespaceExists": there.namespace is not None,
            "podExists": remote is not None,
            "phase": pod_status.phase(remote) if remote is not None else None,
            "node": (remote.get("spec") or {}).get("nodeName") if remote is not None else None,
        }
    return answer


def _not_checked(facts: PodFacts) -> list[str]:
    notes = list(dict.fromkeys(facts.not_checked))
    if facts.chosen is not None and not facts.chosen.options_recorded:
        notes.append(
            f"the join options of node {facts.chosen.name}: the Node does not record them "
            "(an older bridge registered it); the defaults of join are assumed"
        )
    if facts.remote is None and facts.node is not None:
        notes.append("whether the remote has the priority class; assumed to exist")
    return notes


# -- placement -----------------------------------------------------------------------------


def _decided_by(facts: PodFacts) -> str:
    """The component that decides on which node the pod runs, or has decided that."""
    if is_daemonset_pod(facts.pod):
        return "its DaemonSet, which selects the node"
    offload = _offload_text(facts)
    return f"home's scheduler{f' and offloading: {offload}' if offload else ''}"


def _offload_text(facts: PodFacts) -> str:
    """How the pod is offloaded; "" if it is not."""
    offloading = offloading_of(facts.namespace or {})
    if offloading is None or not offloading.selects(facts.pod):
        return ""
    nodes = selector_text(offloading.nodes)
    to = f" to nodes with {nodes}" if nodes and offloading.policy != "local-only" else ""
    tiers = " before ".join(map(selector_text, offloading.tiers))
    order = f", {tiers} preferred" if tiers else ""
    name = name_of(facts.namespace or {})
    return f"namespace {name} is offloaded {offloading.policy}{to}{order} (bridge offload)"


def _placement(facts: PodFacts) -> Object:
    """Whether home's scheduler would bind the pod to the node, or why not."""
    bound, chosen = facts.bound_to, facts.chosen
    if chosen is None:
        return {"possible": False, "bound": False, "obstacles": []}
    if bound == chosen.name:
        return {"possible": True, "bound": True, "obstacles": []}
    found = [_obstacle(it) for it in chosen.failures]
    if bound:
        found.insert(0, {"field": "spec.nodeName", "why": f"the pod is on {bound}, a node of home"})
    return {"possible": not found, "bound": False, "obstacles": found}


def _candidate(it: Candidate) -> Object:
    return {
        "name": it.name,
        "possible": not it.failures and not it.skipped,
        "obstacles": [_obstacle(each) for each in it.failures],
    }


def _obstacle(it: PredicateFailure | FieldMessage) -> Object:
    return {"field": it.field, "why": it.message}


def _refusals(facts: PodFacts) -> list[Object]:
    """Why the bridge or the remote would reject the pod."""
    policy, there = facts.policy, facts.remote
    found = [{"by": "bridge", **_obstacle(it)} for it in remote_pod.rejections(facts.pod)]
    if policy is None:
        return found
    if skipped := action_planner.skip_reason(facts.pod, policy):
        why = f"{skipped}; its DaemonSet counts it as available"
        found.append({"by": "bridge", "field": "metadata.ownerReferences", "why": why})
    if there is None:
        return found
    found += [{"by": "bridge", **it} for it in _conflicts(facts.pod, policy, there)]
    # For a pod that is not bound, `_placement` reports excessive requests.
    allocatable = kubelet_admission.total_allocatable(there.nodes or ())
    rejection = kubelet_admission.admission_rejection(facts.pod, allocatable)
    if facts.is_bound and rejection:
        found.append({"by": "bridge", "field": "resources.requests", "why": rejection[1]})
    if there.rejection:
        why = there.rejection
        if pod_security.is_violation(why) and (level := _pod_security(facts)):
            why += f"; {level}"
        found.append({"by": "remote", "field": "", "why": why})
    return found


def _pod_security(facts: PodFacts) -> str:
    """The Pod Security level of the remote namespace, and what decides it; "" if unknown."""
    policy, home = facts.policy, facts.namespace
    if policy is None or home is None or facts.remote is None:
        return ""
    identity, existing = policy.identity, facts.remote.namespace
    if existing is not None and not is_owned(existing, identity):
        return pod_security.explain_handed_over(existing)
    name = identity.remote_namespace(HomeNamespace(name_of(home)))
    return pod_security.explain_level(
        existing or {"metadata": {"name": name}},
        name_of(home),
        metadata(home).get("labels") or {},
        Limit(identity.node_label, policy.pod_security),
    )


def _conflicts(pod: Object, policy: Policy, there: RemoteFacts) -> Iterator[Object]:
    identity = policy.identity
    mapped = identity.remote_namespace(HomeNamespace(namespace_of(pod)))
    if policy.remote_namespaces and mapped not in policy.remote_namespaces:
        yield {"field": "metadata.namespace", "why": unprepared_namespace_message(mapped)}
    elif there.namespace is not None and not is_usable_namespace(there.namespace, identity):
        yield {
            "field": "metadata.namespace",
            "why": unusable_namespace_message(there.namespace, identity),
        }
    if there.pod is not None and not is_owned_by_node(there.pod, identity):
        yield {
            "field": "metadata.name",
            "why": f"the remote has an unmanaged pod {namespaced_name(there.pod)}; this pod waits "
            "until that one is deleted",
        }


# -- translation ---------------------------------------------------------------------------


def _difference(it: Difference) -> Object:
    return {
        "path": it.location,
        "change": it.change,
        "before": it.before,
        "after": it.after,
        "rule": it.rule,
        "why": it.reason,
        "notCarried": it.unsupported,
    }


# -- state ---------------------------------------------------------------------------------


def _waiting(facts: PodFacts, wanted: Iterable[Object]) -> Iterator[Object]:
    """Known reasons why the pod does not run, the most direct one first."""
    for it in wanted:
        if missing := dependency_report.missing_message(it):
            yield {"side": "home" if it["neededIn"] == "home" else "remote", "why": missing}
    if not facts.bound_to:
        yield from (
            {"side": "home", "why": it}
            for it in persistent_volume_claims.unbound_claims(facts.pod, facts.storage)
        )
    if not facts.stored:
        return
    for side, obj in (("home", facts.pod), ("remote", facts.remote_pod or {})):
        for condition in (obj.get("status") or {}).get("conditions") or ():
            kind, reason = condition.get("type"), condition.get("reason")
            is_relevant = kind in (
                "PodScheduled",
                pod_status.CONDITION_ACCEPTED,
                pod_status.CONDITION_REMOTE_SCHEDULED,
            )
            if is_relevant and condition.get("status") == "False":
                yield {
                    "side": side,
                    "why": f"{reason}: {condition.get('message') or ''}".strip(": "),
                }
        yield from _containers(side, obj)

    is_missing = facts.remote is not None and facts.remote_pod is None
    if facts.is_bound and is_missing and not pod_status.is_terminal(facts.pod):
        yield {"side": "remote", "why": "the bridge has not created the pod"}


def _containers(side: str, obj: Object) -> Iterator[Object]:
    status = obj.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or ():
            waiting = (container.get("state") or {}).get("waiting")
            if waiting:
                message = f"{waiting.get('reason')}: {waiting.get('message') or ''}".strip(": ")
                yield {"side": side, "why": f"container {container.get('name')}: {message}"}


def _conditions(side: str, obj: Object) -> list[Object]:
    """All conditions of one pod."""
    keys = ("type", "status", "reason", "message")
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return [{"side": side, **{key: it.get(key) for key in keys}} for it in conditions]


def _events(facts: PodFacts) -> list[Object]:
    """The latest Events of both clusters."""
    there = facts.remote.events if facts.remote is not None else []
    events = [("remote", it) for it in there] + [("home", it) for it in facts.events]
    return event_rows(events)[-MAX_EVENTS:]


def event_rows(events: Iterable[tuple[str, Object]]) -> list[Object]:
    """Events with their side, the oldest first. Events that the bridge mirrored to home appear
    once, if those of the remote come first."""
    found, seen = [], set()
    for side, event in events:
        content = (event.get("reason"), event.get("message"))
        if content in seen:
            continue
        seen.add(content)
        found.append(
            {
                "side": side,
                "type": event.get("type"),
                "reason": event.get("reason"),
                "message": str(event.get("message") or "").strip(),
                "last": event.get("lastTimestamp")
                or event.get("eventTime")
                or metadata(event).get("creationTimestamp"),
                "count": event.get("count") or 1,
            }
        )
    return sorted(found, key=lambda it: str(it["last"]))


def _summary(facts: PodFacts, answer: Object) -> tuple[str, str]:
    """The state as one word, and a sentence."""
    subject, node = f"pod {namespaced_name(facts.pod)}", name_of(facts.node or {})
    placement, waiting = answer["placement"], answer["waiting"]
    if facts.node is None:
        return "NoNode", f"{subject}: home has no virtual node"
    if facts.stored and pod_status.is_terminal(facts.pod):
        return "Ended", f"{subject} has ended: {pod_status.phase(facts.pod)}"
    as_what = f"as {answer['remote']['namespace']}/{answer['remote']['name']}"
    bound = facts.bound_to
    if bound and bound != node:
        return "Elsewhere", f"{subject} is on {bound}, a node of home, and not on {node}"
    if answer["refusals"]:
        first = answer["refusals"][0]
        why = f"{first['field']}: {first['why']}" if first["field"] else first["why"]
        return "Refused", f"{subject} does not run on node {node}: {why}"
    if not placement["possible"]:
        first = placement["obstacles"][0]
        return (
            "NotPlaced",
            f"{subject} cannot be scheduled to node {node}: {first['field']}: {first['why']}",
        )
    if is_deleting(facts.pod):
        return "Ending", f"{subject} is being deleted"
    if is_ready(facts.pod):
        return "Running", f"{subject} runs on node {node}, in the remote {as_what}"
    if bound:
        why = f": {waiting[0]['why']}" if waiting else ""
        return (
            "Waiting",
            f"{subject} is on node {node}, in the remote {as_what}, but not Ready{why}",
        )
    if waiting:
        first = waiting[0]["why"]
        return "WouldWait", f"{subject} would run on node {node} {as_what}, but wait: {first}"
    return "WouldRun", f"{subject} can run on node {node}, in the remote {as_what}"
