"""The command line: `bridge`, and `kubectl bridge` through its second name.

Here belong options, their checks, and how results are shown. Progress goes to stderr. What a
command does is imported when it runs, so that `--help` answers at once. Exit codes: 0 done,
1 it failed, 2 the options are wrong.
"""

from __future__ import annotations

import typer

from bridge.cli.join import join
from bridge.cli.leave import leave
from bridge.cli.version import version

app = typer.Typer(
    help="Makes a remote Kubernetes cluster appear in the home cluster as one virtual node.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(join)
app.command()(leave)
app.command()(version)


def main() -> None:
    """The console script."""
    app()
