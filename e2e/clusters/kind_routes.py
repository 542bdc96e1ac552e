"""This machine's ways to the pods of clusters of kind, as native clusters have them.

A program that runs on this machine and not in a cluster, such as the bridge of the tests, reaches
nodes by Docker's network, and pods through their node: directly where the engine is the user's own,
through the private engine's namespace otherwise. A way may be had again, and is not missed where it
is gone. An ordinary user cannot have one, nor does it lead anywhere where Docker runs in a machine
of its own (Docker Desktop): that is said, and all else goes on.
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


def have(ways: Mapping[str, str], hop: Hop | None, name: str, say: Progress) -> None:
    """Send what is for these ranges of pods to their nodes: range → a node's address.

    `hop` lies before the nodes of a private engine. `name` is the cluster's, for what is said.

    :raises CommandFailed: a private engine's namespace takes no route.
    """
    if hop is not None:
        native_network.batch(_routes(ways), namespace=hop.namespace)
        native_network.batch(_routes(dict.fromkeys(ways, str(hop.address))))
        return
    try:
        native_network.batch(_routes(ways))
    except (CommandFailed, MissingTool) as error:
        say(
            f"{name}: this machine has no way to its pods ({error.what}): what runs here reaches "
            "none, as a bridge with --relay-image has to (e2e/test_relay_reverse.py). Run `up` as "
            "root, on the Linux that Docker's containers run on"
        )


def remove(pods: IPv4Network, hop: Hop | None) -> None:
    """Take away every way to pods of this range, or of a part of it."""
    flush = ["route", "flush", "root", str(pods)]
    with contextlib.suppress(MissingTool):  # then there has never been one
        run(["ip", *flush], check=False)
        if hop is not None:
            run(["ip", "-netns", hop.namespace, *flush], check=False)


def _routes(ways: Mapping[str, str]) -> list[str]:
    return [f"route replace {pods} via {address}" for pods, address in ways.items()]
