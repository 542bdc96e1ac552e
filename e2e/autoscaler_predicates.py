"""The predicates by which cluster-autoscaler reads pods and nodes of its cluster.

They are those of cluster-autoscaler 1.34.5 (github.com/kubernetes/autoscaler, tag
cluster-autoscaler-1.34.5); each function names its source below ``cluster-autoscaler/``.
cluster-autoscaler itself is no part of the tests: they build programs from released Go modules
alone (`e2e.clusters.go_recipes`), and none of its tags is a version of a module.

The provider of the cloud decides to which group of machines a Node belongs: by `spec.providerID`,
and some providers by `NODE_GROUP_LABELS` or `NODE_GROUP_ANNOTATIONS`.
"""

from __future__ import annotations

from collections.abc import Iterable

from e2e.kubectl import Json

#: The schemes of provider ids of which a provider knows the machine; others belong to no group
#: (NodeGroupForNode of cloudprovider/aws, azure, gce and clusterapi).
PROVIDER_SCHEMES = ("aws", "azure", "gce", "hcloud", "openstack", "vsphere")
#: Labels of a Node from which a provider reads its group: ``nodeGroupLabel`` of
#: cloudprovider/hetzner/hetzner_cloud_provider.go, ``NodePoolLabel`` of
#: cloudprovider/ovhcloud/ovh_cloud_provider.go, ``coreWeaveNodePoolUID`` of
#: cloudprovider/coreweave/coreweave_utils.go, ``node_id`` in NodeGroupForNode of
#: cloudprovider/utho/utho_cloud_provider.go; and the clouds' own labels of pools, which an
#: autoscaler with the provider ``externalgrpc`` may use.
NODE_GROUP_LABELS = (
    "hcloud/node-group",
    "nodepool",
    "compute.coreweave.com/node-pool-uid",
    "node_id",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)
#: Annotations of a Node from which a provider reads its machine: ``machineAnnotationKey`` of
#: cloudprovider/clusterapi/clusterapi_utils.go, ``machineNodeAnnotationKey`` of
#: cloudprovider/rancher/rancher_clusterapi.go.
NODE_GROUP_ANNOTATIONS = ("cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace")
#: The taint of a node that the autoscaler removes (ToBeDeletedTaint in utils/taints/taints.go).
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"


def unschedulable(pods: Iterable[Json]) -> list[Json]:
    """The pods for which a scale-up is tried: those without a node, PodScheduled=False with the
    reason Unschedulable (isUnschedulable and AllPodLister.List in utils/kubernetes/listers.go)."""
    return [
        it
        for it in pods
        if it["status"].get("phase") not in ("Succeeded", "Failed")
        and not it["spec"].get("nodeName")
        and not it["metadata"].get("deletionTimestamp")
        and _pod_scheduled(it) == ("False", "Unschedulable")
    ]


def unprocessed(pods: Iterable[Json]) -> list[Json]:
    """The pods that no scheduler has processed, for which a scale-up is tried with
    ``--bypassed-scheduler-names`` (SchedulerUnprocessedPods in utils/kubernetes/listers.go)."""
    return [
        it
        for it in pods
        if not it["spec"].get("nodeName")
        and not it["metadata"].get("deletionTimestamp")
        and _pod_scheduled(it) in (("", ""), ("False", ""))
    ]


def _pod_scheduled(pod: Json) -> tuple[str, str]:
    """Status and reason of the condition PodScheduled; empty if there is none."""
    for it in pod["status"].get("conditions") or ():
        if it["type"] == "PodScheduled":
            return it["status"], it.get("reason", "")
    return "", ""


def may_have_a_group(node: Json) -> bool:
    """Whether a provider may assign the Node to a group of machines: only then it is a candidate
    for a scale-down (GetScaleDownCandidates in processors/nodes/pre_filtering_processor.go), serves
    as the template of new nodes (Process in processors/nodeinfosprovider), and can be taken for the
    machine of an unregistered node (getNotRegisteredNodes in clusterstate/clusterstate.go)."""
    labels, annotations = (node["metadata"].get(it) or {} for it in ("labels", "annotations"))
    return bool(
        node["spec"].get("providerID", "").partition("://")[0] in PROVIDER_SCHEMES
        or any(it in labels for it in NODE_GROUP_LABELS)
        or any(it in annotations for it in NODE_GROUP_ANNOTATIONS)
    )


def counts_for_limits(node: Json) -> bool:
    """Whether the Node's CPU and memory count for the cluster's upper limits; and whether the
    provider is asked for its group there, where an error ends the attempt to scale up: the provider
    ``gce`` returns one for a Node without a provider ID
    (isVirtualNode and FilterOutNodesFromNotAutoscaledGroups in core/utils/utils.go)."""
    return (node["metadata"].get("labels") or {}).get("type") != "virtual-kubelet"


def is_being_deleted(node: Json) -> bool:
    """Whether the autoscaler's taint, with any effect, marks the Node for deletion
    (HasToBeDeletedTaint in utils/taints/taints.go)."""
    return any(it["key"] == TO_BE_DELETED for it in node["spec"].get("taints") or ())
