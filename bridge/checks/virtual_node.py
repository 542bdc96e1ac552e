"""Checks of the virtual node, and of the bridge that serves it."""

from __future__ import annotations

from bridge.base.version import version
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, not_checked, ok, warning
from bridge.node.node_object import (
    PROVIDER_SCHEME,
    bridge_version,
    is_virtual_node,
    remote_id_of,
)
from bridge.remote_claim import claim_removal
from translators.object_accessors import condition_of
from translators.virtual_node_identity import Identity


async def check_node_name(context: CheckContext) -> list[Finding]:
    """BRG301."""
    name = context.name
    known = await context.registered_node()
    if known is None:
        return [ok("BRG301", "home", f"no node is named {name}")]
    if not is_virtual_node(known):
        return [error("BRG301", "home", f"node {name} exists and is not a bridge's virtual node")]
    is_comparable = context.node is None and context.remote.client is not None
    if is_comparable and await context.remote_id() != remote_id_of(known):
        text = f"node {name} exists and represents another remote cluster"
        return [error("BRG301", "home", text)]
    return [ok("BRG301", "home", f"{name} is a bridge's virtual node")]


async def check_node_ready(context: CheckContext) -> list[Finding]:
    """BRG302. Without a serving bridge the condition is only the last one that was written."""
    condition = condition_of(context.existing_node, "Ready")
    text = f"{condition.get('reason') or 'no reason'}: {condition.get('message') or 'no message'}"
    status = condition.get("status")
    if status != "True":
        state = "NotReady" if status == "False" else "Ready is Unknown"
        return [error("BRG302", "home", f"{state}, {text}")]
    if not await context.serving_bridge():
        return [info("BRG302", "home", f"last reported Ready ({text}); see BRG303")]
    return [ok("BRG302", "home", f"Ready, {text}")]


async def check_serving_bridge(context: CheckContext) -> list[Finding]:
    """BRG303, by renewals of the election's Lease over some seconds."""
    bridge = await context.serving_bridge()
    if bridge:
        return [ok("BRG303", "home", f"served by {bridge}")]
    if bridge is None:
        return [error("BRG303", "home", "no bridge has an election Lease for the node")]
    return [error("BRG303", "home", "no bridge renews the election Lease of the node")]


async def check_bridge_version(context: CheckContext) -> list[Finding]:
    """BRG304."""
    theirs, ours = bridge_version(context.existing_node), version()
    if not theirs:
        return [info("BRG304", "home", "the Node does not report its bridge's version")]
    if theirs == ours:
        return [ok("BRG304", "home", f"{theirs}, like this command")]
    return [warning("BRG304", "home", f"the bridge is {theirs}, this command is {ours}")]


async def check_remote_identity(context: CheckContext) -> list[Finding]:
    """BRG305."""
    server = context.remote_client.endpoint.server
    if await context.remote_id() == remote_id_of(context.existing_node):
        return [ok("BRG305", "both", f"{server} is the cluster of this node")]
    return [error("BRG305", "both", f"{server} is not the cluster of this node")]


async def check_remote_claim(context: CheckContext) -> list[Finding]:
    """BRG306."""
    ours = await context.home_id()
    identity = Identity(home_id=ours, home_name=ours[:8], node=context.name)
    claim, objection = await claim_removal.inspect_claim(
        context.home_client, context.remote_client, identity, await context.claim_places()
    )
    if claim is None and objection:
        return [not_checked("BRG306", "remote", objection)]
    if claim is None:
        return [info("BRG306", "remote", "no bridge of this home has a claim on the node yet")]
    last = f"by {claim.holder_name}, last at {claim.renewed}"
    if objection:
        return [error("BRG306", "remote", f"claimed {last}: {objection}")]
    return [ok("BRG306", "remote", f"claimed {last}")]


async def check_provider_id(context: CheckContext) -> list[Finding]:
    """BRG307."""
    current = str((context.existing_node.get("spec") or {}).get("providerID") or "")
    if current.startswith(f"{PROVIDER_SCHEME}://"):
        return [ok("BRG307", "home", current)]
    if current:
        return [warning("BRG307", "home", f"the Node has the provider id {current}")]
    return [warning("BRG307", "home", "the Node has no provider id")]


IMPLEMENTATIONS = (
    Implementation("BRG301", check_node_name, ("home",)),
    Implementation("BRG302", check_node_ready, ("home", "node")),
    Implementation("BRG303", check_serving_bridge, ("home", "node")),
    Implementation("BRG304", check_bridge_version, ("node",)),
    Implementation("BRG305", check_remote_identity, ("remote", "node")),
    Implementation("BRG306", check_remote_claim, ("home", "remote")),
    Implementation("BRG307", check_provider_id, ("home", "node")),
)
