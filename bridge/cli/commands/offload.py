"""`bridge offload`, `bridge unoffload` and `bridge webhook`."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.base.command_output import (
    NamesOutputOption,
    Output,
    OutputOption,
    format_table,
    print_result,
)
from bridge.base.join_settings import SettingsError, check_address
from bridge.cli.options.common_options import (
    DryRun,
    HomeContext,
    HomeKubeconfig,
    LogFormatOption,
    check_argument,
)
from bridge.cli.options.option_declaration import is_given
from bridge.offload import Mechanism
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object
from translators.offload_admission_patch import (
    MAX_TIERS,
    Offloading,
    OffloadPolicy,
    selector_text,
)

#: Namespaces of the cluster's own components, which must start even if admission fails.
_SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})

#: Options of `offload` that require a namespace.
_OF_ONE = ("policy", "node_selector", "tier", "pod_selector", "by", "dry_run")

_Namespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="A namespace of home.", show_default=False)
]


def offload(
    ctx: typer.Context,
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="NAMESPACE",
            help="A namespace of home. Default: list the offloaded namespaces.",
            show_default=False,
        ),
    ] = None,
    *,
    policy: Annotated[
        OffloadPolicy,
        typer.Option(
            help="burst: home's own nodes first, virtual nodes when these are full. remote-only: "
            "only virtual nodes. local-only: never virtual nodes."
        ),
    ] = "burst",
    node_selector: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE[,KEY=VALUE]", help="Labels of the virtual nodes that pods may use."
        ),
    ] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE[,KEY=VALUE]",
            help="Labels of nodes to prefer; repeat it for the next choices. With --policy burst, "
            "the home cluster's own nodes come first. Other scores of the scheduler can outvote "
            "this preference.",
        ),
    ] = None,
    pod_selector: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE[,KEY=VALUE]",
            help="Labels of the pods to change. Default: all pods of the namespace.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        Mechanism,
        typer.Option(
            help="Mechanism that changes the pods: a policy in the API server, or a webhook "
            "(bridge install --offload-webhook, or bridge webhook). auto: the policy if the API "
            "server has the resource."
        ),
    ] = "auto",
    dry_run: DryRun = False,
    output: NamesOutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Let new pods of a namespace run on virtual nodes, or list the offloaded namespaces.

    Pods need no change. Existing pods stay where they are. Pods of DaemonSets and pods with a
    nodeName are not changed. Run it again to change the policy.
    """
    from bridge.cli.run_until_signal import fail, report_line, run
    from bridge.node.node_option_parsing import parse_selector
    from bridge.offload.namespace_offloading import OffloadSettings, offload_namespace

    check_argument(namespace, "NAMESPACE", "a namespace name")
    home = KubeconfigRef(home_kubeconfig, home_context)
    if namespace is None:
        if given := [f"--{it.replace('_', '-')}" for it in _OF_ONE if is_given(ctx, it)]:
            raise fail(f"{', '.join(given)}: name a namespace too", code=2)
        _list(home, output)
        return
    if namespace in _SYSTEM:
        raise fail(f"{namespace}: a system namespace cannot be offloaded", code=2)
    if policy == "local-only" and (node_selector or tier):
        flag = "--node-selector" if node_selector else "--tier"
        raise fail(f"{flag} and --policy local-only exclude each other", code=2)
    try:
        offloading = Offloading(
            policy,
            parse_selector(node_selector) if node_selector else {},
            _tiers(tier or []),
            parse_selector(pod_selector, "--pod-selector") if pod_selector else {},
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    settings = OffloadSettings(home, namespace, offloading, by, dry_run)
    answer = run(lambda _: offload_namespace(settings, notify=report_line), stops=False)
    print_result(answer, output, lambda: _table([answer]), names=lambda: _names([answer]))


def _tiers(texts: list[str]) -> tuple[dict[str, str], ...]:
    """Raises SettingsError."""
    from bridge.node.node_option_parsing import parse_selector

    if len(texts) > MAX_TIERS:
        raise SettingsError(f"--tier: give it at most {MAX_TIERS} times")
    tiers = tuple(parse_selector(text, "--tier") for text in texts)
    for index, tier in enumerate(tiers):
        if tier in tiers[:index]:
            raise SettingsError(f'--tier: "{texts[index]}" is given twice')
    return tiers


def _list(home: KubeconfigRef, output: Output) -> None:
    from bridge.cli.run_until_signal import run
    from bridge.offload.namespace_offloading import list_offloaded_namespaces

    found = run(lambda _: list_offloaded_namespaces(home), stops=False)
    print_result(
        {"namespaces": found},
        output,
        lambda: _table(found) if found else "no namespace is offloaded",
        names=lambda: _names(found),
    )


def _names(found: list[Object]) -> list[str]:
    return [f"namespace/{it['namespace']}" for it in found]


def unoffload(
    namespace: _Namespace,
    *,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Undo bridge offload for a namespace: new pods are no longer changed.

    Existing pods stay. The last namespace also removes the policy or the webhook configuration.
    """
    from bridge.cli.run_until_signal import report_line, run
    from bridge.offload.namespace_offloading import OffloadSettings, unoffload_namespace

    check_argument(namespace, "NAMESPACE", "a namespace name")
    home = KubeconfigRef(home_kubeconfig, home_context)
    settings = OffloadSettings(home, namespace, dry_run=dry_run)
    answer = run(lambda _: unoffload_namespace(settings, notify=report_line), stops=False)
    print_result(answer, output, lambda: _table([answer]))


def _table(found: list[Object]) -> str:
    header = ["namespace", "policy", "virtual nodes", "tiers", "pods", "by"]
    return format_table(header, map(_row, found))


def _row(answer: Object) -> list[str]:
    nodes = selector_text(answer.get("nodeSelector", {}))
    tiers = " > ".join(map(selector_text, answer.get("tiers", ())))
    pods = selector_text(answer.get("podSelector", {}))
    by = answer.get("by", "") or ("nothing" if answer["policy"] else "")
    policy = answer["policy"] or "none"
    return [answer["namespace"], policy, nodes or "all", tiers or "none", pods or "all", by]


def webhook(
    *,
    address: Annotated[
        str | None,
        typer.Option(
            help="IP address at which home's API server reaches the webhook. Default: the address "
            "that this machine uses towards home's API server."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the webhook; 0 selects a free port.", min=0, max=65535)
    ] = 9443,
    service: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="Run as a pod behind this Service, with the Secret and the "
            "MutatingWebhookConfiguration of the same name, as bridge install --offload-webhook "
            "creates them.",
        ),
    ] = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    log_format: LogFormatOption = "console",
) -> None:
    """Serve the webhook that changes the pods of offloaded namespaces.

    For API servers without MutatingAdmissionPolicy. Runs until Ctrl-C, and is registered at home
    while a namespace is offloaded. While it is not reachable, pods are created unchanged.
    """
    from bridge.cli.run_until_signal import (
        STOP_SECONDS,
        configure_reports,
        fail,
        report_line,
        run,
    )
    from bridge.offload import in_cluster_webhook
    from bridge.offload.standalone_webhook import StandaloneWebhookSettings, serve

    try:
        where = check_address(address) if address is not None else None
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    home = KubeconfigRef(home_kubeconfig, home_context)
    configure_reports(log_format=log_format)
    if service is None:
        settings = StandaloneWebhookSettings(home, where, port)
        run(lambda stop: serve(settings, notify=report_line, stop=stop), exit_within=STOP_SECONDS)
        return
    namespace, slash, name = service.partition("/")
    if not (namespace and slash and name) or where is None:
        raise fail(
            f'--service: "{service}" is not a Service; use NAMESPACE/NAME, and --address with it',
            code=2,
        )
    behind = in_cluster_webhook.InClusterWebhookSettings(home, namespace, name, where, port)
    run(
        lambda stop: in_cluster_webhook.serve(behind, notify=report_line, stop=stop),
        exit_within=STOP_SECONDS,
    )
