"""`bridge upgrade`: applies an installation again, with the options that it has."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.commands import install
from bridge.cli.options.common_options import (
    ApproveRequests,
    check_argument,
    check_context,
    node_argument,
)
from bridge.cli.options.install_options import INSTALL, INSTALLED
from bridge.cli.options.join_options import PROCESS
from bridge.cli.options.option_declaration import Option, given, with_options
from sync.kube.kubeconfig_ref import KubeconfigRef

if TYPE_CHECKING:
    from bridge.install.installed_options import InstalledOptions

_OPTIONS = (*(option for option in INSTALLED if option.name != "name"), *INSTALL, *PROCESS)
#: Options that the installation does not record: if omitted, their default applies.
_NOT_RECORDED = frozenset(
    {"kubeconfig", "context", "home-kubeconfig", "home-context", "dry-run", "wait", "timeout"}
)


def _parameter(option: Option) -> Any:
    if option.required:
        text = f"{option.help} Default: that of the installation."
        option = dataclasses.replace(option, required=False, help=text)
    return option.typer_parameter(with_default_in_help=option.name in _NOT_RECORDED)


@with_options(*map(_parameter, _OPTIONS))
def upgrade(
    ctx: typer.Context,
    node: Annotated[str | None, node_argument("The virtual node of the installation.")] = None,
    *,
    yes: ApproveRequests = False,
    **values: Any,
) -> None:
    """Upgrade an installed bridge, or change some of its options.

    Omitted options keep the values of the installation, and so does the remote's kubeconfig. An
    image that was never named follows the version of this command. To return an option to its
    default, use bridge install with all options.
    """
    from bridge.cli.run_until_signal import fail, run

    check_context(values["kubeconfig"], values["context"])
    name = check_argument(node or None, "NODE") or _name_from_context(values)
    if not name:
        raise fail("NODE is missing: the virtual node of the installation", code=2)
    home = KubeconfigRef(values["home_kubeconfig"], values["home_context"])
    installed = run(lambda _: read_installation(home, name), stops=False)
    if values["kubeconfig"] is None and installed.kubeconfig is None:
        raise fail(
            "home: the installation's Secret has no valid kubeconfig of the remote; name one with "
            "--kubeconfig"
        )
    recorded = _recorded_values(installed)
    chosen = {it.parameter: values[it.parameter] for it in given(ctx, _OPTIONS)} | {"name": name}
    if "bind" in chosen or "all_namespaces" in chosen:
        recorded |= {"bind": (), "all_namespaces": False}
    written = [option for option in (*INSTALLED, *PROCESS) if option.parameter in recorded | chosen]
    initial = {it.parameter: it.initial for it in _OPTIONS}
    install.apply_request(
        install.request(initial | recorded | chosen, written),
        assume_yes=yes,
        selects_identity=False,
        stored_kubeconfig=installed.kubeconfig if values["kubeconfig"] is None else None,
    )


async def read_installation(home: KubeconfigRef, node: str) -> InstalledOptions:
    """Reads the options of the node's installation from home. Raises PreflightError."""
    from bridge.clusters.connection import as_preflight_errors, connect
    from bridge.install.installed_options import find_installed_options

    async with connect(home, side="home", notify=lambda _: None) as client:
        with as_preflight_errors("home"):
            return await find_installed_options(client, node)


def _name_from_context(values: dict[str, Any]) -> str:
    """The name that a join with this kubeconfig would have; "" without a kubeconfig."""
    from bridge.cli.run_until_signal import fail
    from bridge.install import flattened_kubeconfig
    from sync.kube.api_errors import ClientConfigError
    from translators.derived_names import dns_label

    if values["kubeconfig"] is None:
        return ""
    try:
        ref = KubeconfigRef(values["kubeconfig"], values["context"])
        return dns_label(flattened_kubeconfig.flatten_kubeconfig(ref).context)
    except ClientConfigError as error:
        raise fail(str(error)) from None


def _recorded_values(installed: InstalledOptions) -> dict[str, Any]:
    """The installation's options, by parameter name. Ends the command for an argument that this
    version does not know."""
    from bridge.cli.run_until_signal import fail

    by_flag = {option.flag: option for option in (*INSTALLED, *PROCESS)}
    values: dict[str, Any] = {
        "image": installed.image,
        "namespace": installed.namespace,
        "replicas": installed.replicas,
        "bind": installed.bound_namespaces,
        "all_namespaces": installed.all_namespaces,
        "offload_webhook": installed.offload_webhook,
        "relay_from": installed.relay_from,
    }
    for argument in installed.arguments:
        flag, _, text = argument.partition("=")
        if flag not in by_flag:
            raise fail(
                f"home: the installation has the argument {flag}, which this version does not "
                "know; use bridge install with all options"
            )
        values[by_flag[flag].parameter] = by_flag[flag].value_of_argument(text)
    return values
