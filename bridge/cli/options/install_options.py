"""The options of `bridge install` and `bridge upgrade` beside those of `bridge join`."""

from __future__ import annotations

from bridge.cli.options.join_options import JOIN
from bridge.cli.options.option_declaration import ABSENT, CONSUMED, Option
from bridge.cli.options.value_parsing import Duration

INSTALLATION = "Installation in the home cluster"

#: The options of `bridge join` that an installed bridge can have.
INSTALLED: tuple[Option, ...] = tuple(option for option in JOIN if option.in_cluster != ABSENT)
#: For a bridge in the home cluster only.
INSTALL: tuple[Option, ...] = (
    Option(
        "dry-run",
        "Show what would change, as home's API server reports it, and change nothing.",
        INSTALLATION,
        kind=bool,
        default=False,
        in_cluster=CONSUMED,
    ),
    Option(
        "image",
        "Image of the bridge. Default: cluster-bridge of this version.",
        INSTALLATION,
        in_cluster=CONSUMED,
    ),
    Option(
        "namespace",
        "Namespace of the installation; created if missing.",
        INSTALLATION,
        default="cluster-bridge",
        in_cluster=CONSUMED,
    ),
    Option(
        "replicas",
        "Number of bridges: one serves the node, the others stand by.",
        INSTALLATION,
        kind=int,
        minimum=1,
        default=2,
        in_cluster=CONSUMED,
    ),
    Option(
        "bind",
        "Namespace whose pods may run in the remote; repeatable. Bind more later with bridge rbac "
        "namespace.",
        INSTALLATION,
        kind=list[str],
        metavar="NAMESPACE",
        in_cluster=CONSUMED,
    ),
    Option(
        "all-namespaces",
        "Let pods of every namespace run in the remote. The bridge can then read all Secrets of "
        "home and use every ServiceAccount.",
        INSTALLATION,
        kind=bool,
        default=False,
        in_cluster=CONSUMED,
    ),
    Option(
        "offload-webhook",
        "Also install the webhook of bridge offload, with as many replicas, for API servers "
        "without MutatingAdmissionPolicy.",
        INSTALLATION,
        kind=bool,
        default=False,
        in_cluster=CONSUMED,
    ),
    Option(
        "relay-from",
        "Clients of the relay's ports, by a NetworkPolicy: pods of this namespace, or a network "
        "such as 10.0.0.0/16; repeatable. Default: pods of all namespaces.",
        INSTALLATION,
        kind=list[str],
        metavar="NAMESPACE|NETWORK",
        in_cluster=CONSUMED,
    ),
    Option(
        "wait",
        "Wait until the node is Ready.",
        INSTALLATION,
        kind=bool,
        default=True,
        in_cluster=CONSUMED,
    ),
    Option(
        "timeout",
        "Maximum time to wait for the node to be Ready.",
        INSTALLATION,
        kind=Duration(1),
        default="3m",
        in_cluster=CONSUMED,
    ),
)
