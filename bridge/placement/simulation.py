"""Answers where the pods of a manifest would be placed now. Changes nothing.

Pods are decided one after the other, in the order of the manifest, each with the room that the
previous ones leave. Workloads count with their replicas (a Job with its parallelism).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bridge.base.command_output import format_table
from bridge.placement.cluster_snapshot import Snapshot
from translators.object_accessors import Object, metadata, name_of, namespace_of
from translators.placement import placed_pod
from translators.placement.decision import HOME, Decision

#: The kinds with a pod template, by the field with the number of pods.
_WORKLOADS = {
    "Deployment": "replicas",
    "StatefulSet": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "Job": "parallelism",
}
#: The most pods of one workload that are decided.
MAX_PODS = 1000


@dataclass(slots=True)
class WorkloadResult:
    """Where the pods of one object of the manifest go."""

    kind: str
    name: str
    namespace: str
    pods: int
    policy: str = ""
    """"" if no policy is for the pods: home's scheduler decides."""
    places: Counter[str] = field(default_factory=Counter)
    """Pods by candidate; "" for those that would wait."""
    first: Decision | None = None
    last: Decision | None = None
    """The decision for the last pod, which met the least room."""


def simulate(snapshot: Snapshot, objects: Iterable[Object], namespace: str) -> list[WorkloadResult]:
    """The result for each pod and workload; ``namespace`` is for objects that name none."""
    results = []
    for number, obj in enumerate(_flattened(objects)):
        pods = list(_pods(obj, namespace, number))
        if not pods:
            continue
        where = namespace_of(obj) or namespace
        result = WorkloadResult(str(obj["kind"]), name_of(obj), where, len(pods))
        for pod in pods:
            policy = snapshot.policy_for(pod)
            if policy is None:
                break
            decision = snapshot.decide(pod, policy)
            result.policy = policy.name
            result.places[decision.choice or ""] += 1
            result.first, result.last = result.first or decision, decision
            if decision.choice is not None:
                # As the placer reserves it.
                placed = placed_pod.placed(placed_pod.gated(pod), decision)
                snapshot.state.pod_changed(None, placed)
        results.append(result)
    return results


def as_json(snapshot: Snapshot, results: list[WorkloadResult]) -> Object:
    """The command's JSON output."""
    return {
        "workloads": [
            {
                "kind": it.kind,
                "namespace": it.namespace,
                "name": it.name,
                "pods": it.pods,
                "policy": it.policy or None,
                "placed": {shown(place): count for place, count in it.places.items() if place},
                "waiting": it.places.get("", 0),
                "candidates": [
                    {
                        "candidate": shown(verdict.candidate),
                        "tier": verdict.tier or None,
                        "outcome": verdict.outcome,
                        "reason": verdict.reason,
                    }
                    for verdict in (it.last.verdicts if it.last else ())
                ],
            }
            for it in results
        ],
        "notChecked": snapshot.not_checked,
    }


def as_text(answer: Object) -> str:
    """The output for people: a line for each workload, then the candidates of each."""
    rows = [
        [
            f"{it['kind'].lower()}/{it['name']}",
            it["policy"] or "none",
            str(it["pods"]),
            ", ".join(f"{place}: {count}" for place, count in it["placed"].items()) or "-",
            str(it["waiting"]),
        ]
        for it in answer["workloads"]
    ]
    lines = [format_table(["workload", "policy", "pods", "placed", "waiting"], rows)]
    for it in answer["workloads"]:
        if it["policy"] is None:
            lines.append(f"\n{it['name']}: no PlacementPolicy is for it; home's scheduler decides")
            continue
        which = "its last pod" if it["pods"] > 1 else "its pod"
        lines.append(f"\n{it['name']}, candidates for {which}:")
        lines.append(
            format_table(
                ["candidate", "tier", "outcome", "reason"],
                [
                    [c["candidate"], c["tier"] or "-", c["outcome"], c["reason"]]
                    for c in it["candidates"]
                ],
            )
        )
    lines += [f"\nnot checked: {it}" for it in answer["notChecked"]]
    return "\n".join(lines)


def shown(candidate: str) -> str:
    """The name of a candidate for people."""
    return "home" if candidate == HOME else candidate


def _flattened(objects: Iterable[Object]) -> Iterator[Object]:
    for obj in objects:
        if str(obj.get("kind", "")).endswith("List") and isinstance(obj.get("items"), list):
            yield from _flattened(it for it in obj["items"] if isinstance(it, dict))
        else:
            yield obj


def _pods(obj: Object, namespace: str, number: int) -> Iterator[Object]:
    """The pods that the object stands for, with UIDs of the simulation."""
    kind, spec = obj.get("kind"), obj.get("spec") or {}
    where, name = namespace_of(obj) or namespace, name_of(obj)
    if kind == "Pod":
        yield {**obj, "metadata": {**metadata(obj), "namespace": where, "uid": f"{number}"}}
        return
    if kind == "CronJob":
        spec = ((spec.get("jobTemplate") or {}).get("spec")) or {}
    elif kind not in _WORKLOADS:
        return
    count = spec.get(_WORKLOADS.get(str(kind), "parallelism"), 1)
    template = spec.get("template") or {}
    owner = {"kind": kind, "name": name, "uid": f"simulated-{number}", "controller": True}
    for index in range(min(count if isinstance(count, int) else 1, MAX_PODS)):
        meta = {
            **metadata(template),
            "name": f"{name}-{index}",
            "namespace": where,
            "uid": f"simulated-{number}-{index}",
            "ownerReferences": [owner],
        }
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.get("spec")}
