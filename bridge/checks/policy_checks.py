"""Checks which admission policies of `bridge rbac` are in force (BRG204, BRG205).

A policy is in force if a binding of it denies. The account of the running bridge is not visible
here, so the findings name the policies.
"""

from __future__ import annotations

import json
from dataclasses import replace

from bridge.base.recommended_labels import APP, NAME_LABEL
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, info, not_checked, ok, warning
from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from bridge.rbac.remote_policy import RESERVATION
from sync.kube.api_errors import NotFound, Side
from sync.kube.api_resources import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of

_SELECTOR = f"{NAME_LABEL}={APP}"


async def check_home_policy(context: CheckContext) -> list[Finding]:
    """BRG204."""
    command = permissions.rbac_command("home", replace(context.settings, name=context.name))
    hint = f"`{command}` prints one"
    policies = await _policies(context.home_client)
    if policies is None:
        return [info("BRG204", "home", "the API server serves no ValidatingAdmissionPolicy")]
    confined = [it for it in policies if context.name in _nodes(it)]
    if not confined:
        text = f"no admission policy confines an account to node {context.name}"
        return [info("BRG204", "home", text, hint)]
    return [_describe("BRG204", "home", confined, f"confines the account of node {context.name}")]


async def check_remote_policies(context: CheckContext) -> list[Finding]:
    """BRG205."""
    hint = "`bridge rbac remote --policy` prints them"
    reading = [
        Permission(it, ("list",)) for it in (VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS)
    ]
    if not await permissions.are_granted(context.remote_client, reading):
        text = "the credential may not list validatingadmissionpolicies in the remote"
        return [not_checked("BRG205", "remote", text)]
    policies = await _policies(context.remote_client)
    if policies is None:
        return [info("BRG205", "remote", "the API server serves no ValidatingAdmissionPolicy")]
    reserved = [it for it in policies if name_of(it) == RESERVATION]
    confined = [it for it in policies if name_of(it).endswith(".remote")]
    found = [
        _describe("BRG205", "remote", reserved, "reserves the bridge's labels and annotations")
        if reserved
        else info("BRG205", "remote", "every user can set the bridge's labels", hint)
    ]
    if confined:
        found.append(_describe("BRG205", "remote", confined, "confines the bridge's account"))
    else:
        text = "no admission policy confines the bridge's account to its own objects"
        found.append(info("BRG205", "remote", text, hint))
    return found


async def _policies(client: KubeClient) -> list[Object] | None:
    """The bridge's policies that have a binding which denies; None if the API server has none of
    that API. Raises KubeError."""
    try:
        bindings = (await client.list(VALIDATING_POLICY_BINDINGS, labels=_SELECTOR)).items
        policies = (await client.list(VALIDATING_POLICIES, labels=_SELECTOR)).items
    except NotFound:
        return None
    bound = {
        str(spec.get("policyName"))
        for spec in (it.get("spec") or {} for it in bindings)
        if "Deny" in (spec.get("validationActions") or ())
    }
    return [it for it in policies if name_of(it) in bound]


def _nodes(policy: Object) -> list[str]:
    """The virtual nodes to which a policy confines its account (`bridge.rbac.home_policy`)."""
    variables = (policy.get("spec") or {}).get("variables") or ()
    texts = [str(it.get("expression")) for it in variables if it.get("name") == "nodes"]
    try:
        return [str(it) for text in texts for it in json.loads(text)]
    except ValueError:
        return []


def _describe(check_id: str, side: Side, policies: list[Object], what: str) -> Finding:
    names = ", ".join(name_of(it) for it in policies)
    broken = [name_of(it) for it in policies if _type_warnings(it)]
    if broken:
        text = f"the API server reports errors in the policy {', '.join(broken)}"
        return warning(check_id, side, text)
    return ok(check_id, side, f"{names} {what}")


def _type_warnings(policy: Object) -> bool:
    checked = (policy.get("status") or {}).get("typeChecking") or {}
    return bool(checked.get("expressionWarnings"))


IMPLEMENTATIONS = (
    Implementation("BRG204", check_home_policy, ("home",)),
    Implementation("BRG205", check_remote_policies, ("remote",)),
)
