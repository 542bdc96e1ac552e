"""`bridge volume copy`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from bridge.base.command_output import Output, OutputOption, print_result
from bridge.base.join_settings import SettingsError, check_name
from bridge.cli.options.common_options import (
    HomeContext,
    HomeKubeconfig,
    check_argument,
    duration_option,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object
from translators.storage.identifiers import ClaimKey

Claim = Annotated[
    str,
    typer.Argument(
        metavar="NAMESPACE/CLAIM",
        help="The PersistentVolumeClaim to copy from, then the one to copy to.",
        show_default=False,
    ),
]


def copy(
    source: Claim,
    target: Claim,
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="NODE",
            help="The virtual node, or node of the home cluster, that gets the volume of a target "
            "that is not Bound.",
            show_default=False,
        ),
    ] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the files that the target has.")
    ] = False,
    image: Annotated[
        str, typer.Option(help="Image of the pods: sh, awk, find, GNU tar and coreutils.")
    ] = "docker.io/library/debian:13-slim",
    timeout: Annotated[float, duration_option("Maximum time for the pods to start.")] = 300.0,
    output: OutputOption = Output.TABLE,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Copy all files of a PersistentVolumeClaim to another one, also between clusters.

    Starts a pod for each, and compares checksums at the end. Fails if another pod mounts either.
    Until the command succeeds, a file in the target states that it is incomplete: run it again.
    """
    from bridge.cli.run_until_signal import STOP_SECONDS, report_line, run

    claims = _parse_claim(source), _parse_claim(target)
    check_argument(to or None, "--to")

    async def command(_: asyncio.Event) -> Object:
        from rich import progress
        from rich.console import Console

        from bridge.clusters.connection import as_preflight_errors, connect
        from bridge.volumes.volume_copy import VolumeCopy

        # Without a terminal it would print its last state.
        shown = progress.Progress(
            *progress.Progress.get_default_columns(),
            progress.TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        home = KubeconfigRef(home_kubeconfig, home_context)
        async with connect(home, side="home", notify=lambda _: None) as client:
            with as_preflight_errors("home"), shown:
                copying = VolumeCopy(client, *claims, image, report_line, shown, to, timeout)
                content = await copying.run(overwrite=overwrite)
        return {"source": source, "target": target, "files": content.files, "bytes": content.size}

    data = run(
        command, stops=False, exit_within=STOP_SECONDS, after_interruption="run the command again"
    )
    text = f"{source} is copied to {target}: {data['files']} files, {data['bytes']} bytes"
    print_result(data, output, lambda: text)


def _parse_claim(text: str) -> ClaimKey:
    from bridge.cli.run_until_signal import fail

    namespace, _, name = text.partition("/")
    try:
        return ClaimKey(check_name(namespace), check_name(name))
    except SettingsError:
        raise fail(
            f'"{text}" is not a PersistentVolumeClaim; use NAMESPACE/CLAIM', code=2
        ) from None
