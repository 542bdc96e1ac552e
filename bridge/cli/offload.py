"""`bridge offload`, `bridge unoffload` and `bridge webhook`."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.base.output import Output, OutputOption, format_table, print_result
from bridge.base.settings import SettingsError, check_address
from bridge.cli.option import is_given
from bridge.cli.shared_options import HomeContext, HomeKubeconfig, LogFormatOption
from bridge.offload import Mechanism
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.objects import Object
from translators.offload_patch import OffloadPolicy

#: Namespaces of the cluster's own components, which must come up whatever admission says.
_SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})

#: Options of `offload` that say what is to be done to a namespace.
_OF_ONE = ("policy", "node_selector", "by", "dry_run")

_Namespace = Annotated[str, typer.Argument(help="A namespace of home.", show_default=False)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be written, no more.")]


def offload(
    ctx: typer.Context,
    namespace: Annotated[
        str | None,
        typer.Argument(
            help="A namespace of home; those that are offloaded are listed unless given.",
            show_default=False,
        ),
    ] = None,
    *,
    policy: Annotated[
        OffloadPolicy,
        typer.Option(
            help="burst: home's own nodes first, virtual ones when these are full. remote-only: "
            "virtual nodes alone. local-only: never, whatever a pod asks for."
        ),
    ] = "burst",
    node_selector: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE[,KEY=VALUE]", help="Labels of the virtual nodes that pods may go to."
        ),
    ] = None,
    by: Annotated[
        Mechanism,
        typer.Option(
            help="Who changes the pods: the API server itself, by a policy, or a webhook (bridge "
            "join --in-cluster --offload-webhook, or bridge webhook). auto takes the policy where "
            "it is served."
        ),
    ] = "auto",
    dry_run: _DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Let new pods of a namespace go to virtual nodes without editing them, or list such ones.

    Pods that are there stay where they are. Pods of DaemonSets, and those that name their node, are
    left alone. Running it again changes the policy.
    """
    from bridge.cli.runner import fail, run, step
    from bridge.node.node_options import parse_node_selector
    from bridge.offload.namespace_policy import OffloadSettings, offload_namespace

    home = KubeconfigRef(home_kubeconfig, home_context)
    if namespace is None:
        if given := [f"--{it.replace('_', '-')}" for it in _OF_ONE if is_given(ctx, it)]:
            raise fail(f"{', '.join(given)}: name a namespace too", code=2)
        _list(home, output)
        return
    if namespace in _SYSTEM:
        raise fail(f"{namespace}: a cluster's own namespace is not offloaded", code=2)
    if node_selector and policy == "local-only":
        raise fail("--node-selector is for virtual nodes, and local-only has none", code=2)
    try:
        selector = parse_node_selector(node_selector) if node_selector else {}
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    settings = OffloadSettings(home, namespace, policy, selector, by, dry_run)
    answer = run(lambda _: offload_namespace(settings, notify=step), stops=False)
    print_result(answer, output, lambda: _table([answer]))


def _list(home: KubeconfigRef, output: Output) -> None:
    from bridge.cli.runner import run
    from bridge.offload.listing import list_offloaded_namespaces

    found = run(lambda _: list_offloaded_namespaces(home), stops=False)
    print_result(
        {"namespaces": found},
        output,
        lambda: _table(found) if found else "no namespace is offloaded",
    )


def unoffload(
    namespace: _Namespace,
    *,
    dry_run: _DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Take back what bridge offload did: new pods of the namespace are made as they are.

    With the last such namespace all goes that changed pods. Pods that are there stay.
    """
    from bridge.cli.runner import run, step
    from bridge.offload.namespace_policy import OffloadSettings, unoffload_namespace

    home = KubeconfigRef(home_kubeconfig, home_context)
    settings = OffloadSettings(home, namespace, dry_run=dry_run)
    answer = run(lambda _: unoffload_namespace(settings, notify=step), stops=False)
    print_result(answer, output, lambda: _table([answer]))


def _table(found: list[Object]) -> str:
    return format_table(["namespace", "policy", "virtual nodes", "by"], map(_row, found))


def _row(answer: Object) -> list[str]:
    selector = ",".join(f"{k}={v}" for k, v in answer.get("nodeSelector", {}).items())
    by = answer.get("by", "") or ("nothing" if answer["policy"] else "")
    return [answer["namespace"], answer["policy"] or "none", selector or "all", by]


def webhook(
    *,
    address: Annotated[
        str | None,
        typer.Option(help="IP at which home's API server reaches it; found out unless given."),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 9443,
    service: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="Run in a pod, as one of those behind this Service, with the Secret and the "
            "MutatingWebhookConfiguration of its name: as bridge join --in-cluster "
            "--offload-webhook installs it.",
        ),
    ] = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    log_format: LogFormatOption = "console",
) -> None:
    """Change the pods of offloaded namespaces, where home's API server cannot do it itself.

    Runs until it is stopped. It is registered at home while a namespace is offloaded. Where it is
    away, pods are made as they are.
    """
    from bridge.cli import process_handover
    from bridge.cli.runner import STOP_SECONDS, fail, run, step
    from bridge.offload import in_cluster_webhook
    from bridge.offload.standalone_webhook import StandaloneWebhookSettings, serve

    try:
        where = check_address(address) if address is not None else None
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    home = KubeconfigRef(home_kubeconfig, home_context)
    process_handover.show(process_handover.Shown(log_format=log_format))
    if service is None:
        settings = StandaloneWebhookSettings(home, where, port)
        run(lambda stop: serve(settings, notify=step, stop=stop), end_by=STOP_SECONDS)
        return
    namespace, slash, name = service.partition("/")
    if not (namespace and slash and name) or where is None:
        raise fail("--service takes NAMESPACE/NAME, and needs --address", code=2)
    behind = in_cluster_webhook.InClusterWebhookSettings(home, namespace, name, where, port)
    run(lambda stop: in_cluster_webhook.serve(behind, notify=step, stop=stop), end_by=STOP_SECONDS)
