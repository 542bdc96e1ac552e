"""Checks of the virtual node itself, and of the bridge that serves it."""

from __future__ import annotations

from bridge.base.version import version
from bridge.checks.context import CheckContext, Implementation
from bridge.checks.report import Finding, error, info, ok, warning
from bridge.clusters.connection import cluster_uid
from bridge.election import leave_lock
from bridge.node import node_object
from bridge.remote_claim import claim_removal
from sync.kube.errors import NotFound
from sync.kube.resources import NODES
from translators.identity import Identity, home_id_from_uid
from translators.objects import Object, condition_of, metadata

#: How ``osImage`` of a virtual node begins (`bridge.node.node_object`).
_IMAGE = "cluster-bridge "


def is_virtual_node(node: Object) -> bool:
    """Whether it is a bridge's."""
    return node_object.LABEL_REMOTE in (metadata(node).get("labels") or {})


def bridge_version(node: Object) -> str:
    """The version of the bridge that wrote the Node's status last; "" where none has."""
    info_of = (node.get("status") or {}).get("nodeInfo") or {}
    image = str(info_of.get("osImage") or "")
    return image.removeprefix(_IMAGE) if image.startswith(_IMAGE) else ""


async def name_taken(subject: CheckContext) -> list[Finding]:
    """BRG301."""
    name = subject.name
    try:
        known = subject.node or await subject.home_client.get(NODES, name)
    except NotFound:
        return [ok("BRG301", "home", f"no node is named {name}")]
    if not is_virtual_node(known):
        return [error("BRG301", "home", f"node {name} exists and is not a bridge's virtual node")]
    if subject.node is None and subject.remote.client is not None:
        wanted = (metadata(known).get("labels") or {}).get(node_object.LABEL_REMOTE)
        if home_id_from_uid(await cluster_uid(subject.remote_client)) != wanted:
            said = f"node {name} exists and stands for another remote cluster"
            return [error("BRG301", "home", said)]
    return [ok("BRG301", "home", f"{name} is a bridge's virtual node")]


async def ready(subject: CheckContext) -> list[Finding]:
    """BRG302."""
    said = condition_of(subject.existing_node, "Ready")
    words = f"{said.get('reason') or 'no reason'}: {said.get('message') or 'nothing is said'}"
    if said.get("status") == "True":
        return [ok("BRG302", "home", f"Ready, {words}")]
    state = "NotReady" if said.get("status") == "False" else "Ready is Unknown"
    return [error("BRG302", "home", f"{state}, {words}")]


async def served(subject: CheckContext) -> list[Finding]:
    """BRG303: seen, over some seconds."""
    who = await leave_lock.find_serving_bridge(subject.home_client, subject.name)
    if who:
        return [ok("BRG303", "home", f"served by {who}")]
    if who is None:
        return [error("BRG303", "home", "no bridge has a lease to serve it")]
    return [error("BRG303", "home", "no bridge renews the lease to serve it")]


async def same_version(subject: CheckContext) -> list[Finding]:
    """BRG304."""
    theirs, ours = bridge_version(subject.existing_node), version()
    if not theirs:
        return [info("BRG304", "home", "the node does not tell its bridge's version")]
    if theirs == ours:
        return [ok("BRG304", "home", f"{theirs}, as this command")]
    return [warning("BRG304", "home", f"the bridge is {theirs}, this command is {ours}")]


async def stands_for(subject: CheckContext) -> list[Finding]:
    """BRG305."""
    labels = metadata(subject.existing_node).get("labels") or {}
    wanted = labels.get(node_object.LABEL_REMOTE)
    client = subject.remote_client
    if home_id_from_uid(await cluster_uid(client)) == wanted:
        return [ok("BRG305", "both", f"{client.config.server} is the cluster it stands for")]
    return [error("BRG305", "both", f"{client.config.server} is another cluster than the node's")]


async def claimed(subject: CheckContext) -> list[Finding]:
    """BRG306."""
    ours = home_id_from_uid(await cluster_uid(subject.home_client))
    identity = Identity(home_id=ours, home_name=ours[:8], node=subject.name)
    its, why = await claim_removal.inspect_claim(
        subject.home_client, subject.remote_client, identity
    )
    if its is None:
        return [info("BRG306", "remote", "no bridge of this home has claimed the node yet")]
    last = f"by {its.holder_name}, last at {its.renewed}"
    if why:
        return [error("BRG306", "remote", f"claimed {last}: {why}")]
    return [ok("BRG306", "remote", f"claimed {last}")]


IMPLEMENTATIONS = (
    Implementation("BRG301", name_taken, ("home",)),
    Implementation("BRG302", ready, ("node",)),
    Implementation("BRG303", served, ("home", "node")),
    Implementation("BRG304", same_version, ("node",)),
    Implementation("BRG305", stands_for, ("remote", "node")),
    Implementation("BRG306", claimed, ("home", "remote")),
)
