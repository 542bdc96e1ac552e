"""`bridge offload`, `bridge unoffload` and `bridge webhook`."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.options import HomeContext, HomeKubeconfig
from bridge.cli.output import Output, OutputOption, columns, show
from bridge.offload import Way
from bridge.settings import SettingsError, check_address
from sync.kube.kubeconfig import KubeconfigRef
from translators.offload import OffloadPolicy
from translators.types import Object

#: Namespaces of the cluster's own components, which must come up whatever admission says.
_SYSTEM = frozenset({"kube-system", "kube-public", "kube-node-lease"})

_Namespace = Annotated[str, typer.Argument(help="A namespace of home.", show_default=False)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be written, no more.")]


def offload(
    namespace: _Namespace,
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
        Way,
        typer.Option(
            help="Who changes the pods: the API server itself, by a policy, or a running bridge "
            "webhook. auto takes the policy where it is served."
        ),
    ] = "auto",
    dry_run: _DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Let new pods of a namespace go to virtual nodes, without editing them.

    Pods that are there stay where they are. Pods of DaemonSets, and those that name their node, are
    left alone. Running it again changes the policy.
    """
    from bridge.cli.running import fail, run, step
    from bridge.node.options import parse_node_selector
    from bridge.offload.commands import OffloadSettings, offload_namespace

    if namespace in _SYSTEM:
        raise fail(f"{namespace}: a cluster's own namespace is not offloaded", code=2)
    if node_selector and policy == "local-only":
        raise fail("--node-selector is for virtual nodes, and local-only has none", code=2)
    try:
        selector = parse_node_selector(node_selector) if node_selector else {}
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    home = KubeconfigRef(home_kubeconfig, home_context)
    settings = OffloadSettings(home, namespace, policy, selector, by, dry_run)
    answer = run(lambda _: offload_namespace(settings, told=step), stops=False)
    show(answer, output, lambda: _table(answer))


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
    from bridge.cli.running import run, step
    from bridge.offload.commands import OffloadSettings, unoffload_namespace

    home = KubeconfigRef(home_kubeconfig, home_context)
    settings = OffloadSettings(home, namespace, dry_run=dry_run)
    answer = run(lambda _: unoffload_namespace(settings, told=step), stops=False)
    show(answer, output, lambda: _table(answer))


def _table(answer: Object) -> str:
    selector = ",".join(f"{k}={v}" for k, v in answer.get("nodeSelector", {}).items())
    row = [answer["namespace"], answer["policy"] or "none", selector or "all", answer.get("by", "")]
    return columns(["namespace", "policy", "virtual nodes", "by"], [row])


def webhook(
    *,
    address: Annotated[
        str | None,
        typer.Option(help="IP at which home's API server reaches it; found out unless given."),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 9443,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Change the pods of offloaded namespaces, where home's API server cannot do it itself.

    Runs until it is stopped. It is registered at home while a namespace is offloaded. Where it is
    away, pods are made as they are.
    """
    from bridge.cli.running import STOP_SECONDS, fail, run, step
    from bridge.observability.logging import to_terminal
    from bridge.offload.webhook import WebhookSettings, serve

    try:
        where = check_address(address) if address is not None else None
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    to_terminal(verbose=False)
    settings = WebhookSettings(KubeconfigRef(home_kubeconfig, home_context), where, port)
    run(lambda stop: serve(settings, told=step, stop=stop), end_by=STOP_SECONDS)
