"""Labels that all usable nodes of the remote have in common: what they are, the virtual node is.

Counted are the nodes on which pods of ours can be placed (`capacity.counts`), and all where there
is no such node, so that the labels do not come and go with an outage. A label is the virtual node's
where each of them has it with the same value. Architecture and operating system are what the
kubelets report; where they differ there is no such label, since any value would be a lie for some
pods: a pod that selects one does not come here unless ``--labels`` says which may.

Only labels that say what a machine is or where it stands are told (`CARRIED`). Others can mean
something to components of the remote, whose counterparts at home would follow them here.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.node.field_ownership import LABEL_ARCH, LABEL_BETA_ARCH, LABEL_BETA_OS, LABEL_OS
from translators.capacity import node_capacity
from translators.objects import Object, metadata

#: Labels of Kubernetes itself (k8s.io/api/core/v1 well_known_labels.go), and of accelerators.
#: Not those that vendors' DaemonSets select by, such as nvidia.com/gpu.present or gpu.deploy.*.
SHAREABLE = frozenset(
    {
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/windows-build",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        # The example of Kubernetes' own documentation, "Schedule GPUs".
        "accelerator",
        # NVIDIA GPU feature discovery.
        "nvidia.com/gpu.compute.major",
        "nvidia.com/gpu.compute.minor",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.family",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.product",
        "nvidia.com/mig.strategy",
        # AMD's node labeller.
        "amd.com/gpu.cu-count",
        "amd.com/gpu.device-id",
        "amd.com/gpu.family",
        "amd.com/gpu.product-name",
        "amd.com/gpu.vram",
        # Intel's rules for node feature discovery.
        "gpu.intel.com/device.count",
        "gpu.intel.com/family",
        "gpu.intel.com/product",
        # Managed clusters, and Karpenter on AWS.
        "cloud.google.com/gke-accelerator",
        "cloud.google.com/gke-accelerator-count",
        "cloud.google.com/gke-gpu-partition-size",
        "cloud.google.com/gke-tpu-accelerator",
        "cloud.google.com/gke-tpu-topology",
        "k8s.amazonaws.com/accelerator",
        "karpenter.k8s.aws/instance-accelerator-count",
        "karpenter.k8s.aws/instance-accelerator-name",
        "karpenter.k8s.aws/instance-gpu-count",
        "karpenter.k8s.aws/instance-gpu-memory",
        "karpenter.k8s.aws/instance-gpu-name",
        "kubernetes.azure.com/accelerator",
    }
)


def common_labels(nodes: Iterable[Object]) -> dict[str, str]:
    """The labels that the remote's ``nodes`` share."""
    every = list(nodes)
    counted = [node for node in every if node_capacity.is_counted(node)] or every
    shared: set[tuple[str, str]] = (
        set.intersection(*map(shareable_labels, counted)) if counted else set()
    )
    return dict(sorted(shared))


def shareable_labels(node: Object) -> set[tuple[str, str]]:
    """The labels of one node that may be the virtual node's."""
    labels = metadata(node).get("labels") or {}
    info = (node.get("status") or {}).get("nodeInfo") or {}
    found = {key: labels[key] for key in labels.keys() & SHAREABLE}
    found[LABEL_ARCH] = found[LABEL_BETA_ARCH] = info.get("architecture")
    found[LABEL_OS] = found[LABEL_BETA_OS] = info.get("operatingSystem")
    return {(key, str(value)) for key, value in found.items() if value}
