"""`bridge dashboard-server`: the dashboard in home's cluster, and its manifests."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.base.join_settings import SettingsError, check_name
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    LogFormatOption,
    TlsCertFile,
    TlsPrivateKeyFile,
    tls_files,
)
from sync.kube.kubeconfig_ref import KubeconfigRef


def run_dashboard(
    *,
    service: Annotated[
        str,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="The dashboard's Service: viewers need the verb get on its services/proxy.",
            show_default=False,
        ),
    ],
    port: Annotated[
        int, typer.Option(help="Port for HTTPS; 0 is any free port.", min=0, max=65535)
    ] = 8443,
    tls_cert_file: TlsCertFile = None,
    tls_private_key_file: TlsPrivateKeyFile = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    log_format: LogFormatOption = "console",
) -> None:
    """Serve the page of bridge dashboard to viewers whom home authorises, until Ctrl-C.

    Runs as a pod that bridge dashboard-server render installs. Read-only, HTTPS alone, and no page
    without a bearer token of home.
    """
    from bridge.cli.reexec_to_free_memory import LogSettings, configure_reports
    from bridge.cli.run_until_signal import STOP_SECONDS, fail, report_line, run
    from bridge.dashboard.in_cluster_server import InClusterSettings, serve

    namespace, slash, name = service.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise fail(f'--service: "{service}" is not a Service; use NAMESPACE/NAME', code=2)
    try:
        files = tls_files(tls_cert_file, tls_private_key_file)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    home = KubeconfigRef(home_kubeconfig, home_context)
    settings = InClusterSettings(home, namespace, name, port, files)
    configure_reports(LogSettings(log_format=log_format))
    run(lambda stop: serve(settings, notify=report_line, stop=stop), exit_within=STOP_SECONDS)


def render_dashboard(
    *,
    image: Annotated[str, typer.Option(help="Image of the bridge.", show_default=False)],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the dashboard.")
    ] = "cluster-bridge",
    node: Annotated[
        list[str] | None,
        typer.Option(
            help="Virtual node whose bridge the dashboard may query, for lag, errors, versions and "
            "traffic; repeatable. The permission, get on its nodes/proxy, also permits logs and "
            "exec in the node's pods. Default: none.",
            show_default=False,
        ),
    ] = None,
    tls_secret: Annotated[
        str,
        typer.Option(
            help="Secret of type kubernetes.io/tls with the serving certificate, such as of "
            "cert-manager. Default: self-signed.",
            show_default=False,
        ),
    ] = "",
    allow_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Namespace whose pods may connect, such as that of an Ingress controller; "
            "repeatable. Default: none; kubectl port-forward needs none.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what installs the dashboard at home, as YAML for kubectl apply.

    A Deployment with the least permissions, its Service, a NetworkPolicy that admits no pod by
    default, and the Role cluster-bridge-dashboard-viewer, to bind to those who may read the page.
    """
    from bridge.cli.commands.rbac import print_objects
    from bridge.cli.run_until_signal import fail
    from bridge.dashboard.dashboard_manifests import DashboardInstallation, dashboard_objects
    from bridge.rbac import rbac_manifests

    try:
        options = DashboardInstallation(
            image=image,
            namespace=rbac_manifests.check_namespace(namespace),
            nodes=[check_name(it, "--node") for it in node or ()],
            tls_secret=check_name(tls_secret, "--tls-secret") if tls_secret else "",
            allow_from=[rbac_manifests.check_namespace(it) for it in allow_from or ()],
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(dashboard_objects(options))
