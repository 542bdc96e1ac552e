"""Every command of `bridge`, with its group in `bridge --help` and its examples.

The first paragraph of a command's docstring is its line in `bridge --help`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from bridge.cli.commands.bug_report import bug_report
from bridge.cli.commands.check import check
from bridge.cli.commands.explain import explain
from bridge.cli.commands.install import install, render
from bridge.cli.commands.join import join
from bridge.cli.commands.leave import leave, uninstall
from bridge.cli.commands.offload import offload, unoffload, webhook
from bridge.cli.commands.prune import prune
from bridge.cli.commands.rbac import rbac_home, rbac_namespace, rbac_remote
from bridge.cli.commands.relay_agent import relay_pod
from bridge.cli.commands.status import dashboard, status
from bridge.cli.commands.upgrade import upgrade
from bridge.cli.commands.version import print_version, version
from bridge.cli.commands.volume import copy
from bridge.cli.help_and_usage_errors import Command, CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    help="Make a remote Kubernetes cluster appear in the home cluster as one virtual node.",
    epilog="Every option can be set by an environment variable: CLUSTER_BRIDGE_JOIN_NAME for "
    "--name of bridge join.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # With the command in the name of a variable, none is one that Kubernetes sets in pods for a
    # Service of the bridge.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "auto_envvar_prefix": "CLUSTER_BRIDGE",
    },
)
_Function = Callable[..., None]


@app.callback()
def root(
    *,
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """The options of `bridge` itself."""


def _add(
    group: str, name: str, function: _Function, *examples: str, to: typer.Typer = app, **more: Any
) -> None:
    """Adds a command to a group of `bridge --help`; an empty group hides it."""
    to.command(
        name,
        cls=Command,
        help=_paragraphs(function),
        epilog="\n\n".join(["Examples:", *examples]) if examples else None,
        rich_help_panel=group or None,
        hidden=not group,
        **more,
    )(function)


def _paragraphs(function: _Function) -> str:
    """The docstring with one line a paragraph, which the terminal wraps."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(it.split("\n")) for it in paragraphs)


def _add_group(group: str, name: str, text: str) -> typer.Typer:
    inner = typer.Typer(cls=CommandGroup, help=text, no_args_is_help=True)
    app.add_typer(inner, name=name, rich_help_panel=group)
    return inner


_JOIN = "Connect clusters"
_add(
    _JOIN,
    "join",
    join,
    "bridge join --kubeconfig remote.yaml",
    "bridge join --kubeconfig remote.yaml --name burst --share 0.5",
    "bridge join -f burst.yaml",
)
_add(
    _JOIN,
    "install",
    install,
    "bridge install --kubeconfig remote.yaml --name burst --all-namespaces",
    "bridge install --kubeconfig remote.yaml --bind shop --dry-run",
)
_add(
    _JOIN,
    "upgrade",
    upgrade,
    "bridge upgrade burst --image registry.example/bridge:2",
    "bridge upgrade burst --share 0.8 --dry-run",
)
_add(_JOIN, "leave", leave, "bridge leave burst", "bridge leave burst --drain --timeout 5m --yes")
_add(_JOIN, "uninstall", uninstall, "bridge uninstall burst", "bridge uninstall burst --drain")

_USE = "Use virtual nodes"
_add(_USE, "offload", offload, "bridge offload", "bridge offload shop --policy burst")
_add(_USE, "unoffload", unoffload, "bridge unoffload shop", "bridge unoffload shop --dry-run")
_volume = _add_group(_USE, "volume", "Copy the files of PersistentVolumeClaims.")
_add(
    "Commands",
    "copy",
    copy,
    "bridge volume copy shop/data-db-0 shop/data-new-0",
    "bridge volume copy shop/data-db-0 archive/data --to burst",
    to=_volume,
)

_OBSERVE = "Observe and diagnose"
_add(_OBSERVE, "status", status, "bridge status", "bridge status burst -o json")
_add(_OBSERVE, "dashboard", dashboard, "bridge dashboard", "bridge dashboard burst --no-open")
_add(
    _OBSERVE,
    "check",
    check,
    "bridge check burst",
    "bridge check --pre --kubeconfig remote.yaml --wait 5m",
)
_add(
    _OBSERVE,
    "explain",
    explain,
    "bridge explain pod/web-0 -n shop",
    "bridge explain deployment/web -n shop --node burst",
    "bridge explain -f pod.yaml",
)
_add(_OBSERVE, "version", version, "bridge version", "bridge version --client")
_add(
    _OBSERVE, "bug-report", bug_report, "bridge bug-report", "bridge bug-report burst -f out.tar.gz"
)

_ADMINISTER = "Administer"
_add(
    _ADMINISTER,
    "render",
    render,
    "bridge render --kubeconfig remote.yaml --name burst > bridge.yaml",
    "bridge render --kubeconfig remote.yaml --all-namespaces | kubectl apply -f -",
)
_rbac = _add_group(
    _ADMINISTER, "rbac", "Print the permissions that the bridge needs, as YAML for kubectl apply."
)
_add(
    "Commands",
    "home",
    rbac_home,
    "bridge rbac home --name burst | kubectl apply -f -",
    "bridge rbac home --name burst --namespace shop --account infra/bridge",
    to=_rbac,
)
_add(
    "Commands",
    "namespace",
    rbac_namespace,
    "bridge rbac namespace shop | kubectl apply -f -",
    "bridge rbac namespace shop orders --account infra/bridge",
    to=_rbac,
)
_add(
    "Commands",
    "remote",
    rbac_remote,
    "bridge rbac remote | kubectl --kubeconfig remote.yaml apply -f -",
    "bridge rbac remote --metrics kubelets --policy",
    to=_rbac,
)
_add(
    _ADMINISTER,
    "prune",
    prune,
    "bridge prune --kubeconfig remote.yaml",
    "bridge prune --kubeconfig remote.yaml --remove 0123456789abcdef",
)
_add(_ADMINISTER, "webhook", webhook, "bridge webhook", "bridge webhook --address 192.0.2.7")

# The program of the relay agents.
_add("", "relay-pod", relay_pod)
