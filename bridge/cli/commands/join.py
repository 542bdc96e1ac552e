"""`bridge join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.base import garbage_collection
from bridge.base.join_settings import SettingsError
from bridge.cli.join_file import name_file, use_file
from bridge.cli.options.common_options import ApproveRequests
from bridge.cli.options.join_options import JOIN, PROCESS, join_settings
from bridge.cli.options.option_declaration import with_options


@with_options(*JOIN, *PROCESS)
def join(
    ctx: typer.Context,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="YAML file with options of this command, by their long names. Options on the "
            "command line and environment variables win over it.",
            show_default=False,
            is_eager=True,
            callback=use_file,
        ),
    ] = None,
    yes: ApproveRequests = False,
    **values: Any,
) -> None:
    """Make a remote cluster appear in the home cluster as one virtual node.

    Runs in the foreground until Ctrl-C. Remote workloads keep running then, and the next join
    adopts them. A second bridge of the same node stands by and takes over. bridge install runs the
    bridge in the home cluster instead.
    """
    from bridge.cli.run_until_signal import (
        STOP_SECONDS,
        configure_reports,
        fail,
        report_line,
        run,
    )

    try:
        settings = join_settings(values)
    except SettingsError as error:
        raise fail(name_file(ctx, file, str(error)), code=2) from None
    garbage_collection.reduce_collections()
    from bridge.app import join_lifecycle
    from bridge.cli.terminal_question import terminal_consent
    from bridge.observability.trace_exporter import export_traces

    configure_reports(verbose=values["verbose"], log_format=values["log_format"])
    consent = terminal_consent(assume_yes=yes, asks=values["log_format"] == "console")
    with export_traces():
        garbage_collection.freeze_imports()
        run(
            lambda stop: join_lifecycle.join(
                settings, notify=report_line, stop=stop, consent=consent
            ),
            exit_within=STOP_SECONDS,
        )
    report_line("stopped; workloads in the remote keep running")
