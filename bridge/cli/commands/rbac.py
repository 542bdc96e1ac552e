"""`bridge rbac`: the permissions that a join needs, as YAML for `kubectl apply`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from bridge.base.join_settings import HomeIdentity, SettingsError, check_name
from bridge.cli.options.install_options import INSTALL
from bridge.cli.options.join_options import JOIN
from bridge.cli.options.option_declaration import Option, with_options
from translators.object_accessors import Object

#: The heading in --help of the options that are those of `bridge join`.
AS_JOIN = "As in bridge join"

_Account = Annotated[
    str,
    typer.Option("--account", help="ServiceAccount that gets the permissions, as NAMESPACE/NAME."),
]
_ACCOUNT = "cluster-bridge/cluster-bridge"
_STORAGE_HELP = (
    "provision: include the permissions with which the bridge provisions "
    "PersistentVolumeClaims. auto and none: omit them."
)


def _declared(name: str, group: str, **changes: Any) -> Option:
    """The option of `bridge join` or `bridge install`, under another heading."""
    option = next(it for it in (*JOIN, *INSTALL) if it.name == name)
    return dataclasses.replace(option, group=group, **changes)


@with_options(
    _declared("all-namespaces", ""),
    _declared(
        "home-identity",
        AS_JOIN,
        kind=HomeIdentity,
        default="node",
        help="Identity of the bridge at home. node: home signs a certificate of the node, and the "
        "account needs little. service-account: the account acts in place of the node, for a home "
        "that signs no such certificates.",
    ),
    *(_declared(it, AS_JOIN) for it in ("service-accounts", "serving-certificate", "network")),
    _declared("storage", AS_JOIN, help=_STORAGE_HELP),
)
def rbac_home(
    *,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Namespace whose pods may run in the remote, by a RoleBinding; repeatable. Bind "
            "more later with bridge rbac namespace.",
            show_default=False,
        ),
    ] = None,
    account: _Account = _ACCOUNT,
    leave: Annotated[
        bool,
        typer.Option("--leave", help="Include the permissions that bridge leave needs at home."),
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of the virtual node (required): the bridge can change no other node, nor "
            "pods on it; repeatable.",
            show_default=False,
            rich_help_panel=AS_JOIN,
        ),
    ] = None,
    no_policy: Annotated[
        bool,
        typer.Option(
            "--no-policy",
            help="Omit the ValidatingAdmissionPolicy that confines the account to its virtual "
            "node, for API servers without that API (older than 1.30).",
        ),
    ] = False,
    **values: Any,
) -> None:
    """Print the permissions at home, for the node, its pods, and what these use by namespace."""
    from bridge.cli.run_until_signal import fail
    from bridge.rbac import rbac_manifests

    bound, all_namespaces = namespace or [], values["all_namespaces"]
    if bound and all_namespaces:
        raise fail("--namespace and --all-namespaces exclude each other", code=2)
    if not name:
        raise fail(
            "--name is required: the virtual node that the account serves, as in bridge join: "
            "`bridge rbac home --name burst`",
            code=2,
        )
    try:
        scope = rbac_manifests.HomePermissions(
            nodes=[check_name(it) for it in name],
            service_accounts=values["service_accounts"],
            serving=values["serving_certificate"],
            network=values["network"],
            leave=leave,
            identity=values["home_identity"],
            storage=values["storage"],
        )
        objects = rbac_manifests.home_objects(
            scope,
            rbac_manifests.parse_account(account),
            [rbac_manifests.check_namespace(it) for it in bound],
            all_namespaces=all_namespaces,
            policy=not no_policy,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(objects)
    if not (bound or all_namespaces):
        typer.echo(
            "no namespace is bound: pods stay Pending until `bridge rbac namespace NAME | kubectl "
            "apply -f -` lets those of a namespace run in the remote",
            err=True,
        )


def rbac_namespace(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Namespaces of the home cluster.", show_default=False
        ),
    ],
    *,
    account: _Account = _ACCOUNT,
) -> None:
    """Print the permissions that let pods of more home namespaces run in the remote."""
    from bridge.cli.run_until_signal import fail
    from bridge.rbac import rbac_manifests

    try:
        bound = [rbac_manifests.check_namespace(it) for it in names]
        objects = rbac_manifests.namespace_bindings(rbac_manifests.parse_account(account), bound)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(objects)


@with_options(
    _declared("metrics", AS_JOIN, default="api"),
    _declared("storage", AS_JOIN, help=_STORAGE_HELP),
)
def rbac_remote(
    *,
    account: _Account = _ACCOUNT,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Prepared namespace of bridge join --remote-namespaces; repeatable. The account "
            "then gets Roles in these alone, and no ClusterRole. Default: any namespace.",
            show_default=False,
        ),
    ] = None,
    cluster_reads: Annotated[
        bool,
        typer.Option(
            "--cluster-reads",
            help="With --namespace: also print a ClusterRole that reads nodes, PriorityClasses, "
            "and the names, quotas and pods of all namespaces, for the virtual node's capacity, "
            "labels and conditions. Without it, the join's options and quotas of the prepared "
            "namespaces declare the capacity.",
        ),
    ] = False,
    keep_namespaces: Annotated[
        bool,
        typer.Option(
            "--keep-namespaces",
            help="Omit the permission to list every kind, with which the bridge verifies that a "
            "namespace contains no unmanaged resources before it deletes the namespace. The bridge "
            "then keeps the namespaces that it created.",
        ),
    ] = False,
    policy: Annotated[
        bool,
        typer.Option(
            "--policy",
            help="Include ValidatingAdmissionPolicies that reserve the bridge's labels and "
            "annotations to bridges, and confine the account to its own objects and namespaces. "
            "Requires Kubernetes 1.30 or newer.",
        ),
    ] = False,
    no_token_renewal: Annotated[
        bool,
        typer.Option(
            "--no-token-renewal",
            help="Omit the permission to create tokens of the account itself, with which the "
            "bridge renews its token before it expires.",
        ),
    ] = False,
    **values: Any,
) -> None:
    """Print the permissions in the remote cluster."""
    from bridge.cli.run_until_signal import fail
    from bridge.rbac import rbac_manifests

    try:
        scope = rbac_manifests.RemotePermissions(
            metrics=values["metrics"],
            keep_namespaces=keep_namespaces,
            renew_token=not no_token_renewal,
            namespaces=[rbac_manifests.check_namespace(it) for it in namespace or ()],
            cluster_reads=cluster_reads,
            storage=values["storage"],
        )
        scope.check()
        objects = rbac_manifests.remote_objects(
            scope, rbac_manifests.parse_account(account), policy=policy
        )
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
