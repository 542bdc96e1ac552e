"""`make demo`: a Deployment that bursts to a second cluster, on this machine, from nothing.

`up` starts two real clusters, joins the second to the first with a bridge in the background,
applies the sample workload, and shows the result. A second `up` continues with what exists. `down`
removes everything that `up` created. Both print each command as a user would type it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import typer

from e2e.bridge_process import Bridge
from e2e.clusters import Cluster, ClusterError, Settings, down, specs, up
from e2e.clusters.processes import Identity, alive, end, identify

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

SAMPLE = Path(__file__).parents[1] / "manifests" / "sample.yaml"
#: The demo's own set of clusters.
SETTINGS = Settings(prefix="demo")
NODE = "remote"
_SELECT = ("-n", "sample", "-l", "app=web")


def say(text: str) -> None:
    """One line of progress."""
    typer.echo(text, err=True)


def title(text: str) -> None:
    """A heading of a part."""
    typer.secho(f"\n{text}", bold=True)


@app.command("up")
def demo_up() -> None:
    """Start two clusters, join them, and run the sample workload on the second."""
    begin = time.monotonic()
    clusters = up(specs(["home", "remote"], dns=False), SETTINGS, say)
    home, remote = clusters["home"], clusters["remote"]
    title("1. The second cluster joins the first")
    _join(home, remote)
    title("2. The sample workload bursts to it")
    _show(home, "apply", "-f", str(SAMPLE))
    _show(home, "rollout", "status", "-n", "sample", "deployment/web", "--timeout=120s")
    _look(home, remote)
    title(f"Done in {time.monotonic() - begin:.0f} s. Look around:")
    typer.echo(
        f"  export KUBECONFIG={_environment()['KUBECONFIG']}\n"
        f"  export PATH={home.kubectl_path.parent}:$PATH\n"
        "  kubectl --context home get nodes,pods -A -o wide\n"
        "  kubectl --context remote get pods -A\n"
        f"  tail -f {_log()}    # what the bridge does\n"
        "Clean up:\n"
        "  make demo-down"
    )


@app.command("down")
def demo_down() -> None:
    """Remove everything that the demo created."""
    end(_running(), grace=15.0)
    for path in (_record(), _log()):
        path.unlink(missing_ok=True)
    down(None, SETTINGS, say)
    say("the demo was removed")


def _look(home: Cluster, remote: Cluster) -> None:
    title("The virtual node and its capacity")
    _show(home, "get", "nodes", "-o", "wide")
    columns = "CPU:.status.allocatable.cpu,MEMORY:.status.allocatable.memory"
    _show(
        home, "get", "node", NODE, "-o", f"custom-columns={columns},PODS:.status.allocatable.pods"
    )
    title("The pods, at home and in the remote")
    _show(home, "get", "pods", *_SELECT, "-o", "wide")
    _show(remote, "get", "pods", "-A", "-l", "app=web", "-o", "wide")
    title("A log line, and a command in a pod")
    _show(home, "logs", "-n", "sample", "deployment/web", "--tail=1")
    command = (
        'echo "$GREETING, I am $(hostname); my password has $(wc -c </secret/password) letters"'
    )
    _show(home, "exec", "-n", "sample", "deployment/web", "--", "sh", "-c", command)
    title("The Service's endpoints at home are the pods in the remote")
    _show(home, "get", "endpointslices", "-n", "sample", "-l", "kubernetes.io/service-name=web")


def _show(cluster: Cluster, *args: str) -> None:
    """Runs kubectl like a user who has followed the output of `demo_up`."""
    typer.secho(f"$ kubectl --context {cluster.context} {shlex.join(args)}", fg="cyan")
    sys.stdout.flush()
    command = [str(cluster.kubectl_path), "--context", cluster.context, *args]
    if subprocess.run(command, check=False, env=_environment()).returncode != 0:
        typer.secho(f"the command failed; the bridge's log is {_log()}", fg="red", err=True)
        raise typer.Exit(1)


def _environment() -> dict[str, str]:
    """The environment of kubectl, with the contexts of both clusters; home's is the current one."""
    files = [str(SETTINGS.kubeconfig(name)) for name in ("home", "remote")]
    return {**os.environ, "KUBECONFIG": os.pathsep.join(files)}


def _join(home: Cluster, remote: Cluster) -> None:
    bridge = Bridge(home, remote, _log(), ("--name", NODE))
    typer.secho(f"$ {shlex.join(map(str, ['bridge', *bridge.command[1:]]))} &", fg="cyan")
    if alive(_running()):
        typer.echo("(already running)")
        return
    _log().unlink(missing_ok=True)
    bridge.start()
    if bridge.process is not None:
        identity = identify(bridge.process.pid)
        _record().write_text(json.dumps(asdict(identity) if identity else None))
    typer.echo(_log().read_text().rstrip())


def _running() -> Identity | None:
    """The bridge that an earlier run started in the background."""
    with contextlib.suppress(FileNotFoundError, TypeError, ValueError):
        return Identity(**json.loads(_record().read_text()))
    return None


def _record() -> Path:
    return SETTINGS.state_root / "demo-bridge.json"


def _log() -> Path:
    return SETTINGS.state_root / "demo-bridge.log"


if __name__ == "__main__":
    try:
        app()
    except ClusterError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise SystemExit(1) from None
