"""The table of checks: the id of each, what it means, and what to do.

Findings (`bridge.checks.findings`) and docs/reference/checks.md are made from it. An id never
changes its meaning, and is not used again. To add a check:

1. Add a `Check` below, under the next free id of its group.
2. In the module of its topic (`compatibility`, `required_permissions`, `virtual_node`,
   `kubelet_certificate`, `network`, `workloads`, `daemonsets`) write a function that takes a
   `CheckContext` and returns findings, and list it in that module's ``IMPLEMENTATIONS``.
3. With ``join=True`` an error of it ends `bridge join` as well (`bridge.checks.required_at_join`).
4. Regenerate the page: ``python -m bridge.checks.reference_page > docs/reference/checks.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The page with a section for each check.
DOCUMENT = "docs/reference/checks.md"


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    id: str
    title: str
    """The statement that holds when the check passes."""
    means: str
    """The condition that is checked, and the consequences of a failure."""
    hint: str
    """What to do, unless the finding has a hint of its own."""
    join: bool = False
    """Whether `bridge join` requires it; every connection requires BRG101 to BRG105."""

    @property
    def docs(self) -> str:
        """Its section in the documentation."""
        return f"{DOCUMENT}#{self.id.lower()}"


_CHECKS = (
    # -- connectivity to the API servers -------------------------------------------------------
    Check(
        "BRG101",
        "The API server answers",
        "Requests the version of the API server in the kubeconfig, from this machine. If the API "
        "server does not answer, nothing else can be checked in that cluster. A bridge on this "
        "machine would treat the cluster as lost: running pods are unaffected, and changes wait "
        "until the cluster is back.",
        "check that the server in the kubeconfig is up and can be reached from this machine: "
        "`kubectl get --raw /readyz` with the same kubeconfig",
    ),
    Check(
        "BRG102",
        "The kubeconfig is usable",
        "The file exists, is a kubeconfig and has the context, and its credential plugin works. "
        "For an existing node, the remote's kubeconfig is the one that the node recorded, or that "
        "of an installation at home if you may list Secrets; otherwise name it with --kubeconfig. "
        "A Secret that has an installation's labels, but is in another place or contains anything "
        "that the installer does not write, is ignored with a warning that names the Secret.",
        "see `kubectl config view` with the same file; name another one with --kubeconfig or "
        "--home-kubeconfig",
    ),
    Check(
        "BRG103",
        "The credential is accepted",
        "The API server authenticates the credential (no 401). It rejects a credential that has "
        "expired, was revoked or belongs to another cluster; a running bridge then reports that "
        "in the node's Ready condition.",
        "get a new credential; a running bridge reloads the kubeconfig",
    ),
    Check(
        "BRG104",
        "The credential does not expire soon",
        "The end of the client certificate, or of the token if it shows one (`exp` of a JWT). A "
        "credential that a plugin or a token file renews may be short-lived. A credential in the "
        "kubeconfig itself is a warning in its last 7 days.",
        "renew it in time; for a long-running bridge use a credential that renews itself",
    ),
    Check(
        "BRG105",
        "The API server's certificate is verified",
        "The kubeconfig's CA verifies the API server's certificate. With "
        "insecure-skip-tls-verify, or over plain http, anybody on the network path can "
        "impersonate the server, and obtain the credential and all Secrets that pods need.",
        "put the cluster's CA into certificate-authority-data of the kubeconfig",
    ),
    Check(
        "BRG106",
        "The Kubernetes version is supported",
        "The remote needs Kubernetes 1.27 or newer: pods that must not run twice are created "
        "there with a scheduling gate. Older servers drop that field silently, so that such a pod "
        "could start before home knows about it. Versions older than 1.34 are not tested.",
        "upgrade that cluster",
    ),
    Check(
        "BRG107",
        "The versions of home and remote are compatible",
        "The virtual node has the version of the remote's kubelets. Home supports a kubelet that "
        "is not newer than its own API server and at most three minor versions older. Other "
        "combinations mostly work, but are not all tested.",
        "upgrade the older cluster",
    ),
    Check(
        "BRG108",
        "The clocks agree",
        "Compares this machine's clock with those of both API servers, by the Date header of "
        "their responses. The bridge compares no clocks to decide which replica serves the node, "
        "but certificates and tokens depend on them: a certificate issued here is not valid yet "
        "where the clock is an hour behind.",
        "synchronize all clocks with a time server (chrony, systemd-timesyncd)",
    ),
    Check(
        "BRG109",
        "Home and remote are two clusters",
        "The UID of the namespace kube-system identifies a cluster. A cluster that is joined to "
        "itself would offload its pods to itself.",
        "name another cluster with --kubeconfig or --context",
        join=True,
    ),
    # -- permissions -----------------------------------------------------------------------
    Check(
        "BRG201",
        "All required permissions are granted at home",
        "Reviews each permission of the bridge (SelfSubjectAccessReview), and names the missing "
        "ones. The check uses the credential of your kubeconfig: a running bridge with another "
        "credential may have permissions that you do not have.",
        "`bridge rbac home` prints what to apply at home",
        join=True,
    ),
    Check(
        "BRG202",
        "All required permissions are granted in the remote",
        "Like BRG201, in the remote.",
        "`bridge rbac remote` prints what to apply in the remote",
        join=True,
    ),
    Check(
        "BRG203",
        "Pods of all home namespaces may run",
        "Whether the credential may read ConfigMaps, Secrets and Services in all namespaces of "
        "home. This is optional: access can be granted per namespace. Pods elsewhere stay Pending "
        "with an Event that shows the required command.",
        "`bridge rbac namespace NAME` prints what to apply for one namespace",
        join=True,
    ),
    # -- the node --------------------------------------------------------------------------
    Check(
        "BRG301",
        "The node's name is free, or the virtual node's",
        "A Node of that name that is not a bridge's belongs to something else, most likely a real "
        "machine. The bridge never changes it, and the join fails.",
        "choose another name with --name",
    ),
    Check(
        "BRG302",
        "The node is Ready",
        "The Ready condition of the Node. Its reason names what failed: a running bridge writes "
        "RemoteUnreachable, RemoteCredentialRefused, NoUsableNodes and others. Home writes "
        "NodeStatusUnknown when no bridge reports any more. If no bridge serves the node "
        "(BRG303), the condition is only the last one reported.",
        "see the reason; docs/explanation/failure-modes.md explains each reason and what resolves "
        "it",
    ),
    Check(
        "BRG303",
        "A bridge serves the node",
        "Whether the Lease by which the node's bridges elect a leader is renewed, observed for "
        "some seconds without comparing clocks. Without a bridge, pods in the remote keep "
        "running, but no change reaches them. Home marks the node NotReady, and evicts its pods "
        "after a while.",
        "run the same `bridge join` again; it adopts the running pods",
    ),
    Check(
        "BRG304",
        "The running bridge has this version",
        "Compares the version in the Node's osImage with that of this command.",
        "restart the older of the two with the newer version; running pods are unaffected",
    ),
    Check(
        "BRG305",
        "The node represents this remote",
        "The Node records the identity of its remote cluster. Another cluster behind the same "
        "kubeconfig (re-created, or a changed context) has none of the node's pods.",
        "name the right cluster with --kubeconfig and --context; if the old one no longer exists, "
        "run `bridge leave --force` and join the new one",
    ),
    Check(
        "BRG306",
        "The claim in the remote belongs to this home",
        "The bridge that serves the node holds a Lease in the remote's kube-node-lease, the claim "
        "on its objects. The check compares it with home's record. They differ if another home "
        "with the same identity, restored from a backup or cloned, serves the node: this home's "
        "bridge then exits before it writes anything.",
        "see docs/how-to/restore-home.md: stop the bridge of one of the two homes, or take over "
        "on purpose with --take-over-claim",
    ),
    # -- the network -----------------------------------------------------------------------
    Check(
        "BRG401",
        "Home's API server reaches the kubelet API",
        "For kubectl logs, exec and port-forward, home's API server connects to the bridge's "
        "address and port. For an existing node the check sends a request through that API server "
        "(`/api/v1/nodes/NAME/proxy/healthz`). Before a join there is nothing to connect to: only "
        "the address is shown. An API server with --kubelet-certificate-authority verifies the "
        "certificate, and the finding contains its error.",
        "check that home's API server can reach that address and port (firewalls, NAT, an address "
        "of another network); join with --address and --port",
        join=True,
    ),
    Check(
        "BRG402",
        "The serving certificate is valid",
        "The validity period of the kubelet API's certificate: the one that the running bridge "
        "serves, or before a join that of --tls-cert-file. Home's API server rejects an expired "
        "certificate, if it verifies certificates.",
        "replace the files; a running bridge reads them again",
    ),
    Check(
        "BRG403",
        "The serving certificate has the node's names",
        "An API server that verifies certificates (--kubelet-certificate-authority) requires the "
        "address that it dials, which is the node's, among the certificate's names.",
        "issue a certificate for the node's name and address, or join with --serving-certificate "
        "csr",
    ),
    Check(
        "BRG404",
        "An authority signed the serving certificate",
        "A self-signed certificate is sufficient for API servers that do not verify it, which is "
        "the default. API servers with --kubelet-certificate-authority reject it: this is an "
        "error if BRG401 shows that home's API server does so.",
        "if home's API server verifies certificates, join with --serving-certificate csr or "
        "--tls-cert-file",
    ),
    Check(
        "BRG405",
        "Pods of the remote are reachable",
        "With --network flat, pods of both clusters connect to each other by address. The check "
        "connects from this machine to some running pods of the remote, at a port that they "
        "declare or at 80. A refused connection comes from the pod's node, or from a firewall in "
        "front of it. No response means no route. Pods at home may have another route than this "
        "machine. With --network auto the finding shows the selected mode.",
        "connect the pod networks of the clusters, or join with --network relay",
    ),
    Check(
        "BRG406",
        "The kubelet API's port is free",
        "Whether a join could listen on its address and port on this machine.",
        "stop the process that listens there, or choose another port with --port",
    ),
    Check(
        "BRG407",
        "Pods find home's API server",
        "With --service-accounts home, pods in the remote connect to home's API server by host "
        "and port, over TLS. That is the server in home's kubeconfig. If pods cannot use it (it "
        "is on loopback, has a path as with Rancher, is plain http, or the kubeconfig has a "
        "proxy-url or tls-server-name), it is an endpoint of home's Service kubernetes. Whether "
        "the remote's nodes reach the address is not tested.",
        "name it with --home-api-address HOST:PORT, or join with --service-accounts none",
        join=True,
    ),
    Check(
        "BRG408",
        "Pods of headless Services can have addresses",
        "With --relay-cidr the bridge assigns addresses of that range on this machine. It needs "
        "CAP_NET_ADMIN, this machine must not have a route to the range, and no pod, node or "
        "Service of home may use it, as far as the credential may see them. Whether home's nodes "
        "route the range to this machine is not tested.",
        "choose an unused range, and run the bridge with CAP_NET_ADMIN on a machine",
        join=True,
    ),
    # -- workloads -------------------------------------------------------------------------
    Check(
        "BRG501",
        "The remote has nodes that take pods",
        "The virtual node's capacity is the sum of the remote's nodes that are Ready, not "
        "cordoned and not tainted.",
        "see `kubectl get nodes` in the remote",
    ),
    Check(
        "BRG502",
        "No quota of the remote is exhausted",
        "ResourceQuotas of the remote namespaces that correspond to home's. The remote rejects "
        "pods that would exceed a quota, and they wait. Quotas with scopes do not apply to every "
        "pod and are not checked.",
        "raise the quota in the remote, or delete pods of that namespace",
    ),
    Check(
        "BRG503",
        "The required remote namespaces are available",
        "A remote namespace with a required name that the bridge neither created nor may use is "
        "never changed: pods wait with the reason RemoteClash. The same applies to unmanaged "
        "pods, ConfigMaps and Secrets with a required name.",
        "hand the namespace over (annotation cluster-bridge.io/accepts-home) and join with "
        "--accept-namespaces, rename the unmanaged object, or join with another "
        "--namespace-template",
    ),
    Check(
        "BRG504",
        "Nothing is left over in the remote",
        "Objects with the bridge's labels that belong to no virtual node of this home, or to "
        "another home. The remote does not show whether a bridge of another home still manages "
        "them.",
        "`bridge prune --kubeconfig REMOTE` lists them, and with --remove removes those of one "
        "home",
    ),
    Check(
        "BRG505",
        "Resource metrics are available",
        "kubectl top and autoscalers get the resource usage of the node's pods from the remote's "
        "kubelets, or from its metrics API. Everything else works without.",
        "grant get nodes/proxy (exact), or list pods.metrics.k8s.io with metrics-server; `bridge "
        "rbac remote --metrics` prints either",
        join=True,
    ),
    Check(
        "BRG506",
        "The node's pods are accepted",
        "Pods on the node that the bridge does not create in the remote, with the reason of their "
        "condition cluster-bridge.io/Accepted, and pods of which a field was dropped or an update "
        "rejected, by their Events.",
        "see `kubectl describe pod`: the Events name the remedy",
    ),
    Check(
        "BRG507",
        "DaemonSets of home on the virtual node",
        "The DaemonSets of home whose pods tolerate the node's taints and select its labels, so "
        "that each has a pod on the node. With --daemonsets skip, and if the remote cannot run "
        "the pod's fields, the pod is skipped: nothing runs, and the DaemonSet counts it as "
        "available, so that rollouts on home's own nodes continue. The check needs the permission "
        "to list DaemonSets at home, which no Role of the bridge grants.",
        "exclude the DaemonSet from nodes with the label cluster-bridge.io/virtual-node by a node "
        "affinity, or change the fields that the remote cannot run",
    ),
)

#: By id, in order.
CHECKS: Mapping[str, Check] = {check.id: check for check in _CHECKS}
