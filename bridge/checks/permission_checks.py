"""Checks that the credentials have the permissions of `bridge.rbac.permissions`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bridge.base.printable_text import summarize_names
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, ok, warning
from bridge.install import installation
from bridge.node import join_record, node_object
from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from sync.kube.client import KubeClient
from translators.object_accessors import metadata

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
    node = context.existing_node
    annotations = metadata(node).get("annotations") or {}
    namespace = annotations.get(node_object.ANNOTATION_INSTALLATION)
    if join_record.home_identity(node) == "node":
        text = f"the bridge is system:node:{context.name}, which may act only on this node"
        if namespace:
            secret = f"{namespace}/{installation.state_secret_name(context.name)}"
            text += f"; its replicas share the certificate in Secret {secret}"
        return [ok("BRG206", "home", text)]
    text = "the bridge acts as its own account, whose permissions RBAC cannot limit to the node"
    command = f"`bridge upgrade {context.name} --home-identity node`, as an administrator of home"
    return [info("BRG206", "home", text, f"{command}, makes it the node" if namespace else "")]


async def check_node_restriction(context: CheckContext) -> list[Finding]:
    """BRG207. Without a finding unless the bridge is the node, and a join determined the answer: a
    person who runs `bridge check` is not the node, and cannot determine it."""
    is_restricted = await context.node_restriction()
    if is_restricted is None:
        return []
    if is_restricted:
        text = "the NodeRestriction admission plugin confines the node's certificate to this node"
        return [ok("BRG207", "home", text)]
    text = (
        "the API server does not enable the NodeRestriction admission plugin: the node's "
        "certificate may change other Nodes"
    )
    return [warning("BRG207", "home", text)]


IMPLEMENTATIONS = (
    Implementation("BRG201", check_home_permissions, ("home",)),
    Implementation("BRG202", check_remote_permissions, ("remote",)),
    Implementation("BRG203", check_namespace_permissions, ("home",)),
    Implementation("BRG206", check_home_identity, ("home", "node")),
    Implementation("BRG207", check_node_restriction, ("home",)),
)
