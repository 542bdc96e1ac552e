"""The checks: the id by which each is known for ever, what it means, and what to do.

The one source: findings (`bridge.checks.report`) and docs/reference/checks.md (`bridge.checks.reference_page`) are
made of it. An id is never used for something else; one that is given up leaves a gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Where each check has a section of its own.
DOCUMENT = "docs/reference/checks.md"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table."""

    id: str
    title: str
    """What is so where all is well."""
    means: str
    """What is looked at, and what follows where it is not so."""
    hint: str
    """What to do, unless the finding knows better."""

    @property
    def docs(self) -> str:
        """Its section in the documentation."""
        return f"{DOCUMENT}#{self.id.lower()}"


_CHECKS = (
    # -- reaching the two API servers ----------------------------------------------------------
    Check(
        "BRG101",
        "The API server answers",
        "The API server in the kubeconfig is asked for its version, from this machine. Without an "
        "answer nothing else can be asked of that cluster, and a bridge on this machine would see "
        "it as lost: pods go on, and nothing follows until it is back.",
        "see that the server in the kubeconfig is up and can be reached from here: "
        "`kubectl get --raw /readyz` with the same kubeconfig",
    ),
    Check(
        "BRG102",
        "The kubeconfig can be used",
        "The file is there, is a kubeconfig, has the context, and its credential plugin answers. "
        "Of a node that exists, the remote's kubeconfig is the one that the node remembers, or "
        "that of an installation at home where you may list Secrets; else name it, --kubeconfig. A "
        "Secret with an installation's labels that is elsewhere, or holds anything that the "
        "installer does not write, is ignored with a warning that names it.",
        "see `kubectl config view` with the same file; name another with --kubeconfig or "
        "--home-kubeconfig",
    ),
    Check(
        "BRG103",
        "The credential is accepted",
        "The API server knows who asks (no 401). A credential that has expired, was revoked or is "
        "of another cluster is refused; a running bridge then says so in the node's condition.",
        "get a new credential; a running bridge takes up what is in the kubeconfig by itself",
    ),
    Check(
        "BRG104",
        "The credential does not expire soon",
        "When the client certificate, or the token where it tells (`exp` of a JWT), ends. One that "
        "a plugin or a token file renews may be short; one that stands in the kubeconfig itself "
        "is warned of in its last 7 days.",
        "renew it in time; for a bridge that runs for long take a credential that renews itself",
    ),
    Check(
        "BRG105",
        "The API server's certificate is verified",
        "The server proves that it is the one that the kubeconfig means. With "
        "insecure-skip-tls-verify, or over plain http, anybody between here and there can be it, "
        "and get the credential and all Secrets that pods need.",
        "put the cluster's CA into certificate-authority-data of the kubeconfig",
    ),
    Check(
        "BRG106",
        "The version is one that the bridge works with",
        "The remote needs Kubernetes 1.27 or newer: a pod that must not run twice is made there "
        "with a scheduling gate, and older servers drop that field without a word, so that such a "
        "pod could start before home knows. Nothing older than 1.34 is tested.",
        "upgrade that cluster",
    ),
    Check(
        "BRG107",
        "The versions of home and remote go together",
        "The virtual node has the version of the remote's kubelets. As with any node, home "
        "supports one that is not newer than its own API server and at most three minor versions "
        "older. Outside of that most things work, and nobody has tried all of them.",
        "upgrade the older cluster",
    ),
    Check(
        "BRG108",
        "The clocks agree",
        "This machine's clock and those of both API servers, by the Date of their answers. The "
        "bridge compares no two clocks to decide who serves, but certificates and tokens begin and "
        "end by them: a certificate made here is not good yet where the clock is an hour behind.",
        "let all machines follow a time server (chrony, systemd-timesyncd)",
    ),
    Check(
        "BRG109",
        "Home and remote are two clusters",
        "A cluster is known by the UID of its namespace kube-system. One that is joined to itself "
        "would send its pods round in a circle.",
        "name another cluster with --kubeconfig or --context",
    ),
    # -- rights --------------------------------------------------------------------------------
    Check(
        "BRG201",
        "The credential may do at home what the bridge does",
        "Each right of the bridge's table is asked for (SelfSubjectAccessReview), and those that "
        "are missing are named. Asked about is the credential of the kubeconfig that is used here: "
        "a bridge that runs with another one may have what this one has not.",
        "`bridge rbac home` prints what to apply at home",
    ),
    Check(
        "BRG202",
        "The credential may do in the remote what the bridge does",
        "As BRG201, in the remote.",
        "`bridge rbac remote` prints what to apply in the remote",
    ),
    Check(
        "BRG203",
        "Pods of any of home's namespaces may come",
        "Whether the credential may read ConfigMaps, Secrets and Services in all of home's "
        "namespaces. It need not: pods of a namespace that was not opened wait, and say so.",
        "`bridge rbac namespace NAME` prints what opens one",
    ),
    # -- the node ------------------------------------------------------------------------------
    Check(
        "BRG301",
        "The node's name is free, or the virtual node's",
        "A Node of that name that is not a bridge's belongs to somebody else, a real machine "
        "most likely, and is never touched: the join ends.",
        "take another name with --name",
    ),
    Check(
        "BRG302",
        "The node is Ready",
        "The node's own word on itself. Its reason says what is the matter: RemoteUnreachable, "
        "RemoteCredentialRefused, NoUsableNodes and the like are a bridge's that runs; "
        "NodeStatusUnknown is home's, of a node for which nobody speaks any more.",
        "see the reason; docs/explanation/failure-modes.md says what each means and what heals it",
    ),
    Check(
        "BRG303",
        "A bridge serves the node",
        "Whether the lease by which the node's bridges elect one is renewed, seen over some "
        "seconds and by nobody's wall clock. Without a bridge, pods in the remote go on, and "
        "nothing follows; home calls the node NotReady and evicts its pods after a while.",
        "run the same `bridge join` again; it takes up what runs",
    ),
    Check(
        "BRG304",
        "The running bridge has this version",
        "The version that the node tells (osImage) against that of this command.",
        "restart the older of the two with the newer version; pods go on meanwhile",
    ),
    Check(
        "BRG305",
        "The node stands for this remote",
        "The node remembers the identity of the cluster that it stands for. Another cluster behind "
        "the same kubeconfig (made anew, or a context that was changed) has none of the node's "
        "pods.",
        "name the right cluster with --kubeconfig and --context; if the old one is gone for ever, "
        "`bridge leave --force` and join the new one",
    ),
    Check(
        "BRG306",
        "The claim in the remote is this home's",
        "The Lease in the remote's kube-node-lease by which the bridge that serves the node claims "
        "its objects there, compared with what home has recorded of it. They differ where another "
        "home with the same identity, restored from a backup or cloned, serves the node: this "
        "home's bridge ends then, before it writes anything.",
        "see docs/how-to/restore-home.md: stop the bridge of one of the two homes, or take "
        "over on purpose "
        "with --take-over-claim",
    ),
    # -- the network ---------------------------------------------------------------------------
    Check(
        "BRG401",
        "Home's API server reaches the kubelet API",
        "kubectl logs, exec and port-forward go from home's API server to the bridge's address and "
        "port. Of a node that exists this is tried through that API server "
        "(`/api/v1/nodes/NAME/proxy/healthz`). Before a join there is no node to try it with: only "
        "the address is told. An API server with --kubelet-certificate-authority verifies the "
        "certificate: what it says of one that it rejects is in the finding.",
        "see that home's API server can reach that address and port (firewalls, NAT, an address of "
        "another network); join with --address and --port",
    ),
    Check(
        "BRG402",
        "The serving certificate is valid",
        "From when to when the kubelet API's certificate is good: that of the running bridge, as a "
        "connection from here shows it, or before a join that of --tls-cert-file. Home's API "
        "server refuses one that has ended, if it checks it.",
        "replace the files; a running bridge reads them again by itself",
    ),
    Check(
        "BRG403",
        "The serving certificate has the node's names",
        "An API server that checks certificates (--kubelet-certificate-authority) wants the "
        "address that it dials, which is the node's, among the names.",
        "issue a certificate for the node's name and address, or join with --serving-certificate "
        "csr",
    ),
    Check(
        "BRG404",
        "Somebody else vouches for the serving certificate",
        "One that the bridge signed itself does for API servers that do not check, which is the "
        "default. Those with --kubelet-certificate-authority refuse it: an error where BRG401 "
        "shows that home's API server is one of them.",
        "where home's API server checks, join with --serving-certificate csr or --tls-cert-file",
    ),
    Check(
        "BRG405",
        "Pods of the remote can be reached",
        "With --network flat pods of both clusters reach each other by address. A connection is "
        "tried from this machine to running pods of the remote, at a port that they name or else "
        "at 80. A refusal is an answer of the pod's machine, or of a firewall before it; silence "
        "is no way. It is tried from here: home's own pods may have another way.",
        "route the pod networks between the clusters, or join with --network none",
    ),
    Check(
        "BRG406",
        "The kubelet API's port is free",
        "Whether a join could listen on its address and port on this machine.",
        "stop what listens there, or take another with --port",
    ),
    Check(
        "BRG407",
        "Pods find home's API server",
        "With --service-accounts home pods in the remote dial home's API server by host and port, "
        "over TLS. That is the server in home's kubeconfig. Where pods cannot use that server (it "
        "is on loopback, has a path as behind Rancher, is plain http, or the kubeconfig has a "
        "proxy-url or tls-server-name), it is an endpoint of home's Service kubernetes. Whether "
        "the remote's nodes reach the address is not tested.",
        "name it with --home-api-address HOST:PORT, or join with --service-accounts none",
    ),
    Check(
        "BRG408",
        "Pods of headless Services can have addresses",
        "With --relay-cidr this machine has to take addresses that nobody else has: it may change "
        "its routes (CAP_NET_ADMIN), has no route to that range, and home has no pods, machines or "
        "Services there, as far as it shows them. "
        "Whether home's machines route the range to this one does not show from here.",
        "take a range that is nobody's, and run the bridge with CAP_NET_ADMIN on a machine",
    ),
    # -- what runs -----------------------------------------------------------------------------
    Check(
        "BRG501",
        "The remote has nodes that take pods",
        "What the virtual node offers is the sum of the remote's nodes that are Ready, not "
        "cordoned and not tainted.",
        "see `kubectl get nodes` in the remote",
    ),
    Check(
        "BRG502",
        "No quota of the remote is used up",
        "ResourceQuotas of the remote's namespaces that stand for home's. Pods that would exceed "
        "one are refused there and wait. Quotas with scopes do not bind every pod and are left "
        "out.",
        "raise the quota in the remote, or end pods of that namespace",
    ),
    Check(
        "BRG503",
        "The remote's namespaces are not somebody else's",
        "A namespace of the remote that has the name of one that the bridge needs, and was neither "
        "made by it nor handed over, is never used: pods wait with the reason RemoteClash. The "
        "same is told of pods, ConfigMaps and Secrets of others that are in the way.",
        "hand the namespace over (annotation cluster-bridge.io/accepts-home) and join with "
        "--accept-namespaces, rename what is in the way, or join with another "
        "--namespace-template",
    ),
    Check(
        "BRG504",
        "Nothing is left over in the remote",
        "Objects with a bridge's labels for which there is no virtual node at this home, or that "
        "are another home's. Whether a bridge of another home still looks after them, the remote "
        "cannot tell.",
        "`bridge garbage --kubeconfig REMOTE` lists them, and with --remove removes those of one "
        "home",
    ),
    Check(
        "BRG505",
        "What pods use is known",
        "kubectl top and autoscalers know the usage of the node's pods from the remote's kubelets, "
        "or from its metrics API. Without either the rest works.",
        "grant get nodes/proxy (exact), or list pods.metrics.k8s.io with a metrics-server; "
        "`bridge rbac remote --metrics` prints either",
    ),
    Check(
        "BRG506",
        "The node's pods are accepted",
        "Pods on the node that are not made in the remote, with the reason that their condition "
        "cluster-bridge.io/Accepted gives, and those of which something was dropped or refused, by "
        "their Events.",
        "see `kubectl describe pod`: each says what to do",
    ),
    Check(
        "BRG507",
        "DaemonSets of home on the virtual node",
        "The DaemonSets of home whose pods tolerate the node's taints and select its labels, which "
        "therefore have a pod on it, and what becomes of that pod. Under --daemonsets skip, and "
        "where its fields cannot be carried, it is skipped: nothing of it runs, and the DaemonSet "
        "counts it as available, so that its rollouts on home's own nodes continue. The check "
        "needs to list DaemonSets at home, which no Role of the bridge grants: without it, it is "
        "not made.",
        "exclude the DaemonSet from nodes with the label cluster-bridge.io/virtual-node by a node "
        "affinity, or change the fields that the remote cannot take",
    ),
)

#: By id, in order.
CHECKS: Mapping[str, Check] = {check.id: check for check in _CHECKS}
