"""A home Service as it stands in the remote, so that its name resolves there as at home.

What home's cluster allocated is left for the remote to allocate anew: cluster IPs (``None`` of a
headless Service is a choice, and stays) and their families, node ports, health check port, and
what a load balancer or a cloud did. Two families are wished for, not demanded: the remote may have
one. LoadBalancer and NodePort become ClusterIP: the remote must not open ports or pay
for a balancer for a name that only its pods use.
"""

from __future__ import annotations

from translators.identity import ANNOTATION_MIRROR, Identity, remote_metadata
from translators.objects import Object, metadata, name_of, namespace_of

#: Fields of a Service's spec that belong to home's network alone.
HOME_FIELDS = (
    "allocateLoadBalancerNodePorts",
    "clusterIP",
    "clusterIPs",
    "externalIPs",
    "externalTrafficPolicy",
    "healthCheckNodePort",
    "ipFamilies",
    "loadBalancerClass",
    "loadBalancerIP",
    "loadBalancerSourceRanges",
)


#: Fields of a Service's spec that somebody can take back; most others have a default.
REMOVABLE_FIELDS = (
    "externalName",
    "ports",
    "publishNotReadyAddresses",
    "selector",
    "sessionAffinityConfig",
    "trafficDistribution",
)


def is_copied(home: Object) -> bool:
    """Whether the Service is to exist in the remote: all but home's API server, and those whose
    annotation says no."""
    annotations = metadata(home).get("annotations") or {}
    return annotations.get(ANNOTATION_MIRROR) != "false" and not is_api_server(home)


def is_api_server(service: Object) -> bool:
    """``default/kubernetes``: each cluster has its own, and it is never copied."""
    return namespace_of(service) == "default" and name_of(service) == "kubernetes"


def is_headless(service: Object) -> bool:
    """Whether it has no cluster IP by choice. That can only be said of a new Service: a cluster
    IP, and that there is none, are immutable."""
    return (service.get("spec") or {}).get("clusterIP") == "None"


def translate_service(home: Object, identity: Identity) -> Object:
    """The remote counterpart of a home Service. Status is the remote's own."""
    spec = home.get("spec") or {}
    carried = {key: value for key, value in spec.items() if key not in HOME_FIELDS}
    if is_headless(home):
        carried["clusterIP"] = "None"
    if carried.get("ipFamilyPolicy") == "RequireDualStack":
        carried["ipFamilyPolicy"] = "PreferDualStack"
    if carried.get("type") in ("LoadBalancer", "NodePort"):
        carried["type"] = "ClusterIP"
    if carried.get("ports"):
        carried["ports"] = [
            {key: value for key, value in port.items() if key != "nodePort"}
            for port in carried["ports"]
        ]
    remote = {key: value for key, value in home.items() if key != "status"}
    return {**remote, "metadata": remote_metadata(home, identity), "spec": carried}
