"""Removes EndpointSlices of a previous relay at home, for a bridge that runs without a relay.

A bridge that stops deletes its EndpointSlices or marks their endpoints as not ready. A killed
bridge leaves them; if the node is then joined with another ``--network``, they would direct clients
to closed ports, beside the endpoints that home's own controllers publish from then on. The Node
records the options of its last join, so this costs no request if the network is the same.
"""

from __future__ import annotations

import logging

from bridge.node import join_record
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import ENDPOINT_SLICES, NODES
from sync.kube.client import KubeClient
from sync.runtime.log_fields import name_fields
from translators.object_accessors import Object, name_of, namespace_of, uid_of
from translators.relay import forward_plan
from translators.virtual_node_identity import Identity

changes = logging.getLogger("cluster-bridge.changes")


async def list_slices(home: KubeClient, identity: Identity) -> list[Object]:
    """The EndpointSlices of a node's relay. Raises KubeError."""
    return (await home.list(ENDPOINT_SLICES, labels=forward_plan.slice_selector(identity))).items


async def remove_stale_slices(home: KubeClient, identity: Identity) -> None:
    """Deletes the slices of the node's previous relay, if its last join had one. Logs a warning if
    the credential may not delete them. Raises KubeError for all other failures."""
    node = await home.find(NODES, identity.node)
    if node is None or join_record.network_mode(node) != "relay":
        return
    try:
        for slice_ in await list_slices(home, identity):
            namespace, name = namespace_of(slice_), name_of(slice_)
            await home.delete(ENDPOINT_SLICES, name, namespace=namespace, uid=uid_of(slice_))
            changes.info(
                "home: deleted EndpointSlice %s/%s of a previous relay",
                namespace,
                name,
                extra=name_fields("EndpointSlice", name, namespace=namespace, cluster="home"),
            )
    except Forbidden as error:
        changes.warning(
            "cannot delete EndpointSlices of a previous relay, which direct clients to "
            "closed ports: %s; delete them with `kubectl delete endpointslices -A -l %s`",
            error,
            forward_plan.slice_selector(identity),
            extra=name_fields("Node", identity.node, cluster="home"),
        )
