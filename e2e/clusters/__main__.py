"""`python -m e2e.clusters up|down|status|env`: two real clusters from one command.

Output for scripts (kubeconfig paths, shell lines) goes to standard output, progress to standard
error. Exit status 0: success; 1: failure, or `status` found a stopped component; 2: invalid
request.
"""

from __future__ import annotations

import shlex
import sys
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated

import typer

from e2e import clusters as api
from e2e.clusters.cluster import (
    DEFAULT_NETWORK,
    DEFAULT_PREFIX,
    Backend,
    Cluster,
    Settings,
    parse_nodes,
)
from e2e.clusters.errors import ClusterError, InvalidRequest
from e2e.clusters.versions import DEFAULT_KUBERNETES, KUBERNETES, KubernetesVersion

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]…", help="Clusters.", show_default=False)
]
Prefix = Annotated[str, typer.Option(help="Prefix that separates sets of clusters on one machine.")]
StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the state of clusters.", show_default="~/.local/state/cluster-bridge"
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(help="Folder for built programs.", show_default="~/.cache/cluster-bridge"),
]


@app.command()
def up(  # noqa: PLR0917 - typer calls it by keyword
    names: Names = None,
    backend: Annotated[
        Backend, typer.Option(help="auto: kind if a Docker engine answers, else native.")
    ] = Backend.AUTO,
    nodes: Annotated[str, typer.Option(metavar="real|simulated[=N]")] = "real",
    node_count: Annotated[
        int, typer.Option(help="Number of nodes; more than one real node needs kind.", min=1)
    ] = 1,
    kubernetes: Annotated[
        str, typer.Option(help=f"Version: {', '.join(KUBERNETES)}, or a full one.")
    ] = DEFAULT_KUBERNETES.removeprefix("v"),
    node_image: Annotated[
        str,
        typer.Option(
            help="Image of kind's nodes: stock (published by kind), local (composed here from "
            "Debian packages and Go modules), auto (local if stock is unavailable), or a name.",
        ),
    ] = "auto",
    prefix: Prefix = DEFAULT_PREFIX,
    network: Annotated[str, typer.Option(help="Network to take addresses from.")] = str(
        DEFAULT_NETWORK
    ),
    state_dir: StateDir = None,
    cache_dir: CacheDir = None,
) -> None:
    """Start clusters (default: home and remote) and print the paths of their kubeconfig files."""
    kind, count = parse_nodes(nodes, node_count)
    wanted = api.specs(names or api.DEFAULT_NAMES, nodes=kind, node_count=count)
    settings = _settings(
        prefix,
        state_dir,
        cache_dir,
        backend=backend,
        kubernetes=kubernetes,
        network=network,
        node_image=node_image,
    )
    for cluster in api.up(wanted, settings, _say).values():
        print(f"{cluster.name}\t{cluster.kubeconfig}")


@app.command()
def build(prefix: Prefix = DEFAULT_PREFIX, cache_dir: CacheDir = None) -> None:
    """Build the programs that the tests of `make test` use."""
    api.build(_settings(prefix, None, cache_dir), _say)


@app.command()
def down(
    names: Names = None,
    prefix: Prefix = DEFAULT_PREFIX,
    state_dir: StateDir = None,
    cache_dir: CacheDir = None,
) -> None:
    """Stop clusters (default: all of the set) and remove all traces of them."""
    api.down(names or None, _settings(prefix, state_dir, cache_dir), _say)


@app.command()
def status(
    names: Names = None,
    prefix: Prefix = DEFAULT_PREFIX,
    state_dir: StateDir = None,
    cache_dir: CacheDir = None,
) -> None:
    """Show which clusters are up, and which of their components have stopped."""
    found = _select(names, _settings(prefix, state_dir, cache_dir), missing_is_error=False)
    stopped = {c.name: [n for n, runs in c.components().items() if not runs] for c in found}
    rows = [("CLUSTER", "VERSION", "SERVER", "NODES", "PODS", "HOST", "STOPPED")]
    for c in found:
        broken = ", ".join(stopped[c.name]) or "-"
        nodes = _nodes_ready(c)
        rows.append((c.name, c.kubernetes, c.server, nodes, c.pod_cidr, c.host_address, broken))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    missing = set(names or ()) - {cluster.name for cluster in found}
    if not found or missing or any(stopped.values()):
        raise typer.Exit(1)


@app.command()
def env(
    names: Names = None,
    prefix: Prefix = DEFAULT_PREFIX,
    state_dir: StateDir = None,
    cache_dir: CacheDir = None,
) -> None:
    """Print lines for a shell: eval "$(python -m e2e.clusters env)"."""
    found = _select(names, _settings(prefix, state_dir, cache_dir), missing_is_error=True)
    for cluster in found:
        variable = "KUBECONFIG_" + cluster.name.upper().replace("-", "_")
        print(f"export {variable}={shlex.quote(str(cluster.kubeconfig))}")
    joined = ":".join(str(cluster.kubeconfig) for cluster in found)
    print(f"export KUBECONFIG={shlex.quote(joined)}")
    folders = dict.fromkeys(str(cluster.kubectl_path.parent) for cluster in found)
    print(f'export PATH={shlex.quote(":".join(folders))}:"$PATH"')


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        app(prog_name="python -m e2e.clusters")
    except InvalidRequest as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except ClusterError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def _settings(
    prefix: str,
    state_dir: Path | None,
    cache_dir: Path | None,
    *,
    backend: Backend = Backend.AUTO,
    kubernetes: str = DEFAULT_KUBERNETES,
    network: str = str(DEFAULT_NETWORK),
    node_image: str = "auto",
) -> Settings:
    folders = {"state_root": state_dir, "cache": cache_dir}
    try:
        addresses = IPv4Network(network)
    except ValueError as error:
        raise InvalidRequest(str(error), where="--network") from error
    return Settings(
        prefix=prefix,
        backend=backend,
        kubernetes=KubernetesVersion.parse(kubernetes),
        network=addresses,
        node_image=node_image,
        **{name: path for name, path in folders.items() if path is not None},
    )


def _select(
    names: list[str] | None, settings: Settings, *, missing_is_error: bool
) -> list[Cluster]:
    found = api.find(settings)
    wanted = names or list(found)
    missing = [name for name in wanted if name not in found] or ([] if found else ["no cluster"])
    if missing and missing_is_error:
        raise ClusterError(
            f"not up: {', '.join(missing)}",
            where=str(settings.state),
            next_step="python -m e2e.clusters up",
        )
    return [found[name] for name in wanted if name in found]


def _nodes_ready(cluster: Cluster) -> str:
    shown = cluster.kubectl(
        "get", "nodes", "--no-headers", "--request-timeout=5s", check=False, timeout=20
    )
    if shown.returncode != 0:
        return "no answer"
    lines = [line.split() for line in shown.stdout.splitlines()]
    return f"{sum(line[1] == 'Ready' for line in lines)}/{len(lines)} Ready"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
