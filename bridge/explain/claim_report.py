"""Builds the report on a PVC as JSON data, and formats it. Pure.

`-o json` prints the result of `build_claim_report`: its field names are an interface.
"""

from __future__ import annotations

from bridge.base.command_output import format_table
from bridge.base.printable_text import escape_line
from bridge.explain.claim_lookup import ClaimFacts
from bridge.explain.json_report import MAX_EVENTS, event_rows
from translators.explain.claim_steps import ClaimStep, claim_step
from translators.object_accessors import Object, name_of, namespace_of
from translators.storage import remote_pvc
from translators.storage.identifiers import (
    bound_volume,
    class_name,
    is_unfinished,
    selected_node,
)

#: Reasons of Events at home that state why a PVC is not provisioned.
_FAILURE = "ProvisioningFailed"


def build_claim_report(facts: ClaimFacts) -> Object:
    """The report."""
    home = facts.objects.home
    step = ClaimStep("NoNode", why="home has no virtual node; `bridge join` creates one")
    if facts.policy is not None:
        step = claim_step(facts.objects, facts.policy)
    events = event_rows(facts.events)[-MAX_EVENTS:]
    failures = [it["message"] for it in events if it["reason"] == _FAILURE and it["message"]]
    is_pending = not bound_volume(home) and step.state != "NoNode"
    return {
        "state": step.state,
        "summary": _summary(facts, step),
        "claim": {
            "namespace": namespace_of(home),
            "name": name_of(home),
            **_described(home),
            "selectedNode": selected_node(home) or None,
            "volume": bound_volume(home) or None,
        },
        "node": name_of(facts.node) if facts.node is not None else None,
        "remote": _remote(facts),
        "waitsFor": step.waits_for or None,
        "why": step.why or None,
        "lastFailure": failures[-1] if failures and is_pending else None,
        "pods": facts.pods,
        "events": events,
        "notLookedAt": list(dict.fromkeys(facts.not_checked)),
    }


def render_claim_report(report: Object) -> str:
    """The report as text."""
    claim, remote = report["claim"], report["remote"]
    parts = [escape_line(report["summary"])]
    if report["waitsFor"] or report["why"]:
        who = [f"it waits for {report['waitsFor']}"] if report["waitsFor"] else []
        why = [report["why"]] if report["why"] else []
        parts.append(_section("next step", [*who, *why]))
    if report["lastFailure"]:
        parts.append(_section("last failure", [report["lastFailure"]]))
    rows = [["home", f"{claim['namespace']}/{claim['name']}", *_cells(claim)]]
    if remote is not None:
        rows.append(["remote", f"{remote['namespace']}/{remote['name']}", *_cells(remote)])
    headers = ("side", "claim", "phase", "class", "requested", "capacity")
    parts.append(_section("data", format_table(headers, rows).splitlines()))
    parts.append(_section("pods", report["pods"]))
    heads = ("last", "side", "type", "reason", "message")
    events = [[str(it[head] or "") for head in heads] for it in report["events"]]
    if events:
        parts.append(_section("Events", format_table(heads, events).splitlines()))
    parts.append(_section("not examined", report["notLookedAt"]))
    return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {escape_line(line)}" for line in lines)]) if lines else ""


def _cells(claim: Object) -> list[str]:
    keys = ("phase", "storageClass", "requested", "capacity")
    return [str(claim.get(key) or "-") for key in keys]


def _described(claim: Object) -> Object:
    return {
        "phase": str((claim.get("status") or {}).get("phase") or "Pending"),
        "storageClass": class_name(claim) or None,
        "requested": remote_pvc.requested(claim),
        "capacity": remote_pvc.capacity(claim) or None,
    }


def _remote(facts: ClaimFacts) -> Object | None:
    """The remote PVC; None if no PVC of the node's remote belongs to the home PVC."""
    handle, remote = facts.handle, facts.objects.remote
    if handle is None:
        return None
    known = facts.objects.is_remote_known
    missing: Object = {"phase": "missing" if known else "unknown"}
    return {
        "namespace": handle.namespace,
        "name": handle.name,
        "server": facts.server or None,
        "exists": remote is not None if known else None,
        "finished": not is_unfinished(remote) if remote is not None else None,
        **(_described(remote) if remote is not None else missing),
    }


def _summary(facts: ClaimFacts, step: ClaimStep) -> str:
    home, handle = facts.objects.home, facts.handle
    claim = f"PersistentVolumeClaim {namespace_of(home)}/{name_of(home)}"
    if step.state in ("Bound", "Existing", "Expanding") and handle is not None:
        return f"{claim} has its data in the remote, in the claim {handle.namespace}/{handle.name}"
    if step.state == "Missing":
        return f"{claim} has lost its data in the remote: {step.why}"
    if step.state == "Elsewhere" and bound_volume(home):
        return f"{claim} has its data elsewhere: {step.why}"
    if step.waits_for:
        return f"{claim} is not ready: it waits for {step.waits_for}"
    return f"{claim}: {step.why or step.state}"
