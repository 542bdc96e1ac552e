"""`bridge check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.base.output import ListOutputOption, Output, format_table, print_result
from bridge.base.settings import (
    DEFAULT_TEMPLATE,
    KUBELET_PORT,
    JoinSettings,
    MetricsChoice,
    NetworkChoice,
    RelaySettings,
    ServingCertificate,
    SettingsError,
    check_address,
    check_home_name,
    check_name,
    check_relay_cidr,
    parse_home_api,
    parse_namespaces,
)
from bridge.cli.completion import complete_nodes
from bridge.cli.shared_options import (
    HomeContext,
    HomeKubeconfig,
    RemoteContext,
    RemoteKubeconfig,
    check_context,
    duration_option,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.translation_policy import ServiceAccounts

if TYPE_CHECKING:
    from bridge.checks.report import Report

#: Heading in --help of what is as in the join that is meant.
JOIN = "With --pre: as in bridge join"


def check(
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="NODE",
            help="The virtual node; with --pre the name that it would have. Default: all virtual "
            "nodes.",
            show_default=False,
            autocompletion=complete_nodes,
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
    network: Annotated[
        NetworkChoice,
        typer.Option(
            help="flat: pods of both clusters reach each other by IP. relay, none: they do not. "
            "auto: probe. For an existing node: as in its join."
        ),
    ] = "flat",
    relay_cidr: Annotated[
        str | None,
        typer.Option(
            metavar="CIDR", help="IP range for pods of headless Services.", rich_help_panel=JOIN
        ),
    ] = None,
    home_name: Annotated[
        str | None, typer.Option(help="Value of {home}.", rich_help_panel=JOIN)
    ] = None,
    namespace_template: Annotated[
        str, typer.Option(help="Names of remote namespaces.", rich_help_panel=JOIN)
    ] = DEFAULT_TEMPLATE,
    accept_namespaces: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Remote namespaces to use once they are handed over.",
            rich_help_panel=JOIN,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="IP address at which home's API server reaches the bridge.", rich_help_panel=JOIN
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the kubelet API.", min=0, max=65535, rich_help_panel=JOIN)
    ] = KUBELET_PORT,
    service_accounts: Annotated[
        ServiceAccounts, typer.Option(help="Identity of pods.", rich_help_panel=JOIN)
    ] = "home",
    home_api_address: Annotated[
        str | None,
        typer.Option(
            help="HOST[:PORT] at which remote pods reach home's API server.", rich_help_panel=JOIN
        ),
    ] = None,
    metrics: Annotated[
        MetricsChoice, typer.Option(help="Source of resource metrics.", rich_help_panel=JOIN)
    ] = "auto",
    serving_certificate: Annotated[
        ServingCertificate,
        typer.Option(help="Signer of the kubelet API's certificate.", rich_help_panel=JOIN),
    ] = "self-signed",
    tls_cert_file: Annotated[
        Path | None, typer.Option(help="Certificate of the kubelet API.", rich_help_panel=JOIN)
    ] = None,
    tls_private_key_file: Annotated[
        Path | None, typer.Option(help="Key of that certificate.", rich_help_panel=JOIN)
    ] = None,
    wait: Annotated[
        float | None,
        duration_option(
            "Repeat the checks until none is an error, for at most this time.", minimum=0
        ),
    ] = None,
    output: ListOutputOption = Output.TABLE,
) -> None:
    """Diagnose problems with the two clusters and the virtual node.

    Checks the virtual nodes that home has, or with --pre whether two clusters can be joined. Each
    finding has an id, which docs/reference/checks.md explains. Changes nothing. Exit code 1 if a
    check finds an error.
    """
    from bridge.checks import check_command
    from bridge.checks.check_command import NodeCheckSettings
    from bridge.cli.runner import fail, report_step, run

    if pre and kubeconfig is None:
        raise fail("--pre requires --kubeconfig, that of the remote cluster", code=2)
    check_context(kubeconfig, context)
    if (tls_cert_file is None) != (tls_private_key_file is None):
        raise fail("--tls-cert-file and --tls-private-key-file require each other", code=2)
    home = KubeconfigRef(home_kubeconfig, home_context)
    remote = KubeconfigRef(kubeconfig, context)
    try:
        name = check_name(node, "NODE") if node is not None else None
        settings = JoinSettings(
            remote=remote,
            home=home,
            name=name,
            home_name=check_home_name(home_name) if home_name is not None else None,
            address=check_address(address) if address is not None else None,
            port=port,
            template=namespace_template,
            accept_namespaces=parse_namespaces(accept_namespaces or ""),
            network=network,
            relay=RelaySettings(
                cidr=check_relay_cidr(relay_cidr) if relay_cidr is not None else None
            ),
            certificate=tls_cert_file,
            key=tls_private_key_file,
            serving=serving_certificate,
            service_accounts=service_accounts,
            metrics=metrics,
            home_api=parse_home_api(home_api_address) if home_api_address is not None else None,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    health = NodeCheckSettings(home, name or "", remote if kubeconfig else None, network)

    async def once() -> Report:
        return await (
            check_command.check_before_join(settings) if pre else check_command.check_nodes(health)
        )

    found = run(
        lambda _: check_command.repeat_until_passing(once, wait or 0.0, notify=report_step),
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
        lines += [*skipped, ""]
    if advice := found.advice():
        lines += ["What to do:", *(f"  {line}" for line in advice), ""]
    return "\n".join([*lines, found.summary()])


def _merged(rows: list[list[str]]) -> list[list[str]]:
    """One row in place of those that have the same cause in ``not checked: CAUSE``."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for number, (severity, check_id, side, text) in enumerate(rows):
        is_open = text.startswith("not checked")
        key = (severity, side, text) if is_open else (str(number),)
        row = merged.setdefault(key, [severity, "", side, text])
        row[1] = f"{row[1]}, {check_id}" if row[1] else check_id
    return list(merged.values())
