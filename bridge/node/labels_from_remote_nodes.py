"""Computes the labels that all usable nodes of the remote share, for the virtual node.

Usable nodes are those that count for the capacity (`node_capacity.is_counted`); if none counts, all
nodes, so that an outage changes no label. Architecture and operating system are those that the
kubelets report. If they differ, the virtual node has no such label: a pod that selects one is not
scheduled here unless ``--labels`` sets it.

Only labels about hardware and location are shared (`SHAREABLE`). Others can select workloads of the
remote's components, whose counterparts at home would then run here.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.node.node_metadata_merge import LABEL_ARCH, LABEL_BETA_ARCH, LABEL_BETA_OS, LABEL_OS
from translators.capacity import node_capacity
from translators.object_accessors import Object, metadata

#: Well-known labels (k8s.io/api/core/v1 well_known_labels.go) and labels of accelerators, except
#: those that vendors' DaemonSets select, such as nvidia.com/gpu.present or gpu.deploy.*.
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
    """The shareable labels that all ``nodes`` have with the same value."""
    all_nodes = list(nodes)
    usable = [node for node in all_nodes if node_capacity.is_counted(node)] or all_nodes
    shared: set[tuple[str, str]] = (
        set.intersection(*map(shareable_labels, usable)) if usable else set()
    )
    return dict(sorted(shared))


def shareable_labels(node: Object) -> set[tuple[str, str]]:
    """The labels of one node that the virtual node may have."""
    labels = metadata(node).get("labels") or {}
    info = (node.get("status") or {}).get("nodeInfo") or {}
    shareable = {key: labels[key] for key in labels.keys() & SHAREABLE}
    shareable[LABEL_ARCH] = shareable[LABEL_BETA_ARCH] = info.get("architecture")
    shareable[LABEL_OS] = shareable[LABEL_BETA_OS] = info.get("operatingSystem")
    return {(key, str(value)) for key, value in shareable.items() if value}
