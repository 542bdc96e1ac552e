"""`bridge fleet`: a bridge in the home cluster whose joins are objects."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.base.join_settings import NetworkChoice, SettingsError, StorageChoice, check_name
from bridge.cli.options.common_options import ObjectsNamespace


def render_fleet(
    watched: ObjectsNamespace,
    *,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a virtual node (required): the bridge can write no other; repeatable.",
            show_default=False,
        ),
    ] = None,
    cluster_profiles: Annotated[
        bool,
        typer.Option("--cluster-profiles", help="Serve ClusterProfiles instead of Remotes."),
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(
            help="Image of the bridge. Default: cluster-bridge of this version.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the bridge.")
    ] = "cluster-bridge",
    replicas: Annotated[
        int, typer.Option(min=1, max=20, help="Number of bridges, which divide the nodes.")
    ] = 2,
    bind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE",
            help="Namespace whose pods may run in the remotes; repeatable.",
            show_default=False,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool,
        typer.Option(
            "--all-namespaces",
            help="Let pods of every namespace run in the remotes. The bridge can then read all "
            "Secrets of home and use every ServiceAccount.",
        ),
    ] = False,
    network: Annotated[
        NetworkChoice, typer.Option(help="The network modes to grant permissions for.")
    ] = "auto",
    storage: Annotated[
        StorageChoice,
        typer.Option(help="provision: grant the permissions to provision volumes in the remotes."),
    ] = "auto",
) -> None:
    """Print a bridge for the home cluster that serves Remotes, as YAML for kubectl apply.

    The CustomResourceDefinition, a Deployment with probes, its account and permissions, also those
    to leave. Contains no credential of a remote: each Remote names a Secret. Contacts no cluster.
    """
    from bridge.base.version import version
    from bridge.cli import custom_resources
    from bridge.cli.commands.rbac import print_objects
    from bridge.cli.run_until_signal import fail
    from bridge.install.fleet_installation import (
        MAX_NODES,
        NAME,
        FleetInstallation,
        fleet_objects,
    )
    from bridge.rbac.rbac_manifests import HomePermissions, check_namespace

    if bind and all_namespaces:
        raise fail("--bind and --all-namespaces exclude each other", code=2)
    if not name:
        raise fail(
            "--name is required: the nodes of the objects, as in `bridge fleet render fleet --name "
            "osaka --name lima`",
            code=2,
        )
    nodes = list(dict.fromkeys(name))
    if len(nodes) > MAX_NODES:
        raise fail(
            f"{len(nodes)} nodes are more than the {MAX_NODES} of one installation; divide the "
            "objects among namespaces, each with an installation in another --namespace",
            code=2,
        )
    try:
        options = FleetInstallation(
            check_namespace(watched),
            HomePermissions(
                [check_name(it) for it in nodes],
                network=network,
                leave=True,
                storage=storage,
            ),
            image or f"cluster-bridge:{version()}",
            profiles=cluster_profiles,
            definitions=() if cluster_profiles else (custom_resources.remote_definition(),),
            namespace=check_namespace(namespace),
            replicas=replicas,
            bound_namespaces=[check_namespace(it) for it in bind or ()],
            all_namespaces=all_namespaces,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(fleet_objects(options))
    if not (bind or all_namespaces):
        typer.echo(
            "no namespace is bound: pods stay Pending until `bridge rbac namespace NAME --account "
            f"{options.namespace}/{NAME} | kubectl apply -f -` lets those of a namespace run in "
            "the remotes",
            err=True,
        )
