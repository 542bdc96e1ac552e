"""`bridge join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridge.cli.options import CLUSTERS, HomeContext, HomeKubeconfig
from bridge.node.options import (
    parse_annotations,
    parse_labels,
    parse_limits,
    parse_node_selector,
    parse_taints,
)
from bridge.settings import (
    DEFAULT_TAINTS,
    DEFAULT_TEMPLATE,
    KUBELET_PORT,
    NAMESPACE_LINGER,
    JoinSettings,
    MetricsChoice,
    ServingCertificate,
    SettingsError,
    check_address,
    check_home_name,
    check_name,
    parse_home_api,
)
from sync.kube.kubeconfig import KubeconfigRef
from translators.policy import DaemonSets, Network, ServiceAccounts

#: Headings of the other options in --help.
NODE = "The node"
CAPACITY = "What the node offers"
WORKLOADS = "What runs on it"
KUBELET_API = "The kubelet API"


def join(
    *,
    kubeconfig: Annotated[
        Path,
        typer.Option(
            help="Kubeconfig of the remote cluster.", show_default=False, rich_help_panel=CLUSTERS
        ),
    ],
    context: Annotated[
        str | None,
        typer.Option(
            help="Context of that kubeconfig; its current one unless given.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the virtual node; from the remote's context unless given.",
            rich_help_panel=NODE,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Labels of the node, KEY=VALUE[,KEY=VALUE], beside those that all of the remote's "
            "nodes have in common. Those of the last join that are not given again go.",
            rich_help_panel=NODE,
        ),
    ] = None,
    annotations: Annotated[
        str | None, typer.Option(help="Annotations of the node, likewise.", rich_help_panel=NODE)
    ] = None,
    taints: Annotated[
        str,
        typer.Option(
            help="Taints of the node, KEY=VALUE:EFFECT[,...], or none. One that somebody removes "
            "stays removed until another is asked for.",
            rich_help_panel=NODE,
        ),
    ] = DEFAULT_TAINTS,
    node_selector: Annotated[
        str | None,
        typer.Option(
            help="KEY=VALUE[,KEY=VALUE]: the node stands for the remote's nodes with these labels, "
            "and its pods run on them; all of the remote's nodes unless given.",
            rich_help_panel=CAPACITY,
        ),
    ] = None,
    reserve: Annotated[
        str | None,
        typer.Option(
            help="What the remote keeps for itself of any resource: cpu=2,memory=4Gi.",
            rich_help_panel=CAPACITY,
        ),
    ] = None,
    share: Annotated[
        str,
        typer.Option(
            help="The part of what is left that the node offers, above 0 and at most 1.",
            rich_help_panel=CAPACITY,
        ),
    ] = "1",
    cpu: Annotated[
        str | None,
        typer.Option(
            help="The most CPU that the node offers, such as 16 or 500m.", rich_help_panel=CAPACITY
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The most memory that the node offers, such as 64Gi.", rich_help_panel=CAPACITY
        ),
    ] = None,
    pods: Annotated[
        int | None,
        typer.Option(help="The most pods that the node takes.", min=0, rich_help_panel=CAPACITY),
    ] = None,
    home_name: Annotated[
        str | None,
        typer.Option(
            help="What {home} stands for in the names of remote namespaces; from the identity of "
            "the home cluster unless given. Keep it the same from join to join.",
            rich_help_panel=WORKLOADS,
        ),
    ] = None,
    namespace_template: Annotated[
        str,
        typer.Option(
            help="Names of remote namespaces. '{namespace}' alone keeps home's names, and works "
            "in namespaces that the bridge makes or that were handed over to it.",
            rich_help_panel=WORKLOADS,
        ),
    ] = DEFAULT_TEMPLATE,
    namespace_linger: Annotated[
        float,
        typer.Option(
            help="Seconds that a remote namespace of the bridge's stays after its last pod.",
            min=0,
            rich_help_panel=WORKLOADS,
        ),
    ] = NAMESPACE_LINGER,
    network: Annotated[
        Network,
        typer.Option(
            help="flat: pods of both clusters reach each other by address, and Services lead to "
            "pods of both. none: they do not, and no address of one is told to the other.",
            rich_help_panel=WORKLOADS,
        ),
    ] = "flat",
    daemonsets: Annotated[
        DaemonSets,
        typer.Option(
            help="Pods of DaemonSets that are bound to the node: skip (they wait, and say why) or "
            "run (as any other pod).",
            rich_help_panel=WORKLOADS,
        ),
    ] = "skip",
    service_accounts: Annotated[
        ServiceAccounts,
        typer.Option(
            help="Identity of the pods at an API server: home (tokens of home's service accounts, "
            "bound to the pod), remote (the account of that name in the remote), or none.",
            rich_help_panel=WORKLOADS,
        ),
    ] = "home",
    home_api_address: Annotated[
        str | None,
        typer.Option(
            help="HOST[:PORT] at which pods in the remote reach home's API server; from home's "
            "kubeconfig unless given, or where that is on loopback from home's Service kubernetes.",
            rich_help_panel=WORKLOADS,
        ),
    ] = None,
    unschedulable_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which a pod that the remote's scheduler cannot place is Failed at "
            "home, so that its controller makes another elsewhere; it waits for ever unless given.",
            min=1,
            rich_help_panel=WORKLOADS,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="IP address at which home's API server reaches this process; the one that "
            "reaches home's API server unless given.",
            rich_help_panel=KUBELET_API,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            help="Port of the kubelet API (logs, exec, port-forward); 0 takes a free one.",
            min=0,
            max=65535,
            rich_help_panel=KUBELET_API,
        ),
    ] = KUBELET_PORT,
    serving_certificate: Annotated[
        ServingCertificate,
        typer.Option(
            help="Who signs the kubelet API's certificate: self-signed, or csr (home does, after "
            "somebody has approved a CertificateSigningRequest; self-signed until then). API "
            "servers with --kubelet-certificate-authority need the latter, or files.",
            rich_help_panel=KUBELET_API,
        ),
    ] = "self-signed",
    cert_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of this node's own in which a certificate of csr and its key are kept for "
            "the next join; in ~/.local/state/cluster-bridge unless given.",
            rich_help_panel=KUBELET_API,
        ),
    ] = None,
    tls_cert_file: Annotated[
        Path | None,
        typer.Option(
            help="Certificate of the kubelet API (PEM), read again when it changes; by "
            "--serving-certificate unless given.",
            rich_help_panel=KUBELET_API,
        ),
    ] = None,
    tls_private_key_file: Annotated[
        Path | None,
        typer.Option(help="Key of that certificate (PEM).", rich_help_panel=KUBELET_API),
    ] = None,
    anonymous_auth: Annotated[
        bool,
        typer.Option(
            "--anonymous-auth",
            help="Take callers of the kubelet API without a credential as system:anonymous; home's "
            "authorisation decides what they may. Without it they are refused.",
            rich_help_panel=KUBELET_API,
        ),
    ] = False,
    metrics: Annotated[
        MetricsChoice,
        typer.Option(
            help="Where to learn what pods use, for kubectl top and autoscalers: the remote's "
            "kubelets (get nodes/proxy), its metrics api (list pods.metrics.k8s.io), or none; auto "
            "takes the first that the credential may use.",
            rich_help_panel=KUBELET_API,
        ),
    ] = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all log lines.")] = False,
) -> None:
    """Make a remote cluster appear in the home cluster as one virtual node.

    Runs in the foreground until Ctrl-C. Workloads in the remote go on then; joining again takes
    them up as they are.
    """
    from bridge.cli.running import fail, run, step
    from bridge.observability.logging import to_terminal

    if (tls_cert_file is None) != (tls_private_key_file is None):
        raise fail("--tls-cert-file and --tls-private-key-file go together", code=2)
    if tls_cert_file is not None and serving_certificate != "self-signed":
        raise fail("--tls-cert-file and --serving-certificate exclude each other", code=2)
    if cert_dir is not None and serving_certificate != "csr":
        raise fail("--cert-dir is of use with --serving-certificate csr only", code=2)
    try:
        settings = JoinSettings(
            remote=KubeconfigRef(kubeconfig, context),
            home=KubeconfigRef(home_kubeconfig, home_context),
            name=check_name(name) if name is not None else None,
            home_name=check_home_name(home_name) if home_name is not None else None,
            address=check_address(address) if address is not None else None,
            port=port,
            template=namespace_template,
            network=network,
            labels=parse_labels(labels) if labels is not None else {},
            annotations=parse_annotations(annotations) if annotations is not None else {},
            taints=parse_taints(taints),
            daemonsets=daemonsets,
            namespace_linger=namespace_linger,
            certificate=tls_cert_file,
            key=tls_private_key_file,
            serving=serving_certificate,
            cert_dir=cert_dir,
            anonymous_auth=anonymous_auth,
            service_accounts=service_accounts,
            metrics=metrics,
            home_api=parse_home_api(home_api_address) if home_api_address is not None else None,
            limits=parse_limits(reserve=reserve, share=share, cpu=cpu, memory=memory, pods=pods),
            node_selector=parse_node_selector(node_selector) if node_selector is not None else {},
            unschedulable_timeout=unschedulable_timeout,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    to_terminal(verbose=verbose)
    from bridge import app

    run(lambda stop: app.join(settings, told=step, stop=stop))
    step("stopped; workloads in the remote go on")
