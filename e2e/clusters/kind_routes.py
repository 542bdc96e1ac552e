"""Routes of this machine to the pods of kind clusters, as native clusters have them.

A program on this machine that is not in a cluster, such as the bridge of the tests, reaches nodes
through Docker's network and pods through their node: directly with the user's own engine, through
the engine's namespace with a private one. Adding an existing route and removing an absent one are
no errors. An ordinary user cannot add routes, and with Docker in a virtual machine (Docker Desktop)
they lead nowhere: this is reported, and everything else continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from ipaddress import IPv4Network

from e2e.clusters import native_network
from e2e.clusters.cluster import Progress
from e2e.clusters.docker_engine import Hop
from e2e.clusters.errors import CommandFailed, MissingTool
from e2e.clusters.run_command import run


def add(routes: Mapping[str, str], hop: Hop | None, name: str, say: Progress) -> None:
    """Adds routes to these ranges of pods: range → a node's address.

    `hop` is the next hop before the nodes of a private engine. `name` is the cluster's name for
    messages.

    :raises CommandFailed: a private engine's namespace rejects a route.
    """
    if hop is not None:
        native_network.batch(_ip_commands(routes), namespace=hop.namespace)
        native_network.batch(_ip_commands(dict.fromkeys(routes, str(hop.address))))
        return
    try:
        native_network.batch(_ip_commands(routes))
    except (CommandFailed, MissingTool) as error:
        say(
            f"{name}: this machine has no route to its pods ({error.what}): programs here, such as "
            "a bridge with --relay-image (e2e/test_relay_reverse.py), cannot reach them. Run `up` "
            "as root, on the Linux that runs Docker's containers"
        )


def remove(pods: IPv4Network, hop: Hop | None) -> None:
    """Removes every route to pods of this range, or of a part of it."""
    flush = ["route", "flush", "root", str(pods)]
    with contextlib.suppress(MissingTool):  # then no route was ever added
        run(["ip", *flush], check=False)
        if hop is not None:
            run(["ip", "-netns", hop.namespace, *flush], check=False)


def _ip_commands(routes: Mapping[str, str]) -> list[str]:
    return [f"route replace {pods} via {address}" for pods, address in routes.items()]
