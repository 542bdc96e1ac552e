"""The commands as typer has them, with their options and their help."""

from __future__ import annotations

import inspect

import typer

from bridge.cli.bug_report import bugreport
from bridge.cli.check import check
from bridge.cli.cordon import cordon, drain, uncordon
from bridge.cli.events import events
from bridge.cli.explain import explain
from bridge.cli.install import install, render, upgrade
from bridge.cli.join import join
from bridge.cli.leave import leave
from bridge.cli.offload import offload, unoffload, webhook
from bridge.cli.prune import garbage
from bridge.cli.rbac import rbac
from bridge.cli.relay_agent import relay_pod
from bridge.cli.run import run
from bridge.cli.status import status
from bridge.cli.usage_errors import CommandGroup
from bridge.cli.version import version

app = typer.Typer(
    cls=CommandGroup,
    help="Makes a remote Kubernetes cluster appear in the home cluster as one virtual node.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Every option of every command can be given by the environment: CLUSTER_BRIDGE_JOIN_NAME. With
    # the command in it no name is one that Kubernetes gives to pods beside a Service of ours.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "CLUSTER_BRIDGE",
    },
)
app.command()(join)
app.command()(install)
app.command()(upgrade)
app.command()(render)
app.command()(run)
app.command()(leave)
app.add_typer(explain, name="explain")
app.command()(offload)
app.command()(unoffload)
app.command()(webhook)
app.add_typer(rbac, name="rbac")
app.command()(status)
app.command()(events)
app.command()(cordon)
app.command()(uncordon)
app.command()(drain)
app.command()(garbage)
app.command()(check)
app.command()(bugreport)
app.command()(version)
app.command(hidden=True)(relay_pod)


def _rewrap(group: typer.Typer) -> None:
    """Paragraphs of help are lines of a docstring; typer would break them where the source does."""
    for command in group.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(it.split("\n")) for it in paragraphs)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _rewrap(inner.typer_instance)


_rewrap(app)
