"""`bridge volume copy`, `bridge volume move` and `bridge volume cancel`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.base.command_output import Output, OutputOption, print_result
from bridge.cli.options.common_options import (
    DryRun,
    HomeContext,
    HomeKubeconfig,
    Yes,
    duration_option,
)
from sync.kube.kubeconfig_ref import KubeconfigRef

if TYPE_CHECKING:
    from bridge.volumes.transfer_summary import TransferResult, TransferSettings

Claim = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE/CLAIM",
        help="The PersistentVolumeClaim at home.",
        show_default=False,
    ),
]
To = Annotated[
    str,
    typer.Option(
        metavar="NODE",
        help="The node on which the data will be: a virtual node, or a node of home.",
        show_default=False,
    ),
]
StorageClass = Annotated[
    str,
    typer.Option(
        help="StorageClass of the new volume. Default: that of the PersistentVolumeClaim if it has "
        "volumes on NODE, else the only one that has, at home the default class.",
        show_default=False,
    ),
]
Image = Annotated[
    str,
    typer.Option(
        help="Image of the transfer pods, with sh, tar, find, stat, dd and sha256sum.",
    ),
]
Timeout = Annotated[float, duration_option("Maximum time for the transfer pods to start or end.")]
#: Of the transfer pods.
DEFAULT_IMAGE = "docker.io/library/busybox:1.37"


def move(
    claim: Claim,
    *,
    to: To,
    storage_class: StorageClass = "",
    image: Image = DEFAULT_IMAGE,
    delete_old: Annotated[
        bool,
        typer.Option(
            "--delete-old",
            help="Delete the old volume at the end, by its reclaim policy. Default: keep it.",
        ),
    ] = False,
    timeout: Timeout = 300.0,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Move the data of a PersistentVolumeClaim to another node: of a remote, or of home.

    Copies the data, verifies it by checksums, and gives the PersistentVolumeClaim the new volume.
    No pod may use it meanwhile. The old data stays in a second PersistentVolumeClaim. Run it again
    after a failure or an interruption; bridge volume cancel undoes an unfinished move.
    """
    from bridge.volumes.transfer_summary import TransferSettings

    namespace, name = _parse_claim(claim)
    settings = TransferSettings(
        namespace,
        name,
        to,
        image,
        storage_class=storage_class,
        delete_old=delete_old,
        timeout=timeout,
    )
    home = KubeconfigRef(home_kubeconfig, home_context)
    _transfer(home, settings, yes=yes, dry_run=dry_run, output=output)


def copy(
    claim: Claim,
    new_name: Annotated[
        str,
        typer.Argument(
            metavar="NEW-NAME",
            help="The PersistentVolumeClaim to create, in the same namespace.",
            show_default=False,
        ),
    ],
    *,
    to: To,
    storage_class: StorageClass = "",
    image: Image = DEFAULT_IMAGE,
    timeout: Timeout = 300.0,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Copy the data of a PersistentVolumeClaim into a new one on another node.

    Verifies the copy by checksums. No pod may use the PersistentVolumeClaim meanwhile. Run it again
    after a failure or an interruption; bridge volume cancel removes an unfinished copy.
    """
    from bridge.base.join_settings import SettingsError, check_name
    from bridge.cli.run_until_signal import fail
    from bridge.volumes.transfer_summary import TransferSettings

    namespace, name = _parse_claim(claim)
    try:
        check_name(new_name, "NEW-NAME")
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    settings = TransferSettings(
        namespace, name, to, image, new_name, storage_class=storage_class, timeout=timeout
    )
    home = KubeconfigRef(home_kubeconfig, home_context)
    _transfer(home, settings, yes=yes, dry_run=dry_run, output=output)


def cancel(
    claim: Claim,
    *,
    timeout: Timeout = 300.0,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Undo an unfinished move of a PersistentVolumeClaim, or remove an unfinished copy.

    Removes the transfer pods and the incomplete new volume. The source is not changed.
    """
    from bridge.cli.run_until_signal import report_line, run

    namespace, name = _parse_claim(claim)

    async def command(_: asyncio.Event) -> None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.volumes import claim_moves

        home = KubeconfigRef(home_kubeconfig, home_context)
        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                removed = await claim_moves.cancel(
                    client, namespace, name, timeout=timeout, notify=report_line
                )
        data = {"namespace": namespace, "claim": name, "removed": removed}
        print_result(data, output, lambda: f"PersistentVolumeClaim {namespace}/{removed} removed")

    run(command, stops=False)


def _transfer(
    home: KubeconfigRef, settings: TransferSettings, *, yes: bool, dry_run: bool, output: Output
) -> None:
    from bridge.cli.run_until_signal import STOP_SECONDS, fail, report_line, run

    if not (yes or dry_run or sys.stdin.isatty()):
        raise fail(
            "standard input is not a terminal; use --yes to run without confirmation", code=2
        )

    async def command(_: asyncio.Event) -> TransferResult | None:
        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.volumes.progress_meter import Meter
        from bridge.volumes.transfer_procedure import Transfer

        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"):
                transfer = Transfer(client, settings, notify=report_line, meter=Meter(report_line))
                return await transfer.run(
                    dry_run=dry_run, confirm=lambda lines: _confirm(lines, assume_yes=yes)
                )

    unfinished = f"{settings.namespace}/{settings.new_name or settings.claim}"
    result = run(
        command,
        stops=False,
        exit_within=STOP_SECONDS,
        after_interruption=""
        if dry_run
        else f"run the same command again, or undo it by `bridge volume cancel {unfinished}`",
    )
    if result is None:
        raise fail("nothing was changed")
    _print(settings, result, dry_run=dry_run, output=output)


def _print(
    settings: TransferSettings, result: TransferResult, *, dry_run: bool, output: Output
) -> None:
    from bridge.volumes import transfer_summary

    print_result(
        transfer_summary.as_json(settings, result, dry_run=dry_run),
        output,
        lambda: transfer_summary.as_text(settings, result, dry_run=dry_run),
    )


def _confirm(lines: list[str], *, assume_yes: bool) -> bool:
    from bridge.base.printable_text import escape_line
    from bridge.cli.run_until_signal import confirm

    print("This will:", *map(escape_line, lines), sep="\n  ", file=sys.stderr, flush=True)
    return assume_yes or confirm("Continue?")


def _parse_claim(text: str) -> tuple[str, str]:
    from bridge.cli.run_until_signal import fail

    namespace, separator, name = text.partition("/")
    if not (namespace and separator and name) or "/" in name:
        raise fail(f'"{text}" is not a PersistentVolumeClaim; use NAMESPACE/CLAIM', code=2)
    return namespace, name
