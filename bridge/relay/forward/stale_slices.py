"""What a relay of before has left at home, for a bridge that has none.

A bridge that stops takes its EndpointSlices back, or has them say that nobody is ready. One that
was killed, and is joined again with another ``--network``, would leave them: they lead to ports on
which nobody listens, beside the endpoints that home's own controllers publish from then on. The
Node tells what its last join was asked for, so this costs nothing where that was the same.
"""

from __future__ import annotations

import logging

from bridge.node import join_record
from sync.kube.client import KubeClient
from sync.kube.errors import Forbidden, NotFound
from sync.kube.resources import ENDPOINT_SLICES, NODES
from sync.runtime.log_fields import name_fields
from translators.identity import Identity
from translators.objects import Object, name_of, namespace_of, uid_of
from translators.relay import forward

changes = logging.getLogger("cluster-bridge.changes")


async def list_slices(home: KubeClient, identity: Identity) -> list[Object]:
    """The EndpointSlices of a node's relay. Raises KubeError."""
    return (await home.list(ENDPOINT_SLICES, labels=forward.slice_selector(identity))).items


async def remove_stale_slices(home: KubeClient, identity: Identity) -> None:
    """Removes the slices of the node's relay, where its last bridge had one. Raises KubeError, but
    where the credential may not remove them: then it is told."""
    try:
        node = await home.get(NODES, identity.node)
    except NotFound:
        return
    if join_record.network_mode(node) != "relay":
        return
    try:
        left = await list_slices(home, identity)
        for it in left:
            await home.delete(
                ENDPOINT_SLICES, name_of(it), namespace=namespace_of(it), uid=uid_of(it)
            )
    except Forbidden as error:
        changes.warning(
            "slices of a relay of before may be left, and lead to nobody: %s; `kubectl delete "
            "endpointslices -A -l %s` removes them",
            error,
            forward.slice_selector(identity),
            extra=name_fields("Node", identity.node, cluster="home"),
        )
        return
    for it in left:
        where = name_fields(
            "EndpointSlice", name_of(it), namespace=namespace_of(it), cluster="home"
        )
        said = "EndpointSlice %s/%s of a relay of before removed"
        changes.info(said, namespace_of(it), name_of(it), extra=where)
