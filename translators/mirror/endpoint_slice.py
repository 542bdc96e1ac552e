"""Translates EndpointSlices of mirrored Services: home's endpoints in the remote.

The remote's own controller creates slices for pods in the remote, and ignores the bridge's: it only
manages slices with its own name in the label ``endpointslice.kubernetes.io/managed-by``
(k8s.io/api/discovery/v1, well_known_labels.go). Virtual nodes that share a remote namespace exclude
different pods, so the slices of each node have their own names (`remote_name`).
"""

from __future__ import annotations

from translators.derived_names import hashed_name
from translators.mirror.locality import hints_of_other_cluster
from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import remote_metadata
from translators.virtual_node_identity import Identity

LABEL_SERVICE = "kubernetes.io/service-name"
LABEL_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
#: The bridge's value of that label. It distinguishes the bridge's slices from those of the remote's
#: controller, which copies the other labels of a Service to its slices.
MANAGER = "cluster-bridge"
#: Selects the bridge's slices, together with the ownership labels.
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGER}"

#: Endpoint fields that refer to nodes, zones and objects of home.
HOME_FIELDS = frozenset({"deprecatedTopology", "hints", "nodeName", "targetRef", "zone"})


def service_name(slice_: Object) -> str:
    """The Service of the slice; "" without one."""
    return str((metadata(slice_).get("labels") or {}).get(LABEL_SERVICE) or "")


def remote_name(name: str, identity: Identity) -> str:
    """The name at home with a hash that depends on the virtual node."""
    return hashed_name(name, f"{identity.node}/{name}")


def has_endpoints(home: Object, identity: Identity) -> bool:
    """Whether the slice has endpoints other than pods of the virtual node."""
    return bool(_endpoints(home, identity))


def translate_endpoint_slice(home: Object, identity: Identity) -> Object:
    """The remote slice for a home EndpointSlice."""
    meta = remote_metadata(home, identity)
    meta["name"] = remote_name(name_of(home), identity)
    meta["labels"][LABEL_MANAGED_BY] = MANAGER
    return {**home, "metadata": meta, "endpoints": _endpoints(home, identity)}


def _endpoints(home: Object, identity: Identity) -> list[Object]:
    return [
        _endpoint(endpoint)
        for endpoint in home.get("endpoints") or ()
        if endpoint.get("nodeName") != identity.node
    ]


def _endpoint(home: Object) -> Object:
    kept = {key: value for key, value in home.items() if key not in HOME_FIELDS}
    for_nodes = bool((home.get("hints") or {}).get("forNodes"))
    return {**kept, "hints": hints_of_other_cluster(for_nodes=for_nodes)}
