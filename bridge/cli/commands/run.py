"""`bridge run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bridge.cli.commands import config as config_commands
from bridge.cli.options.common_options import ApproveRequests


def run(
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with the joins (docs/reference/config-file.md).",
            show_default=False,
        ),
    ] = None,
    shard: Annotated[
        Literal["auto", "off"],
        typer.Option(
            help="auto: replicas of this command with the same remotes divide them, and take over "
            "from each other. off: each replica serves or stands by for all remotes."
        ),
    ] = "auto",
    yes: ApproveRequests = False,
    # For one release: `bridge config` has taken their place.
    schema: Annotated[bool, typer.Option("--schema", hidden=True)] = False,
    check: Annotated[bool, typer.Option("--check", hidden=True)] = False,
) -> None:
    """Join one or more remote clusters in one process, from a configuration file.

    Each join is a virtual node of its own, with the options of bridge join as keys. The bridge
    retries a join that fails; the others keep running. Changes of the file take effect while the
    bridge runs. Runs in the foreground until Ctrl-C.
    """
    from bridge.cli.run_until_signal import fail

    if schema:
        config_commands.schema()
        return
    if config is None:
        raise fail("--config is missing: name a file; bridge config schema describes it", code=2)
    if check:
        config_commands.validate(config)
        return
    from bridge.base.join_settings import SettingsError
    from bridge.cli.options.common_options import check_traces
    from bridge.cli.reexec_to_free_memory import ServeRequest, start
    from bridge.cli.run_config_file import read
    from bridge.fleet.config_file_source import followed

    file = followed(config)
    try:
        parts, logs = read(config)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    check_traces(logs.traces or None)
    start(ServeRequest(parts, logs, assume_yes=yes, file=file, shares=shard == "auto"))
