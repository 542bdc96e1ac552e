"""Checks that the credentials have the permissions of `bridge.rbac.permissions`."""

from __future__ import annotations

from bridge.checks.check_input import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, ok
from bridge.rbac import permissions
from sync.kube.api_errors import Side

#: The most permissions that a finding names.
MAX_NAMED = 6


async def permissions_at_home(context: CheckContext) -> list[Finding]:
    """BRG201."""
    required = permissions.required_at_home(context.settings)
    missing = await permissions.missing_permissions(context.home_client, required, context.name)
    return [_finding("BRG201", "home", missing, context)]


async def permissions_in_remote(context: CheckContext) -> list[Finding]:
    """BRG202."""
    required = permissions.REMOTE
    missing = await permissions.missing_permissions(context.remote_client, required, context.name)
    return [_finding("BRG202", "remote", missing, context)]


def _finding(check_id: str, side: Side, missing: list[str], context: CheckContext) -> Finding:
    if not missing:
        return ok(check_id, side, "all required permissions are granted")
    more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    text = f"the credential may not {', '.join(missing[:MAX_NAMED])}{more}"
    command = permissions.rbac_command(side, context.settings)
    hint = f"`{command}` prints what to apply there; or use another credential"
    if context.node is None:
        return error(check_id, side, text, hint)
    # The credential of a person who runs `bridge check` seldom has all of the bridge's permissions.
    return info(check_id, side, f"{text}; the bridge's own credential may have that", hint)


async def namespaces(context: CheckContext) -> list[Finding]:
    """BRG203."""
    settings = context.settings
    required = permissions.for_home_namespaces(
        network=settings.network, service_accounts=settings.service_accounts
    )
    if await permissions.are_granted(context.home_client, required):
        return [ok("BRG203", "home", "pods of all namespaces may run")]
    text = "access is granted per namespace; `bridge rbac namespace NAME` prints what admits one"
    return [info("BRG203", "home", text)]


IMPLEMENTATIONS = (
    Implementation("BRG201", permissions_at_home, ("home",)),
    Implementation("BRG202", permissions_in_remote, ("remote",)),
    Implementation("BRG203", namespaces, ("home",)),
)
