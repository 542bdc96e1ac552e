"""`bridge rbac`: the rights that a join needs, as YAML for `kubectl apply`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from bridge.base.settings import (
    MetricsChoice,
    NetworkChoice,
    ServingCertificate,
    SettingsError,
    check_name,
)
from translators.objects import Object
from translators.translation_policy import ServiceAccounts

#: The heading in --help of the options that are those of `bridge join`.
AS_JOIN = "As for bridge join"

rbac = typer.Typer(
    help="Print the rights that the bridge needs, as YAML for kubectl apply.",
    no_args_is_help=True,
)

_Account = Annotated[
    str, typer.Option("--account", help="NAMESPACE/NAME of the ServiceAccount that gets them.")
]
_ACCOUNT = "cluster-bridge/cluster-bridge"


@rbac.command("home")
def rbac_home(
    *,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="A namespace whose pods may run in the remote, by a RoleBinding; may be given "
            "several times. More can be bound later: bridge rbac namespace.",
            show_default=False,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            help="Pods of every namespace may: the bridge can read all Secrets, and be any service "
            "account.",
        ),
    ] = False,
    account: _Account = _ACCOUNT,
    leave: Annotated[
        bool, typer.Option("--leave", help="What bridge leave takes at home, too.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="The virtual node's name, so that no other node can be changed; several times for "
            "several nodes.",
            show_default=False,
            rich_help_panel=AS_JOIN,
        ),
    ] = None,
    service_accounts: Annotated[
        ServiceAccounts, typer.Option(help="Identity of the pods.", rich_help_panel=AS_JOIN)
    ] = "home",
    serving_certificate: Annotated[
        ServingCertificate,
        typer.Option(help="Who signs the kubelet API's certificate.", rich_help_panel=AS_JOIN),
    ] = "self-signed",
    network: Annotated[
        NetworkChoice, typer.Option(help="How pods reach each other.", rich_help_panel=AS_JOIN)
    ] = "flat",
) -> None:
    """The rights at home: of the node and its pods, and by namespace of what pods use."""
    from bridge.cli.runner import fail
    from bridge.rbac import manifests as rights

    bound = namespace or []
    if bound and all_namespaces:
        raise fail("--namespace and --all-namespaces exclude each other", code=2)
    try:
        asked = rights.HomePermissions(
            nodes=[check_name(it) for it in name or ()],
            service_accounts=service_accounts,
            serving=serving_certificate,
            network=network,
            leave=leave,
        )
        objects = rights.home_objects(
            asked,
            rights.parse_account(account),
            [rights.check_namespace(it) for it in bound],
            all_namespaces=all_namespaces,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(objects)
    if not (bound or all_namespaces):
        typer.echo(
            "no namespace is bound: pods wait until `bridge rbac namespace NAME | kubectl apply "
            "-f -` lets those of a namespace run in the remote",
            err=True,
        )


@rbac.command("namespace")
def rbac_namespace(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Namespaces of home.", show_default=False)
    ],
    *,
    account: _Account = _ACCOUNT,
) -> None:
    """What lets pods of one more namespace of home run in the remote."""
    from bridge.cli.runner import fail
    from bridge.rbac import manifests as rights

    try:
        bound = [rights.check_namespace(it) for it in names]
        objects = rights.namespace_bindings(rights.parse_account(account), bound)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(objects)


@rbac.command("remote")
def rbac_remote(
    *,
    account: _Account = _ACCOUNT,
    keep_namespaces: Annotated[
        bool,
        typer.Option(
            "--keep-namespaces",
            help="Without the right to list every kind, by which the bridge sees that a namespace "
            "which it made holds nothing of others. Such namespaces then stay.",
        ),
    ] = False,
    metrics: Annotated[
        MetricsChoice,
        typer.Option(
            help="Where to learn what pods use. kubelets is exact, and takes get nodes/proxy; "
            "auto grants both.",
            rich_help_panel=AS_JOIN,
        ),
    ] = "api",
) -> None:
    """The rights in the remote."""
    from bridge.cli.runner import fail
    from bridge.rbac import manifests as rights

    asked = rights.RemotePermissions(metrics=metrics, keep_namespaces=keep_namespaces)
    try:
        objects = rights.remote_objects(asked, rights.parse_account(account))
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(objects)


def print_objects(objects: Iterable[Object]) -> None:
    """Objects as YAML that kubectl takes."""
    import yaml

    # Without anchors: a reader sees each object whole.
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _: object) -> bool:
            return True

    text = yaml.dump_all(objects, Dumper=Plain, sort_keys=False, default_flow_style=None, width=200)
    typer.echo(text, nl=False)
