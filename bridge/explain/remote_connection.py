"""Connects to the remote of a virtual node, as far as its kubeconfig is on this machine."""

from __future__ import annotations

from contextlib import AsyncExitStack

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import as_preflight_errors, connect
from bridge.install.remote_kubeconfig_lookup import check_remote_of_node, resolve_remote_kubeconfig
from bridge.node import node_object
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, metadata


async def connect_remote(
    stack: AsyncExitStack,
    home: KubeClient,
    node: Object,
    named: KubeconfigRef | None,
    not_checked: list[str],
) -> KubeClient | None:
    """A client of the node's remote; None, with a note in ``not_checked``, if it is not reachable.
    ``named`` is the kubeconfig of the options, with which a failure is a PreflightError."""
    with as_preflight_errors("home"):
        found = await resolve_remote_kubeconfig(stack, home, node, named, warn=not_checked.append)
    if found is None:
        recorded = (metadata(node).get("annotations") or {}).get(
            node_object.ANNOTATION_KUBECONFIG, "its kubeconfig"
        )
        not_checked.append(f"the remote: {recorded} is not on this machine; set --kubeconfig")
        return None
    try:
        remote = await stack.enter_async_context(
            connect(found, side="remote", notify=lambda _: None)
        )
        with as_preflight_errors("remote"):
            await check_remote_of_node(remote, node)
    except PreflightError as error:
        if named is not None:
            raise
        not_checked.append(f"{error}; to use another file, set --kubeconfig")
        return None
    return remote
