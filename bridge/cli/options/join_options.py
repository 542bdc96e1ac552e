"""The options of `bridge join`, declared once in the table `JOIN`, and those of its process.

`bridge join`, `bridge install`, `bridge upgrade` and `bridge render` take their flags and
environment variables from these tables, the file of `bridge join --file` its keys, `bridge rbac`
and `bridge check --pre` some options, and docs/reference/cli.md its rows. `INSTALL` has a
module of its own. To add an option:

1. Add a field with a default to `JoinSettings` (bridge/base/join_settings.py).
2. Add an `Option` to `JOIN`: ``name``, ``help``, ``group``; ``kind`` unless it is a text; ``parse``
   if the text has to be checked; ``field`` if the field is called otherwise; ``in_cluster`` if an
   installed bridge cannot have it or the installation's objects depend on it.
3. Run `python -m e2e.docs write`.

Rules that concern several options are in `join_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge.base.join_settings import (
    DEFAULT_TAINTS,
    DEFAULT_TEMPLATE,
    KUBELET_PORT,
    RELAY_IDLE,
    HomeIdentityChoice,
    JoinSettings,
    LogFormat,
    MetricsChoice,
    NetworkChoice,
    RelaySettings,
    ServingCertificate,
    SettingsError,
    StorageChoice,
    check_address,
    check_claim,
    check_home_name,
    check_name,
    check_relay_address,
    check_relay_cidr,
    check_secret_name,
    parse_home_api,
    parse_namespaces,
    parse_pod_metadata,
    parse_ports,
    parse_remote_namespaces,
    parse_remote_pod_cidrs,
)
from bridge.cli.commands.completion import complete_contexts, complete_home_contexts
from bridge.cli.options.common_options import CLUSTERS
from bridge.cli.options.option_declaration import ABSENT, CONSUMED, Option
from bridge.cli.options.value_parsing import Duration, format_duration
from bridge.node.node_option_parsing import (
    parse_annotations,
    parse_labels,
    parse_limits,
    parse_selector,
    parse_taints,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.pod_security import PodSecurityLevel
from translators.translation_options import ControlPlaneNodes, DaemonSets, ServiceAccounts

NODE = "Virtual node"
CAPACITY = "Capacity"
WORKLOADS = "Workloads"
FORWARDING = "Connections between the clusters (--network relay)"
PROTECTING = "Protection of the remote"
KUBELET_API = "Kubelet API"
OUTPUT = "Logs"

#: Each sets a field of `JoinSettings`.
JOIN: tuple[Option, ...] = (
    Option(
        "kubeconfig",
        "Kubeconfig of the remote cluster.",
        CLUSTERS,
        kind=Path,
        required=True,
        field="remote.path",
        in_cluster=CONSUMED,
    ),
    Option(
        "context",
        "Context of that kubeconfig. Default: its current context.",
        CLUSTERS,
        autocompletion=complete_contexts,
        field="remote.context",
        in_cluster=CONSUMED,
    ),
    Option(
        "home-kubeconfig",
        "Kubeconfig of the home cluster. Default: as for kubectl.",
        CLUSTERS,
        kind=Path,
        field="home.path",
        in_cluster=CONSUMED,
    ),
    Option(
        "home-context",
        "Context of the home kubeconfig. Default: its current context.",
        CLUSTERS,
        autocompletion=complete_home_contexts,
        field="home.context",
        in_cluster=CONSUMED,
    ),
    Option(
        "home-identity",
        "Identity of the bridge at home. node: the node, by a certificate that home signs once an "
        "administrator approves its request; the credential of the kubeconfig then needs little. "
        "service-account: the credential of the kubeconfig alone. auto: node if the certificate is "
        "stored or this command may approve its request, or if the credential may not act in place "
        "of the node.",
        CLUSTERS,
        kind=HomeIdentityChoice,
        default="auto",
        in_cluster=CONSUMED,
    ),
    Option(
        "state-secret",
        "Secret in the pod's namespace, for a bridge in the home cluster: its replicas share the "
        "certificate of the node's identity and the remote's renewed token there. Default: files.",
        CLUSTERS,
        metavar="NAME",
        parse=check_secret_name,
        in_cluster=ABSENT,
    ),
    Option(
        "home-bootstrap-kubeconfig",
        "Kubeconfig of home by which the bridge requests the node's certificate where it has none, "
        "such as one with a bootstrap token; not used afterwards. Default: home's kubeconfig.",
        CLUSTERS,
        kind=Path,
        field="home_bootstrap",
        in_cluster=ABSENT,
    ),
    Option(
        "name",
        "Name of the virtual node. Default: from the remote's context.",
        NODE,
        parse=check_name,
        in_cluster=CONSUMED,
    ),
    Option(
        "take-over-claim",
        "Take the virtual node over from the bridge of another home cluster with the same identity "
        "(restored from a backup, or cloned). ID is in the error of the join that was refused. The "
        "bridge then deletes remote pods that this home does not have. No effect afterwards.",
        NODE,
        metavar="ID",
        parse=check_claim,
    ),
    Option(
        "labels",
        "Labels of the virtual node, KEY=VALUE[,KEY=VALUE], beside those that all remote nodes "
        "share. Labels of an earlier join that are missing here are removed.",
        NODE,
        form="map",
        parse=parse_labels,
    ),
    Option(
        "annotations",
        "Annotations of the virtual node, KEY=VALUE[,KEY=VALUE], as for labels.",
        NODE,
        form="map",
        parse=parse_annotations,
    ),
    Option(
        "taints",
        "Taints of the virtual node, KEY=VALUE:EFFECT[,...], or none. A taint that a user removes "
        "stays removed until this option changes.",
        NODE,
        default=DEFAULT_TAINTS,
        form="list",
        parse=parse_taints,
    ),
    Option(
        "node-selector",
        "Labels of remote nodes, KEY=VALUE[,KEY=VALUE]: only these nodes count as capacity, and "
        "pods run on them. Default: all remote nodes.",
        CAPACITY,
        form="map",
        parse=parse_selector,
    ),
    Option(
        "reserve",
        "Resources that the remote keeps for itself, such as cpu=2,memory=4Gi.",
        CAPACITY,
        form="map",
        field="limits.reserve",
    ),
    Option(
        "share",
        "Share of the remaining resources that the virtual node offers, above 0 and at most 1.",
        CAPACITY,
        default="1",
        field="limits.share",
    ),
    Option(
        "limits",
        "Maximum CPU, memory and number of pods that the virtual node offers, such as "
        "cpu=16,memory=64Gi,pods=110, or some of these. Its capacity if the bridge may not read "
        "the remote's nodes.",
        CAPACITY,
        form="map",
        field="limits.caps",
    ),
    Option(
        "elastic",
        "Resources that the remote has once its autoscaler has added nodes, "
        "RESOURCE=AMOUNT[,RESOURCE=AMOUNT], such as cpu=64,memory=256Gi,nvidia.com/gpu=8: the "
        "virtual node offers at least these, even with no such node now. Pods wait in the remote "
        "until its autoscaler has added a node for them, or for --unschedulable-timeout.",
        CAPACITY,
        form="map",
        field="limits.elastic",
    ),
    Option(
        "home-name",
        "Value of {home} in the names of remote namespaces. Default: from the home cluster's "
        "identity. Keep it the same in every join.",
        WORKLOADS,
        parse=check_home_name,
    ),
    Option(
        "namespace-template",
        "Names of remote namespaces. '{namespace}' alone keeps home's names; pods then run only in "
        "namespaces that the bridge created or that were handed over to it.",
        WORKLOADS,
        default=DEFAULT_TEMPLATE,
        field="template",
    ),
    Option(
        "accept-namespaces",
        "Remote namespaces to use once their administrators hand them over, NAME[,NAME], where * "
        "matches any characters. Default: only namespaces that the bridge created.",
        WORKLOADS,
        metavar="NAMES",
        form="list",
        parse=parse_namespaces,
    ),
    Option(
        "remote-namespaces",
        "Remote namespaces that its administrator prepared, NAME[,NAME]: the bridge works in these "
        "alone and creates none, so that Roles in them are enough. Default: any.",
        WORKLOADS,
        metavar="NAMES",
        form="list",
        parse=parse_remote_namespaces,
    ),
    Option(
        "network",
        "flat: pods of both clusters reach each other by IP, and Services have endpoints of both. "
        "relay: they do not, and the bridge forwards connections from home's Services to remote "
        "pods. none: neither. auto: flat if remote pods accept connections from this machine, else "
        "relay; decided and recorded when the node is first joined.",
        WORKLOADS,
        kind=NetworkChoice,
        default="auto",
        in_cluster=CONSUMED,
    ),
    Option(
        "remote-pod-cidr",
        "Networks of the remote's pods, NETWORK[,NETWORK]: with --network flat, other pod IPs that "
        "the remote reports are not copied to home. Default: any that are not special addresses or "
        "home's own.",
        WORKLOADS,
        metavar="NETWORKS",
        form="list",
        parse=parse_remote_pod_cidrs,
        field="remote_pod_cidrs",
    ),
    Option(
        "relay-address",
        "IP address at which nodes and pods of the home cluster reach the bridge, and on which it "
        "listens for them. Default: as --address.",
        FORWARDING,
        parse=check_relay_address,
        field="relay.address",
        in_cluster=ABSENT,
    ),
    Option(
        "relay-ports",
        "Ports to listen on, FIRST-LAST, for firewalls. Default: any free port. Each port of a "
        "Service takes one per ready pod, up to 16.",
        FORWARDING,
        parse=parse_ports,
        field="relay.ports",
    ),
    Option(
        "relay-cidr",
        "IP range of the home cluster, such as 10.77.0.0/24, for pods of headless Services. Each "
        "such pod has an IP on this machine, to which the home cluster's nodes have to route the "
        "range. Requires CAP_NET_ADMIN. Default: headless Services have no remote endpoints.",
        FORWARDING,
        metavar="CIDR",
        parse=check_relay_cidr,
        field="relay.cidr",
        in_cluster=ABSENT,
    ),
    Option(
        "relay-idle-timeout",
        "Time without traffic after which a connection is reset.",
        FORWARDING,
        kind=Duration(1),
        default=format_duration(RELAY_IDLE),
        field="relay.idle",
    ),
    Option(
        "relay-image",
        "Image of the bridge for relay agents, pods in the remote through which remote pods reach "
        "Services of the home cluster. The bridge must reach its pods by IP, as it does inside of "
        "it. Default: no relay agents; nothing of the bridge runs in the remote.",
        FORWARDING,
        field="relay.image",
    ),
    Option(
        "storage",
        "PersistentVolumeClaims of home. provision: those of StorageClasses whose provisioner is "
        "volumes.cluster-bridge.io get volumes in the remote, and pods use them. none: pods use "
        "the remote's PersistentVolumeClaims of the same names. auto: provision if the permissions "
        "are granted, else none; recorded on the node.",
        WORKLOADS,
        kind=StorageChoice,
        default="auto",
        in_cluster=CONSUMED,
    ),
    Option(
        "daemonsets",
        "Pods of DaemonSets that are bound to the virtual node. skip: they do not run, and count "
        "as available. run: they run like other pods.",
        WORKLOADS,
        kind=DaemonSets,
        default="skip",
    ),
    Option(
        "pod-security",
        "Loosest Pod Security level of remote namespaces that the bridge creates. Each has the "
        "level that the home namespace states (label pod-security.kubernetes.io/enforce), or "
        "baseline.",
        PROTECTING,
        kind=PodSecurityLevel,
        default="privileged",
    ),
    Option(
        "control-plane-nodes",
        "deny: pods do not tolerate the taints of the remote's control plane nodes, even if they "
        "tolerate every taint in the home cluster. allow: their tolerations are kept.",
        PROTECTING,
        kind=ControlPlaneNodes,
        default="deny",
    ),
    Option(
        "pod-metadata",
        "Labels and annotations of pods to drop or to keep, PATTERN=drop or PATTERN=keep[,...], "
        "where * matches any characters; keep wins. Default: those are dropped that act on the "
        "remote's nodes, networks or identities, and all others are kept.",
        PROTECTING,
        metavar="PATTERNS",
        form="map",
        parse=parse_pod_metadata,
    ),
    Option(
        "service-accounts",
        "Identity of pods at an API server. home: tokens of home's ServiceAccounts, bound to the "
        "pod. remote: the remote's ServiceAccount of the same name. none: no token.",
        WORKLOADS,
        kind=ServiceAccounts,
        default="home",
        in_cluster=CONSUMED,
    ),
    Option(
        "home-api-address",
        "HOST[:PORT] at which remote pods reach home's API server. Default: the server of the home "
        "kubeconfig, or an endpoint of home's Service kubernetes if pods cannot use that server "
        "(loopback, a path, plain http, a proxy, tls-server-name).",
        WORKLOADS,
        parse=parse_home_api,
        field="home_api",
    ),
    Option(
        "unschedulable-timeout",
        "Time after which a pod that the remote's scheduler cannot place becomes Failed, "
        "so that its controller replaces it. Default: never; with --elastic, 15 minutes.",
        WORKLOADS,
        kind=Duration(1),
    ),
    Option(
        "address",
        "IP address at which home's API server reaches the bridge. Default: the address that this "
        "machine uses towards home's API server.",
        KUBELET_API,
        parse=check_address,
        in_cluster=ABSENT,
    ),
    Option(
        "port",
        "Port of the kubelet API (logs, exec, port-forward); 0 selects a free port.",
        KUBELET_API,
        kind=int,
        minimum=0,
        maximum=65535,
        default=KUBELET_PORT,
        in_cluster=CONSUMED,
    ),
    Option(
        "serving-certificate",
        "Signer of the kubelet API's certificate. auto: home if its API server verifies the "
        "certificate (--kubelet-certificate-authority), else the bridge. self-signed: the bridge. "
        "csr: home. A certificate of home needs the approval of a CertificateSigningRequest; the "
        "bridge is self-signed until then.",
        KUBELET_API,
        kind=ServingCertificate,
        default="auto",
        field="serving",
        in_cluster=CONSUMED,
    ),
    Option(
        "cert-dir",
        "Directory in which the bridge stores a certificate signed by home and its key; one per "
        "virtual node. Default: in ~/.local/state/cluster-bridge.",
        KUBELET_API,
        kind=Path,
        in_cluster=ABSENT,
    ),
    Option(
        "tls-cert-file",
        "Certificate of the kubelet API (PEM), reloaded when it changes. Default: by "
        "--serving-certificate.",
        KUBELET_API,
        kind=Path,
        field="certificate",
        in_cluster=ABSENT,
    ),
    Option(
        "tls-private-key-file",
        "Private key of --tls-cert-file (PEM).",
        KUBELET_API,
        kind=Path,
        field="key",
        in_cluster=ABSENT,
    ),
    Option(
        "metrics",
        "Source of resource metrics for kubectl top and autoscalers. kubelets: the remote's "
        "kubelets (needs get nodes/proxy). api: its metrics API (needs list pods.metrics.k8s.io). "
        "none: no metrics. auto: the first of these that the credential permits.",
        KUBELET_API,
        kind=MetricsChoice,
        default="auto",
    ),
    Option(
        "health-port",
        "Port of /livez and /readyz over plain HTTP for probes, on --address or else on all "
        "addresses. With it, a bridge that starts while a cluster is unreachable waits for the "
        "cluster. Default: no port.",
        KUBELET_API,
        kind=int,
        minimum=1,
        maximum=65535,
        in_cluster=ABSENT,
    ),
)

#: Of the process.
PROCESS: tuple[Option, ...] = (
    Option("verbose", "Show all log lines.", OUTPUT, kind=bool, default=False, short="-v"),
    Option(
        "log-format",
        "Format of log lines: console for people, json for log collectors.",
        OUTPUT,
        kind=LogFormat,
        default="console",
    ),
)


def join_settings(values: Mapping[str, Any]) -> JoinSettings:
    """The settings from a value for each option of `JOIN`, by parameter name; None is the default.

    Raises SettingsError if a value, or a combination of options, is invalid.
    """
    _check_combinations(values)
    parts: dict[str, dict[str, Any]] = {it: {} for it in ("", "remote", "home", "relay", "limits")}
    for option in JOIN:
        value = values[option.parameter]
        if value is not None:
            part, _, field = (option.field or option.parameter).rpartition(".")
            parts[part][field] = option.parse(value) if option.parse else value
    limits: dict[str, Any] = dict.fromkeys(("reserve", "caps", "elastic")) | parts["limits"]
    return JoinSettings(
        remote=KubeconfigRef(**parts["remote"]),
        home=KubeconfigRef(**parts["home"]),
        relay=RelaySettings(**parts["relay"]),
        limits=parse_limits(**limits),
        **parts[""],
    )


def _check_combinations(values: Mapping[str, Any]) -> None:
    certificate, serving = values["tls_cert_file"], values["serving_certificate"]
    if (certificate is None) != (values["tls_private_key_file"] is None):
        raise SettingsError("--tls-cert-file and --tls-private-key-file require each other")
    if certificate is not None and serving != "auto":
        raise SettingsError("--tls-cert-file and --serving-certificate exclude each other")
    if values["cert_dir"] is not None and serving == "self-signed":
        raise SettingsError("--cert-dir and --serving-certificate self-signed exclude each other")
    for option in ("relay_image", "relay_cidr"):
        if values[option] and values["network"] not in ("relay", "auto"):
            flag = f"--{option.replace('_', '-')}"
            raise SettingsError(f"{flag} requires --network relay or auto, not {values['network']}")
