"""`bridge kueue`: Kueue's objects for virtual nodes, as YAML for `kubectl apply`."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.options.common_options import HomeContext, HomeKubeconfig
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object


def flavors(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE",
            help="Virtual nodes whose resources are the quota. Default: all.",
            show_default=False,
        ),
    ] = None,
    *,
    queue: Annotated[
        str, typer.Option(help="Name of the ClusterQueue, its flavor and the LocalQueues.")
    ] = "virtual-nodes",
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Namespace that gets a LocalQueue, and whose workloads the queue admits; "
            "repeatable. Default: no LocalQueue, and the workloads of all namespaces.",
            show_default=False,
        ),
    ] = None,
    per_node: Annotated[
        bool,
        typer.Option(
            "--per-node",
            help="Print a ResourceFlavor with a quota of its own for each virtual node. Kueue then "
            "chooses the remote by quota, and the admission check only verifies that the workload "
            "fits. Default: one flavor for all, and the check chooses the remote.",
        ),
    ] = False,
    home_kubeconfig: HomeKubeconfig = None,
    home_context: HomeContext = None,
) -> None:
    """Print ResourceFlavors, an AdmissionCheck and a ClusterQueue of Kueue for virtual nodes.

    Quotas are what the virtual nodes offer now; edit the YAML before kubectl apply to change them.
    The check is decided by bridge placement run.
    """
    from bridge.base.join_settings import SettingsError, check_name
    from bridge.cli.commands.rbac import print_objects
    from bridge.cli.run_until_signal import fail, run
    from bridge.kueue.queue_command import find_nodes
    from bridge.kueue.queue_manifests import QueueOptions, queue_objects

    try:
        options = QueueOptions(check_name(queue, "--queue"), tuple(namespace or ()), per_node)
    except SettingsError as error:
        raise fail(str(error), code=2) from None
    home = KubeconfigRef(home_kubeconfig, home_context)
    found: list[Object] = run(lambda _: find_nodes(home, nodes or ()), stops=False)
    print_objects(queue_objects(found, options))
