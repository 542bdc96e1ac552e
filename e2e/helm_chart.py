"""Runs Helm, which installs the chart of this repository."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import yaml

from e2e import bridge_process
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.kubectl import Json

CHART = Path(__file__).parent.parent / "manifests" / "chart"


def program() -> Path:
    """Helm's program; the first call builds it."""
    return go_build.programs(go_recipes.helm(), settings_from_environment().cache, silent) / "helm"


def run(
    home: Cluster, namespace: str, *args: str, values: Json | None = None, timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """Runs Helm in a namespace of the home cluster, with these values; the caller checks the exit
    status."""
    cluster = ("--kubeconfig", home.kubeconfig, "--namespace", namespace)
    given, text = ((), None) if values is None else (("--values", "-"), json.dumps(values))
    command: list[str | Path] = [program(), *args, *cluster, *given]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=timeout
    )


def portable_kubeconfig(remote: Cluster) -> str:
    """A kubeconfig of the remote that refers to no files, for the chart's values."""
    render = ("render", "--kubeconfig", remote.kubeconfig, "--name", "any")
    objects = yaml.safe_load_all(bridge_process.run(*render).stdout)
    secret = next(obj for obj in objects if obj["kind"] == "Secret" and "data" in obj)
    return base64.b64decode(secret["data"]["kubeconfig"]).decode()
