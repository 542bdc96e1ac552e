"""`bridge storage-class`: a StorageClass whose volumes are in the remote, as YAML."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.storage.storage_class_manifests import ReclaimPolicy


def storage_class(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the StorageClass at home.", show_default=False
        ),
    ],
    *,
    remote_class: Annotated[
        str,
        typer.Option(
            help="StorageClass of the remote in which volumes are created. Default: the remote's "
            "default class.",
            show_default=False,
        ),
    ] = "",
    access_modes: Annotated[
        str,
        typer.Option(
            metavar="MODES",
            help="Access modes that PersistentVolumeClaims may have, MODE[,MODE]. Default: all; "
            "the remote decides.",
            show_default=False,
        ),
    ] = "",
    reclaim_policy: Annotated[
        ReclaimPolicy,
        typer.Option(
            help="Delete: the data is deleted with its PersistentVolumeClaim at home. Retain: it "
            "stays in the remote."
        ),
    ] = "Delete",
    remote_id: Annotated[
        str,
        typer.Option(
            help="The only remote that provisions the class, by the label cluster-bridge.io/remote "
            "of its virtual nodes. Default: any.",
            show_default=False,
        ),
    ] = "",
    default: Annotated[
        bool,
        typer.Option("--default", help="Make it the default class of home."),
    ] = False,
) -> None:
    """Print a StorageClass whose volumes the bridge provisions, as YAML for kubectl apply.

    PersistentVolumeClaims of the class get a volume in the remote on whose virtual node their pod
    runs. The CSIDriver that home's scheduler needs is printed too.
    """
    from bridge.base.join_settings import SettingsError, check_name
    from bridge.cli.commands.rbac import print_objects
    from bridge.cli.run_until_signal import fail
    from bridge.storage import storage_class_manifests
    from bridge.storage.storage_class_manifests import StorageClassOptions

    try:
        options = StorageClassOptions(
            check_name(name, "NAME"),
            remote_class=remote_class,
            access_modes=storage_class_manifests.parse_access_modes(access_modes),
            reclaim_policy=reclaim_policy,
            remote_id=remote_id,
            is_default=default,
        )
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    print_objects(storage_class_manifests.storage_objects(options))
