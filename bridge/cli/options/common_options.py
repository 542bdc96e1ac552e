"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.base.join_settings import LogFormat, SettingsError, check_name, invalid_option
from bridge.cli.commands.completion import complete_contexts, complete_home_contexts, complete_nodes
from bridge.cli.options.value_parsing import Duration

LogFormatOption = Annotated[
    LogFormat,
    typer.Option(help="Format of log lines: console for people, json for log collectors."),
]
#: The heading in --help of the options that name clusters.
CLUSTERS = "Clusters"


def node_argument(text: str = "The virtual node.") -> Any:
    """The argument NODE of a command, with this help, completed from home's virtual nodes."""
    return typer.Argument(
        metavar="NODE", help=text, show_default=False, autocompletion=complete_nodes
    )


#: The virtual node that a command is about.
Node = Annotated[str, node_argument()]
OptionalNode = Annotated[str | None, node_argument("The virtual node. Default: all virtual nodes.")]
HomeKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig of the home cluster. Default: as for kubectl.", rich_help_panel=CLUSTERS
    ),
]
HomeContext = Annotated[
    str | None,
    typer.Option(
        help="Context of the home kubeconfig. Default: its current context.",
        rich_help_panel=CLUSTERS,
        autocompletion=complete_home_contexts,
    ),
]
#: For commands about a node that exists: home records where its remote is.
RemoteKubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Kubeconfig of the remote cluster. Default: that of the last join.",
        rich_help_panel=CLUSTERS,
    ),
]
RemoteContext = Annotated[
    str | None,
    typer.Option(
        help="Context of --kubeconfig. Default: its current context.",
        rich_help_panel=CLUSTERS,
        autocompletion=complete_contexts,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
#: Of the commands that join. Unattended bridges have no permission for it.
ApproveRequests = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Approve the bridge's own CertificateSigningRequests at home without asking, where "
        "the home credential permits it. Default: ask on a terminal.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")
]


def duration_option(text: str, *names: str, minimum: float = 1.0, panel: str | None = None) -> Any:
    """An option that takes a duration of at least ``minimum`` seconds."""
    return typer.Option(
        *names, help=text, metavar="DURATION", parser=Duration(minimum), rich_help_panel=panel
    )


def check_argument(name: str | None, argument: str, what: str = "a node name") -> str | None:
    """The name, or None if none is given. Ends the command if no object can have the name, such as
    one that is not UTF-8."""
    from bridge.cli.run_until_signal import fail

    try:
        return None if name is None else check_name(name, argument)
    except SettingsError:
        hint = "lower-case letters, digits, '-' and '.'"
        raise fail(str(invalid_option(argument, name or "", what, hint)), code=2) from None


def check_context(kubeconfig: Path | None, context: str | None) -> None:
    """Ends the command if ``--context`` is given without the kubeconfig that has the context."""
    from bridge.cli.run_until_signal import fail

    if context and not kubeconfig:
        raise fail("--context requires --kubeconfig, the file that has the context", code=2)
