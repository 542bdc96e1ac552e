"""A home EndpointSlice as it stands in the remote: home's endpoints of a copied Service.

The remote's own controller makes slices of the remote's pods, from the copied selector. Ours hold
what it cannot see, and leave out what it does: the pods of the virtual node. It leaves ours alone,
since each controller of EndpointSlices minds only those with its own name in `LABEL_MANAGED_BY`
(k8s.io/api/discovery/v1, well_known_labels.go).

The slices of several virtual nodes that share a remote namespace leave out different pods, so each
node's have names of their own (`remote_name`).
"""

from __future__ import annotations

from translators.identity import Identity, remote_metadata
from translators.names import hashed_name
from translators.objects import Object, metadata, name_of

LABEL_SERVICE = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
#: Our name in that label. The remote's controller copies a Service's labels to its own slices, so
#: that the labels of ours do not tell them apart, and this one does.
MANAGER = "cluster-bridge"
#: What lists ours, with the labels of home and node.
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGER}"

#: Written by home's controller with each change, for its own latency.
_TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
#: Fields of an endpoint that speak of home's nodes, zones and objects.
HOME_FIELDS = frozenset({"deprecatedTopology", "hints", "nodeName", "targetRef", "zone"})


def service_name(slice_: Object) -> str:
    """The Service that the slice belongs to; "" for none."""
    return str((metadata(slice_).get("labels") or {}).get(LABEL_SERVICE) or "")


def remote_name(name: str, identity: Identity) -> str:
    """The name of the slice's counterpart: its own, and a hash that is the virtual node's."""
    return hashed_name(name, f"{identity.node}/{name}")


def has_endpoints(home: Object, identity: Identity) -> bool:
    """Whether anything is left without the pods of the virtual node."""
    return bool(_endpoints(home, identity))


def translate_endpoint_slice(home: Object, identity: Identity) -> Object:
    """The remote counterpart of a home EndpointSlice."""
    meta = remote_metadata(home, identity)
    meta["name"] = remote_name(name_of(home), identity)
    meta["labels"][LABEL_MANAGED_BY] = MANAGER
    meta["annotations"].pop(_TRIGGER_TIME, None)
    return {**home, "metadata": meta, "endpoints": _endpoints(home, identity)}


def _endpoints(home: Object, identity: Identity) -> list[Object]:
    return [
        {key: value for key, value in endpoint.items() if key not in HOME_FIELDS}
        for endpoint in home.get("endpoints") or ()
        if endpoint.get("nodeName") != identity.node
    ]
