"""`bridge join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridge.base.settings import (
    DEFAULT_TAINTS,
    DEFAULT_TEMPLATE,
    KUBELET_PORT,
    NAMESPACE_LINGER,
    MetricsChoice,
    NetworkChoice,
    RelaySettings,
    ServingCertificate,
    SettingsError,
)
from bridge.cli.join_settings import join_settings
from bridge.cli.shared_options import (
    CLUSTERS,
    HomeContext,
    HomeKubeconfig,
    LogFormatOption,
    check_traces,
)
from translators.translation_policy import DaemonSets, ServiceAccounts

#: Headings of the other options in --help.
NODE = "The node"
CAPACITY = "What the node offers"
WORKLOADS = "What runs on it"
KUBELET_API = "The kubelet API"
RELAY = "Connections that the bridge carries (--network relay)"
_RELAY = RelaySettings()
INSTALL = "A bridge that runs in home's cluster"
#: In the context of a command that prints the installation, and does not install (`bridge render`).
PRINTS = f"{__name__}.prints"


def join(  # one option after the other
    ctx: typer.Context,
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
    take_over_claim: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Take the node over from the bridge of another home with this identity (restored "
            "from a backup, or cloned), by the id that a refused join shows. Pods in the remote "
            "that this home does not know are then deleted. Of no effect afterwards.",
            show_default=False,
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
    accept_namespaces: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Remote namespaces to use when their administrators hand them over, "
            "NAME[,NAME]; * stands for any characters. Without it none is used that the bridge "
            "has not created.",
            rich_help_panel=WORKLOADS,
        ),
    ] = None,
    namespace_linger: Annotated[
        float,
        typer.Option(
            help="Seconds that a remote namespace of the bridge's, and what was copied to it, "
            "stay after the last pod that needs them.",
            min=0,
            rich_help_panel=WORKLOADS,
        ),
    ] = NAMESPACE_LINGER,
    network: Annotated[
        NetworkChoice,
        typer.Option(
            help="flat: pods of both clusters reach each other by address, and Services lead to "
            "pods of both. relay: they do not, and the bridge carries connections from home's "
            "Services to pods in the remote. none: neither. auto: flat where pods of the remote "
            "answer from here, else relay.",
            rich_help_panel=WORKLOADS,
        ),
    ] = "flat",
    relay_address: Annotated[
        str | None,
        typer.Option(
            help="IP address at which home's machines and pods reach this process, and where it "
            "listens for them; that of the node (--address) unless given.",
            rich_help_panel=RELAY,
        ),
    ] = None,
    relay_ports: Annotated[
        str | None,
        typer.Option(
            help="FIRST-LAST of the ports that it may listen on, for firewalls; any that is free "
            "unless given. Each port of a Service takes one for each ready pod, up to 16.",
            rich_help_panel=RELAY,
        ),
    ] = None,
    relay_cidr: Annotated[
        str | None,
        typer.Option(
            metavar="CIDR",
            help="Addresses at home, such as 10.77.0.0/24, for pods behind headless Services: each "
            "has one on this machine, where home's machines have to route them. Takes "
            "CAP_NET_ADMIN. Without it such Services lead to no pod in the remote.",
            rich_help_panel=RELAY,
        ),
    ] = None,
    relay_connections: Annotated[
        int,
        typer.Option(help="The most connections at once.", min=1, rich_help_panel=RELAY),
    ] = _RELAY.connections,
    relay_service_connections: Annotated[
        int,
        typer.Option(
            help="The most connections of one Service at once.", min=1, rich_help_panel=RELAY
        ),
    ] = _RELAY.per_service,
    relay_rate: Annotated[
        float,
        typer.Option(
            help="The most connections that are begun a second; what comes faster waits for some "
            "seconds, Services in turn, and is refused then.",
            min=1,
            rich_help_panel=RELAY,
        ),
    ] = _RELAY.rate,
    relay_service_rate: Annotated[
        float,
        typer.Option(
            help="The most connections of one Service that are begun a second.",
            min=1,
            rich_help_panel=RELAY,
        ),
    ] = _RELAY.service_rate,
    relay_idle_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds without a byte either way after which a connection is closed.",
            min=1,
            rich_help_panel=RELAY,
        ),
    ] = _RELAY.idle,
    relay_image: Annotated[
        str | None,
        typer.Option(
            help="The bridge's image, for pods of the bridge's own in the remote: with them pods "
            "there reach home's pods through Services, too. The bridge itself has to reach home's "
            "pods by their addresses, as it does in home's cluster. Nothing of the bridge's runs "
            "in the remote unless given.",
            rich_help_panel=RELAY,
        ),
    ] = None,
    daemonsets: Annotated[
        DaemonSets,
        typer.Option(
            help="Pods of DaemonSets that are bound to the node: skip (nothing runs; they count as "
            "available) or run (as any other pod).",
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
            help="HOST[:PORT] at which pods in the remote reach home's API server. Default: the "
            "server of home's kubeconfig, or an endpoint of home's Service kubernetes where pods "
            "cannot use that server (loopback, a path, plain http, a proxy, tls-server-name).",
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
    health_port: Annotated[
        int | None,
        typer.Option(
            help="Port of /livez and /readyz over plain HTTP, for probes, at --address or else at "
            "all addresses; nothing listens unless given. With it a bridge that is started while a "
            "cluster is away waits for it.",
            min=1,
            max=65535,
            rich_help_panel=KUBELET_API,
        ),
    ] = None,
    in_cluster: Annotated[
        bool,
        typer.Option(
            "--in-cluster",
            help="Install the bridge in home's cluster, with these options, and wait until it "
            "serves the node; again to change something.",
            rich_help_panel=INSTALL,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With --in-cluster: ask home what that would change, and change nothing.",
            rich_help_panel=INSTALL,
        ),
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(
            help="The bridge's image; cluster-bridge of this version unless given.",
            rich_help_panel=INSTALL,
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(help="Where it is installed; made if need be.", rich_help_panel=INSTALL),
    ] = "cluster-bridge",
    replicas: Annotated[
        int,
        typer.Option(
            help="How many: one serves the node, the others stand by.",
            min=1,
            rich_help_panel=INSTALL,
        ),
    ] = 2,
    bind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="A namespace whose pods may run in the remote; may be given several times. More "
            "can be bound later: bridge rbac namespace.",
            show_default=False,
            rich_help_panel=INSTALL,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            help="Pods of every namespace may: the bridge can read all Secrets of home, and be any "
            "service account.",
            rich_help_panel=INSTALL,
        ),
    ] = False,
    offload_webhook: Annotated[
        bool,
        typer.Option(
            "--offload-webhook",
            help="Install, too, what changes the pods of offloaded namespaces (bridge offload) "
            "where home's API server cannot do it itself, with as many replicas.",
            rich_help_panel=INSTALL,
        ),
    ] = False,
    relay_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE|NETWORK",
            help="Who may connect to the ports that a relay listens on, by a NetworkPolicy: pods "
            "of this namespace, or a network such as 10.0.0.0/16; may be given several times. Pods "
            "of all namespaces unless given.",
            show_default=False,
            rich_help_panel=INSTALL,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            help="The longest wait for the node to be Ready, in seconds.",
            min=1,
            rich_help_panel=INSTALL,
        ),
    ] = 180.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all log lines.")] = False,
    log_format: LogFormatOption = "console",
    traces: Annotated[
        str | None,
        typer.Option(
            help="URL of an OpenTelemetry collector (OTLP over HTTP) that takes traces; as "
            "OTEL_EXPORTER_OTLP_ENDPOINT unless given. Without either there are none."
        ),
    ] = None,
) -> None:
    """Make a remote cluster appear in the home cluster as one virtual node.

    Runs in the foreground until Ctrl-C. Workloads in the remote go on then; joining again takes
    them up as they are. A second bridge of the same node stands by, and takes over. With
    --in-cluster it runs in home's cluster instead (bridge render prints what that takes).
    """
    from bridge.cli.passed_options import FOR_INSTALL, flag, is_given, passed_on
    from bridge.cli.process_handover import Asked, Shown, begin
    from bridge.cli.runner import fail

    try:
        settings = join_settings(
            kubeconfig=kubeconfig,
            context=context,
            home_kubeconfig=home_kubeconfig,
            home_context=home_context,
            name=name,
            labels=labels,
            annotations=annotations,
            taints=taints,
            node_selector=node_selector,
            reserve=reserve,
            share=share,
            cpu=cpu,
            memory=memory,
            pods=pods,
            home_name=home_name,
            namespace_template=namespace_template,
            accept_namespaces=accept_namespaces,
            namespace_linger=namespace_linger,
            network=network,
            relay_address=relay_address,
            relay_ports=relay_ports,
            relay_cidr=relay_cidr,
            relay_connections=relay_connections,
            relay_service_connections=relay_service_connections,
            relay_rate=relay_rate,
            relay_service_rate=relay_service_rate,
            relay_idle_timeout=relay_idle_timeout,
            relay_image=relay_image,
            daemonsets=daemonsets,
            service_accounts=service_accounts,
            home_api_address=home_api_address,
            unschedulable_timeout=unschedulable_timeout,
            address=address,
            port=port,
            health_port=health_port,
            serving_certificate=serving_certificate,
            cert_dir=cert_dir,
            tls_cert_file=tls_cert_file,
            tls_private_key_file=tls_private_key_file,
            anonymous_auth=anonymous_auth,
            metrics=metrics,
            take_over_claim=take_over_claim,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    if not in_cluster:
        if given := [it for it in FOR_INSTALL if is_given(ctx, it)]:
            raise fail(f"{', '.join(map(flag, given))}: of use with --in-cluster only", code=2)
        begin(Asked(settings, Shown(verbose, log_format, check_traces(traces))))
        return
    from bridge.cli.install import Wish, install, show

    wish = Wish(
        settings,
        given=passed_on(ctx),
        image=image,
        namespace=namespace,
        replicas=replicas,
        bound=bind or (),
        everywhere=all_namespaces,
        webhook=offload_webhook,
        relay_from=relay_from or (),
        dry=dry_run,
        timeout=timeout,
    )
    (show if ctx.meta.get(PRINTS) else install)(wish)
