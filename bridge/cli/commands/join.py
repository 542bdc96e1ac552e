"""`bridge join`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.base.join_settings import SettingsError
from bridge.cli.commands import install
from bridge.cli.join_file import name_file, use_file
from bridge.cli.options.common_options import ApproveRequests, check_traces
from bridge.cli.options.install_options import INSTALL, INSTALLATION
from bridge.cli.options.join_options import JOIN, PROCESS, join_settings
from bridge.cli.options.option_declaration import Option, given, with_options

_IN_CLUSTER = Option(
    "in-cluster",
    "Install the bridge in the home cluster, as bridge install does.",
    INSTALLATION,
    kind=bool,
    default=False,
)


# For one release: `bridge install` has taken the place of --in-cluster.
@with_options(*JOIN, *(it.typer_parameter(hidden=True) for it in (_IN_CLUSTER, *INSTALL)), *PROCESS)
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
    from bridge.cli.reexec_to_free_memory import LogSettings, ServeRequest, start
    from bridge.cli.run_until_signal import fail

    if values["in_cluster"]:
        install.apply_request(
            install.request(values, given(ctx, (*JOIN, *PROCESS))), assume_yes=yes
        )
        return
    try:
        settings = join_settings(values)
    except SettingsError as error:
        raise fail(name_file(ctx, file, str(error)), code=2) from None
    if unused := given(ctx, INSTALL):
        flags = ", ".join(it.flag for it in unused)
        raise fail(f"{flags}: use with bridge install only", code=2)
    traces = check_traces(values["traces"])
    logs = LogSettings(values["verbose"], values["log_format"], traces)
    start(ServeRequest(settings, logs, assume_yes=yes))
