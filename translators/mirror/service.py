"""Translates Services, so that their names resolve in the remote as at home.

Fields that home's cluster allocated are dropped, and the remote allocates its own: cluster IPs
(except ``None`` of a headless Service, which is a choice) and their families, node ports, the
health check port, and the state of load balancers. RequireDualStack becomes PreferDualStack,
because the remote may have a single IP family. LoadBalancer and NodePort Services become ClusterIP,
so that the remote neither opens ports nor pays for load balancers.

Annotations of Services, EndpointSlices, ConfigMaps and Secrets are not copied. They ask components
of the remote to act with their own permissions: to publish DNS names, create load balancers, or
copy the object to other namespaces.
"""

from __future__ import annotations

from translators.object_accessors import Object, metadata, name_of, namespace_of
from translators.ownership_labels import ANNOTATION_MIRROR, remote_metadata
from translators.virtual_node_identity import Identity

#: Spec fields that only apply to home's network.
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


#: Spec fields that a user can remove again; most others have a default.
REMOVABLE_FIELDS = (
    "externalName",
    "ports",
    "publishNotReadyAddresses",
    "selector",
    "sessionAffinityConfig",
    "trafficDistribution",
)


def is_copied(home: Object) -> bool:
    """Whether the Service is copied: all except home's API server, and those whose annotation
    forbids it."""
    annotations = metadata(home).get("annotations") or {}
    return annotations.get(ANNOTATION_MIRROR) != "false" and not is_api_server(home)


def is_api_server(service: Object) -> bool:
    """Whether this is ``default/kubernetes``. Each cluster has its own; it is never copied."""
    return namespace_of(service) == "default" and name_of(service) == "kubernetes"


def is_headless(service: Object) -> bool:
    """Whether the Service has ``clusterIP: None``, which is immutable."""
    return (service.get("spec") or {}).get("clusterIP") == "None"


def translate_service(home: Object, identity: Identity) -> Object:
    """The remote Service for a home Service, without the status."""
    spec = home.get("spec") or {}
    copied = {key: value for key, value in spec.items() if key not in HOME_FIELDS}
    if is_headless(home):
        copied["clusterIP"] = "None"
    if copied.get("ipFamilyPolicy") == "RequireDualStack":
        copied["ipFamilyPolicy"] = "PreferDualStack"
    if copied.get("type") in ("LoadBalancer", "NodePort"):
        copied["type"] = "ClusterIP"
    if copied.get("ports"):
        copied["ports"] = [
            {key: value for key, value in port.items() if key != "nodePort"}
            for port in copied["ports"]
        ]
    remote = {key: value for key, value in home.items() if key != "status"}
    return {**remote, "metadata": remote_metadata(home, identity), "spec": copied}
