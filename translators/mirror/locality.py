"""Hints with which kube-proxy prefers the endpoints of its own cluster.

kube-proxy uses only endpoints that are hinted for its node or its zone, if every ready endpoint has
such a hint and at least one is for it (`CategorizeEndpoints` in k8s.io/kubernetes/pkg/proxy). The
controller of each cluster writes hints for pods there where the Service has a
``trafficDistribution``. An endpoint without any, such as a copied or forwarded one, would end the
preference for all. The endpoints of the other cluster are therefore hinted for a zone and a node
that no client is in: they get connections where the own cluster has no endpoint for the client, and
always where the Service states no preference, because the other endpoints have no hints then.
"""

from __future__ import annotations

from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN

#: The zone and node of the hints. Valid as a label value and as a node name.
OTHER_CLUSTER = f"other-cluster.{DOMAIN}"
#: ``trafficDistribution`` by which controllers write hints for nodes, too. API servers that do not
#: know it reject the Service, and may not know the field for these hints either.
PREFER_SAME_NODE = "PreferSameNode"


def hints_of_other_cluster(*, for_nodes: bool) -> Object:
    """The ``hints`` of an endpoint in the other cluster; ``for_nodes``: also for a node."""
    target = [{"name": OTHER_CLUSTER}]
    return {"forZones": target, **({"forNodes": target} if for_nodes else {})}


def prefers_same_node(service: Object) -> bool:
    """Whether the Service's own endpoints have hints for nodes."""
    return (service.get("spec") or {}).get("trafficDistribution") == PREFER_SAME_NODE
