"""The configuration of a kind cluster. Pure.

As far as kind allows, a cluster equals one of the native backend: the same limits, audit log and
admission policies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from e2e.clusters.addresses import Plan
from e2e.clusters.errors import InvalidRequest
from e2e.clusters.native_control_plane import API_BURST, API_QPS, AUDIT_LOG, AUTOSCALER_PERIOD
from e2e.clusters.versions import KubernetesVersion

AUDIT_POLICY_FILE = "audit-policy.yaml"
#: The folder in the node, and in the API server's pod.
_AUDIT_FOLDER = "/var/log/kubernetes-audit"
_POLICY = f"/etc/kubernetes/{AUDIT_POLICY_FILE}"


def cluster_config(
    plan: Plan,
    version: KubernetesVersion,
    *,
    audit: Path | None,
    cgroup_v1: bool,
    node_count: int = 1,
) -> dict[str, Any]:
    """kind's configuration (kind.x-k8s.io/v1alpha4).

    `audit` is a folder of this machine that has the policy and receives the log; without it there
    is no log. `cgroup_v1`: this machine has cgroup version 1 only. Nodes beyond the first are
    workers; the control plane then takes no pods.
    """
    node: dict[str, Any] = {"role": "control-plane"}
    if audit is not None:
        node["extraMounts"] = [
            {"hostPath": str(audit), "containerPath": _AUDIT_FOLDER},
            {"hostPath": str(audit / AUDIT_POLICY_FILE), "containerPath": _POLICY},
        ]
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"podSubnet": str(plan.pods), "serviceSubnet": str(plan.services)},
        "nodes": [node, *({"role": "worker"} for _ in range(node_count - 1))],
        "kubeadmConfigPatches": [
            yaml.safe_dump(patch)
            for patch in (
                _control_plane(audited=audit is not None),
                _kubelet(version, cgroup_v1=cgroup_v1),
            )
        ],
    }
    if version.minor in (34, 35):
        # As with the native backend: see MUTATING_POLICIES in `native_control_plane`.
        config["featureGates"] = {"MutatingAdmissionPolicy": True}
        config["runtimeConfig"] = {"admissionregistration.k8s.io/v1beta1": "true"}
    return config


def _control_plane(*, audited: bool) -> dict[str, Any]:
    rate = {"kube-api-qps": str(API_QPS), "kube-api-burst": str(API_BURST)}
    period = {"horizontal-pod-autoscaler-sync-period": f"{AUTOSCALER_PERIOD}s"}
    patch: dict[str, Any] = {
        "kind": "ClusterConfiguration",
        "controllerManager": {"extraArgs": {**rate, **period}},
        "scheduler": {"extraArgs": rate},
        # A cluster lives as long as its machine is up.
        "etcd": {"local": {"extraArgs": {"unsafe-no-fsync": "true"}}},
    }
    if audited:
        mounts = (("audit-policy", _POLICY, "File"), ("audit", _AUDIT_FOLDER, "DirectoryOrCreate"))
        patch["apiServer"] = {
            "extraArgs": {
                "audit-policy-file": _POLICY,
                "audit-log-path": f"{_AUDIT_FOLDER}/{AUDIT_LOG}",
                "audit-log-maxbackup": "1",
                "audit-log-maxsize": "500",
            },
            "extraVolumes": [
                {"name": name, "hostPath": path, "mountPath": path, "pathType": kind}
                for name, path, kind in mounts
            ],
        }
    return patch


def _kubelet(version: KubernetesVersion, *, cgroup_v1: bool) -> dict[str, Any]:
    patch: dict[str, Any] = {
        "kind": "KubeletConfiguration",
        "maxPods": 250,
        # Changes of ConfigMaps and Secrets appear in volumes within seconds.
        "syncFrequency": "10s",
        "serializeImagePulls": False,
        "registryPullQPS": 100,
        "registryBurst": 200,
        "kubeAPIQPS": API_QPS,
        "kubeAPIBurst": API_BURST,
        "eventRecordQPS": 0,
    }
    if cgroup_v1 and version.minor >= 35:
        patch["failCgroupV1"] = False
    return patch


def named_after(kubeconfig: str, name: str, server: str) -> str:
    """A kubeconfig of kind with cluster, context and user renamed after the test cluster, and a
    server address that this machine and the other cluster reach.

    :raises InvalidRequest: it is not a kubeconfig with one context.
    """
    config = yaml.safe_load(kubeconfig)
    if not isinstance(config, dict) or len(config.get("contexts") or []) != 1:
        raise InvalidRequest("not a kubeconfig with one context", where=name)
    user = f"kubernetes-admin-{name}"
    config["clusters"][0]["name"] = name
    config["clusters"][0]["cluster"]["server"] = server
    config["users"][0]["name"] = user
    config["contexts"][0] = {"name": name, "context": {"cluster": name, "user": user}}
    config["current-context"] = name
    return str(yaml.safe_dump(config, sort_keys=False))
