"""`bridge check`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.base.command_output import ListOutputOption, Output, format_table, print_result
from bridge.base.join_settings import SettingsError
from bridge.base.printable_text import escape_line
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    RemoteContext,
    RemoteKubeconfig,
    check_argument,
    check_context,
    duration_option,
    node_argument,
)
from bridge.cli.options.join_options import JOIN, join_settings
from bridge.cli.options.option_declaration import with_options
from sync.kube.kubeconfig_ref import KubeconfigRef

if TYPE_CHECKING:
    from bridge.checks.findings import Report

#: The options of bridge join that a check depends on, and their heading in --help.
_CHECKED = frozenset(
    {
        *("network", "relay-cidr", "home-name", "namespace-template", "accept-namespaces"),
        *("address", "port", "service-accounts", "home-api-address", "metrics"),
        *("serving-certificate", "tls-cert-file", "tls-private-key-file", "pod-security"),
    }
)
JOIN_GROUP = "With --pre: as in bridge join"


@with_options(*(dataclasses.replace(it, group=JOIN_GROUP) for it in JOIN if it.name in _CHECKED))
def check(
    node: Annotated[
        str | None,
        node_argument(
            "The virtual node; with --pre the name that it would have. Default: all virtual nodes."
        ),
    ] = None,
    *,
    pre: Annotated[
        bool, typer.Option("--pre", help="Check whether these clusters can be joined.")
    ] = False,
    kubeconfig: RemoteKubeconfig = None,
    context: RemoteContext = None,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
    wait: Annotated[
        float | None,
        duration_option(
            "Repeat the checks until none is an error, for at most this time.", minimum=0
        ),
    ] = None,
    output: ListOutputOption = Output.TABLE,
    **values: Any,
) -> None:
    """Diagnose problems with the two clusters and the virtual node.

    Checks the virtual nodes that home has, or with --pre whether two clusters can be joined. Each
    finding has an id, which docs/reference/checks.md explains. Changes nothing. Exit code 1 if a
    check finds an error.
    """
    from bridge.checks import check_runner
    from bridge.checks.check_runner import NodeCheckSettings
    from bridge.cli.run_until_signal import fail, report_line, run

    if pre and kubeconfig is None:
        raise fail("--pre requires --kubeconfig, that of the remote cluster", code=2)
    check_context(kubeconfig, context)
    home = KubeconfigRef(home_kubeconfig, home_context)
    remote = KubeconfigRef(kubeconfig, context)
    name = check_argument(node, "NODE")
    try:
        settings = join_settings({it.parameter: it.initial for it in JOIN} | values)
        settings = dataclasses.replace(settings, remote=remote, home=home, name=name)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    health = NodeCheckSettings(home, name or "", remote if kubeconfig else None, settings.network)

    async def once() -> Report:
        return await (
            check_runner.check_before_join(settings) if pre else check_runner.check_nodes(health)
        )

    found = run(
        lambda _: check_runner.repeat_until_passing(once, wait or 0.0, notify=report_line),
        stops=False,
    )
    print_result(
        found.as_data(),
        output,
        lambda: table(found),
        names=lambda: [f"check/{it.id}" for it in found.findings],
        as_wide=lambda: table(found, wide=True),
    )
    if found.failed:
        raise SystemExit(1)


def table(found: Report, *, wide: bool = False) -> str:
    """The findings, worst first, and what to do. Checks that a common cause prevented share a line,
    unless ``wide``."""
    rows = found.rows(skipped=wide)
    lines = [format_table(["severity", "id", "side", "found"], rows), ""]
    if not wide and (skipped := found.skipped()):
        lines += [*map(escape_line, skipped), ""]
    if advice := found.advice():
        lines += ["What to do:", *(f"  {escape_line(line)}" for line in advice), ""]
    return "\n".join([*lines, found.summary()])
