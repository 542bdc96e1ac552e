"""The table of checks: the id of each, the state when it passes, and the remedy when it fails.

docs/reference/checks.md explains each check; a test compares its titles, remedies and ids with this
table. An id never changes its meaning, and is not used again. To add a check:

1. Add a `Check` below, under the next free id of its group, and a section to the page.
2. In the module of its topic (`cluster_compatibility`, `permission_checks`, `policy_checks`,
   `virtual_node`, `kubelet_certificate`, `network_paths`, `workloads`, `daemonsets`,
   `remote_namespaces`, `storage`) write a function that takes a `CheckContext` and returns
   findings, and list it in that module's ``IMPLEMENTATIONS``.
3. With ``join=True`` an error of it ends `bridge join` as well (`bridge.checks.required_at_join`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    id: str
    title: str
    """The statement that holds when the check passes."""
    hint: str
    """What to do, unless the finding has a hint of its own."""
    join: bool = False
    """Whether `bridge join` requires it; every connection requires BRG101 to BRG105."""

    @property
    def docs(self) -> str:
        """Its section in the documentation."""
        return f"docs/reference/checks.md#{self.id.lower()}"


_CHECKS = (
    # -- connectivity to the API servers ---------------------------------------------------
    Check(
        "BRG101",
        "The API server answers",
        "check that the server in the kubeconfig is up and can be reached from this machine: "
        "`kubectl get --raw /readyz` with the same kubeconfig",
    ),
    Check(
        "BRG102",
        "The kubeconfig is usable",
        "see `kubectl config view` with the same file; name another one with --kubeconfig or "
        "--home-kubeconfig",
    ),
    Check(
        "BRG103",
        "The credential is accepted",
        "get a new credential; a running bridge reloads the kubeconfig",
    ),
    Check(
        "BRG104",
        "The credential does not expire soon",
        "renew it in time; for a long-running bridge use a credential that renews itself",
    ),
    Check(
        "BRG105",
        "The API server's certificate is verified",
        "put the cluster's CA into certificate-authority-data of the kubeconfig",
    ),
    Check("BRG106", "The Kubernetes version is supported", "upgrade that cluster"),
    Check("BRG107", "The versions of home and remote are compatible", "upgrade the older cluster"),
    Check(
        "BRG108",
        "The clocks agree",
        "synchronize all clocks with a time server (chrony, systemd-timesyncd)",
    ),
    Check(
        "BRG109",
        "Home and remote are two clusters",
        "name another cluster with --kubeconfig or --context",
        join=True,
    ),
    # -- permissions -----------------------------------------------------------------------
    Check(
        "BRG201",
        "All required permissions are granted at home",
        "`bridge rbac home --name NODE` prints what to apply at home",
        join=True,
    ),
    Check(
        "BRG202",
        "All required permissions are granted in the remote",
        "`bridge rbac remote` prints what to apply in the remote",
        join=True,
    ),
    Check(
        "BRG203",
        "Pods of all home namespaces may run",
        "`bridge rbac namespace NAME` prints what to apply for one namespace",
        join=True,
    ),
    Check(
        "BRG204",
        "An admission policy confines the bridge's account at home",
        "`bridge rbac home --name NODE` of this version prints one",
    ),
    Check(
        "BRG205",
        "Admission policies in the remote protect it and the bridge's metadata",
        "`bridge rbac remote --policy` of this version prints them",
    ),
    Check(
        "BRG206",
        "The bridge is the node at home",
        "join with --home-identity node, and approve the request that it names",
    ),
    Check(
        "BRG207",
        "NodeRestriction confines the node's certificate at home",
        "add NodeRestriction to --enable-admission-plugins of home's API server, and join again",
        join=True,
    ),
    Check(
        "BRG208",
        "The bridge may read the whole remote",
        "with prepared namespaces this is optional; `bridge rbac remote --cluster-reads` prints it",
        join=True,
    ),
    # -- the node --------------------------------------------------------------------------
    Check(
        "BRG301",
        "The node's name is free, or the virtual node's",
        "choose another name with --name",
    ),
    Check(
        "BRG302",
        "The node is Ready",
        "see the reason; docs/reference/conditions-events.md lists each reason and what to do",
    ),
    Check(
        "BRG303",
        "A bridge serves the node",
        "run the same `bridge join` again, or add the remote to the chart's list again: the bridge "
        "adopts the running pods; `bridge leave NODE` removes the node instead",
    ),
    Check(
        "BRG304",
        "The running bridge has this version",
        "restart the older of the two with the newer version; running pods are unaffected",
    ),
    Check(
        "BRG305",
        "The node represents this remote",
        "name the right cluster with --kubeconfig and --context; if the old one no longer exists, "
        "run `bridge leave --force` and join the new one",
    ),
    Check(
        "BRG306",
        "The claim in the remote belongs to this home",
        "see docs/how-to/restore-home.md: stop the bridge of one of the two homes, or take over on "
        "purpose with --take-over-claim",
    ),
    Check(
        "BRG307",
        "No cloud controller deletes the node",
        "start the bridge, which gives a Node without a provider id one of its own scheme; a Node "
        "with another id has to be created again: `bridge leave`, then join",
    ),
    # -- the network -----------------------------------------------------------------------
    Check(
        "BRG401",
        "Home's API server reaches the kubelet API",
        "check that home's API server can reach that address and port (firewalls, NAT, an address "
        "of another network); join with --address and --port",
        join=True,
    ),
    Check(
        "BRG402",
        "The serving certificate is valid",
        "replace the files; a running bridge reads them again",
    ),
    Check(
        "BRG403",
        "The serving certificate has the node's names",
        "issue a certificate for the node's name and address, or join with --serving-certificate "
        "csr",
    ),
    Check(
        "BRG404",
        "An authority signed the serving certificate",
        "if home's API server verifies certificates, approve the bridge's request at home, or join "
        "with --tls-cert-file",
    ),
    Check(
        "BRG405",
        "Pods of the remote are reachable",
        "connect the pod networks of the clusters, or join with --network relay",
    ),
    Check(
        "BRG406",
        "The kubelet API's port is free",
        "stop the process that listens there, or choose another port with --port",
    ),
    Check(
        "BRG407",
        "Pods find home's API server",
        "name it with --home-api-address HOST:PORT, or join with --service-accounts none",
        join=True,
    ),
    Check(
        "BRG408",
        "Pods of headless Services can have addresses",
        "choose an unused range, and run the bridge with CAP_NET_ADMIN on a machine",
        join=True,
    ),
    Check(
        "BRG409",
        "Only addresses of the remote's pods are copied to home",
        "state the networks of the remote's pods with --remote-pod-cidr",
        join=True,
    ),
    # -- workloads -------------------------------------------------------------------------
    Check("BRG501", "The remote has nodes that take pods", "see `kubectl get nodes` in the remote"),
    Check(
        "BRG502",
        "No quota of the remote is exhausted",
        "raise the quota in the remote, or delete pods of that namespace",
    ),
    Check(
        "BRG503",
        "The required remote namespaces are available",
        "hand the namespace over (annotation cluster-bridge.io/accepts-home) and join with "
        "--accept-namespaces, rename the unmanaged object, or join with another "
        "--namespace-template",
    ),
    Check(
        "BRG504",
        "Nothing is left over in the remote",
        "`bridge prune --kubeconfig REMOTE` lists them, and with --remove removes those of one "
        "home",
    ),
    Check(
        "BRG505",
        "Resource metrics are available",
        "grant get nodes/proxy (exact), or list pods.metrics.k8s.io with metrics-server; `bridge "
        "rbac remote --metrics` prints either",
        join=True,
    ),
    Check(
        "BRG506",
        "The node's pods are accepted",
        "see `kubectl describe pod`: the Events name the remedy",
    ),
    Check(
        "BRG507",
        "DaemonSets of home on the virtual node",
        "exclude the DaemonSet from nodes with the label cluster-bridge.io/virtual-node by a node "
        "affinity, or change the fields that the remote cannot run",
    ),
    Check(
        "BRG508",
        "The remote's namespaces enforce a Pod Security level",
        "label home's namespace with pod-security.kubernetes.io/enforce, or join with another "
        "--pod-security",
    ),
    Check(
        "BRG509",
        "The virtual node's capacity is known",
        "join with --limits, or set ResourceQuotas in the prepared namespaces",
        join=True,
    ),
    # -- storage ---------------------------------------------------------------------------
    Check(
        "BRG601",
        "Volumes can be provisioned in the remote",
        "`bridge rbac home --name NODE --storage provision` and `bridge rbac remote --storage "
        "provision` print what to apply",
        join=True,
    ),
    Check(
        "BRG602",
        "The remote can provision home's StorageClasses",
        "manifests/storage-class.yaml has a StorageClass and the CSIDriver for the home cluster",
    ),
    Check(
        "BRG603",
        "No volume in the remote is unused",
        "delete the PersistentVolumeClaims in the remote if their data is not needed any more",
    ),
    Check(
        "BRG604",
        "Volumes of home have their data in the remote",
        "restore the PersistentVolumeClaims in the remote, run the pods on nodes that have their "
        "volumes, or delete the PersistentVolumeClaims at home to start with empty volumes",
    ),
)

#: By id, in order.
CHECKS: Mapping[str, Check] = {check.id: check for check in _CHECKS}
