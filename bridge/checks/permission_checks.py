"""Checks that the credentials have the permissions of `bridge.rbac.permissions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, ok
from bridge.node import join_record
from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from sync.kube.client import KubeClient

#: The most permissions that a finding names.
MAX_NAMED = 6


async def check_home_permissions(context: CheckContext) -> list[Finding]:
    """BRG201."""
    required = permissions.required_at_home(context.settings, context.home_identity)
    return [await _check_permissions("BRG201", context.home_client, required, context)]


async def check_remote_permissions(context: CheckContext) -> list[Finding]:
    """BRG202."""
    required = permissions.required_in_remote(context.settings)
    return [await _check_permissions("BRG202", context.remote_client, required, context)]


async def _check_permissions(
    check_id: str, client: KubeClient, required: Sequence[Permission], context: CheckContext
) -> Finding:
    side = client.side
    missing = await permissions.missing_permissions(client, required, context.name)
    if not missing:
        return ok(check_id, side, "all required permissions are granted")
    text = f"the credential may not {summarize_names(missing, MAX_NAMED)}"
    command = permissions.rbac_command(side, replace(context.settings, name=context.name))
    hint = f"`{command}` prints what to apply there; or use another credential"
    if context.node is None:
        return error(check_id, side, text, hint)
    # The credential of a person who runs `bridge check` seldom has all of the bridge's permissions.
    return info(check_id, side, f"{text}; the bridge's own credential may have that", hint)


async def check_namespace_permissions(context: CheckContext) -> list[Finding]:
    """BRG203."""
    settings = context.settings
    required = permissions.for_home_namespaces(
        identity=context.home_identity,
        network=settings.network,
        service_accounts=settings.service_accounts,
        storage=settings.storage,
    )
    if await permissions.are_granted(context.home_client, required):
        return [ok("BRG203", "home", "pods of all namespaces may run")]
    text = "access is granted per namespace; `bridge rbac namespace NAME` prints what admits one"
    return [info("BRG203", "home", text)]


async def check_home_identity(context: CheckContext) -> list[Finding]:
    """BRG206."""
    identity = join_record.home_identity(context.existing_node)
    if identity == "node":
        text = f"the bridge is system:node:{context.name}, which may act only on this node"
        return [ok("BRG206", "home", text)]
    text = "the bridge acts as its own account, whose permissions RBAC cannot limit to the node"
    return [info("BRG206", "home", text)]


IMPLEMENTATIONS = (
    Implementation("BRG201", check_home_permissions, ("home",)),
    Implementation("BRG202", check_remote_permissions, ("remote",)),
    Implementation("BRG203", check_namespace_permissions, ("home",)),
    Implementation("BRG206", check_home_identity, ("home", "node")),
)
