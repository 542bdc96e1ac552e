"""`bridge install` and `bridge render`: a bridge in the home cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from bridge.base.join_settings import JoinSettings, SettingsError
from bridge.base.printable_text import escape_line
from bridge.cli.options.common_options import ApproveRequests
from bridge.cli.options.install_options import INSTALL, INSTALLED
from bridge.cli.options.join_options import JOIN, PROCESS, join_settings
from bridge.cli.options.option_declaration import PASSED, Option, given, with_options

if TYPE_CHECKING:
    from bridge.install.flattened_kubeconfig import FlattenedKubeconfig
    from bridge.install.installation import Installation

#: Options of `INSTALL` about applying objects, which `bridge render` does not do.
_APPLYING = ("dry-run", "wait", "timeout")


@with_options(*INSTALLED, *INSTALL, *PROCESS)
def install(ctx: typer.Context, *, yes: ApproveRequests = False, **values: Any) -> None:
    """Install the bridge in the home cluster, and wait until its virtual node is Ready.

    Installing again applies what differs. An option that is missing then returns to its default;
    bridge upgrade keeps it.
    """
    apply_request(request(values, given(ctx, (*INSTALLED, *PROCESS))), assume_yes=yes)


@with_options(*INSTALLED, *(option for option in INSTALL if option.name not in _APPLYING), *PROCESS)
def render(ctx: typer.Context, **values: Any) -> None:
    """Print what bridge install applies, as YAML for kubectl apply.

    The Secret in it holds the remote's kubeconfig. Contacts neither cluster.
    """
    from bridge.cli.commands.rbac import print_objects
    from bridge.install import installation_manifests

    values = {"dry_run": True, "wait": False, "timeout": 0.0, **values}
    wanted, kubeconfig = _installation(request(values, given(ctx, (*INSTALLED, *PROCESS))))
    print_objects(installation_manifests.render(wanted, kubeconfig.text))
    _print_note(
        f"node {wanted.node}: the Secret holds the remote's credential; keep this YAML secret"
    )


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """The options of one installation."""

    settings: JoinSettings
    arguments: Sequence[str]
    """The options that the installed bridge is started with."""
    image: str | None
    namespace: str
    replicas: int
    bind: Sequence[str]
    all_namespaces: bool
    offload_webhook: bool
    relay_from: Sequence[str]
    dry_run: bool
    wait: bool
    timeout: float


def request(values: Mapping[str, Any], written: Iterable[Option]) -> InstallRequest:
    """The request for a value of each option, by parameter name; the installed bridge is started
    with the ``written`` options. Ends the command if the options are invalid."""
    from bridge.cli.run_until_signal import fail

    try:
        initial = {option.parameter: option.initial for option in JOIN}
        settings = join_settings(initial | dict(values))
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    if values["bind"] and values["all_namespaces"]:
        raise fail("--bind and --all-namespaces exclude each other", code=2)
    if values["relay_from"] and settings.network not in ("relay", "auto"):
        raise fail("--relay-from requires --network relay or auto", code=2)
    if not settings.port:
        raise fail("--port 0 cannot be used in the home cluster; omit it or name a port", code=2)
    arguments = [
        argument
        for option in written
        if option.in_cluster == PASSED
        for argument in option.arguments(values[option.parameter])
    ]
    rest = {it.parameter: values[it.parameter] for it in INSTALL}
    rest |= {name: tuple(rest[name] or ()) for name in ("bind", "relay_from")}
    return InstallRequest(settings, arguments, **rest)


def apply_request(
    wanted: InstallRequest,
    *,
    assume_yes: bool,
    stored_kubeconfig: str | None = None,
    selects_identity: bool = True,
) -> None:
    """Applies the installation at home, and waits until the node is Ready.

    ``assume_yes`` consents to approvals at home. With ``stored_kubeconfig``, that of the
    installation, the remote's kubeconfig stays as it is. Without ``selects_identity``, an
    installation whose bridge is its account is not offered to be the node.
    """
    from bridge.cli.run_until_signal import STOP_SECONDS, report_line, run
    from bridge.cli.terminal_question import terminal_consent
    from bridge.clusters.connection import connect
    from bridge.install import installer

    installation, kubeconfig = _installation(wanted, stored_kubeconfig)
    order = installer.InstallOrder(
        installation,
        kubeconfig.text,
        # Without a wait, the command ends before the pods request anything.
        terminal_consent(assume_yes=assume_yes, asks=wanted.wait and not wanted.dry_run),
        dry_run=wanted.dry_run,
        wait=wanted.wait,
        timeout=wanted.timeout,
        selects_identity=selects_identity and (wanted.wait or wanted.dry_run),
    )

    async def apply() -> None:
        async with connect(wanted.settings.home, side="home", notify=report_line) as home:
            await installer.install(home, order, notify=report_line)

    run(lambda _: apply(), stops=False, exit_within=STOP_SECONDS)
    if wanted.dry_run:
        return
    if not (installation.bound_namespaces or installation.all_namespaces):
        _print_note(
            "pods of a namespace run once it is bound: bridge rbac namespace NAME --account "
            f"{installation.account} | kubectl apply -f -"
        )


def check_relay_from(client: str) -> str:
    """A namespace, or a network. Raises SettingsError."""
    from bridge.base.join_settings import check_network
    from bridge.rbac.rbac_manifests import check_namespace

    return check_network(client, "--relay-from") if "/" in client else check_namespace(client)


def _installation(
    wanted: InstallRequest, stored_kubeconfig: str | None = None
) -> tuple[Installation, FlattenedKubeconfig]:
    """The installation, and the remote's kubeconfig. Ends the command if either is invalid."""
    from bridge.base.version import version
    from bridge.cli.run_until_signal import fail
    from bridge.install import flattened_kubeconfig
    from bridge.install.flattened_kubeconfig import FlattenedKubeconfig
    from bridge.install.installation import Installation
    from bridge.rbac.rbac_manifests import HomePermissions, check_namespace
    from sync.kube.api_errors import ClientConfigError
    from translators.derived_names import dns_label

    settings = wanted.settings
    try:
        for namespace in (wanted.namespace, *wanted.bind):
            check_namespace(namespace)
        relay_from = tuple(map(check_relay_from, wanted.relay_from))
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    try:
        kubeconfig = (
            flattened_kubeconfig.flatten_kubeconfig(settings.remote)
            if stored_kubeconfig is None
            else FlattenedKubeconfig(stored_kubeconfig, context="")
        )
    except ClientConfigError as error:
        raise fail(str(error)) from None
    for note in kubeconfig.notes:
        _print_note(note)
    node = settings.name or dns_label(kubeconfig.context)
    installation = Installation(
        node=node,
        home_identity=settings.home_identity,
        image=wanted.image or f"cluster-bridge:{version()}",
        permissions=HomePermissions(
            nodes=[node],
            service_accounts=settings.service_accounts,
            serving=settings.serving,
            network=settings.network,
            storage=settings.storage,
        ),
        arguments=wanted.arguments,
        namespace=wanted.namespace,
        replicas=wanted.replicas,
        bound_namespaces=wanted.bind,
        all_namespaces=wanted.all_namespaces,
        port=settings.port,
        offload_webhook=wanted.offload_webhook,
        relay_from=relay_from,
    )
    return installation, kubeconfig


def _print_note(line: str) -> None:
    print(escape_line(line), file=sys.stderr)
