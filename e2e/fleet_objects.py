"""A bridge whose joins are objects of home, which are applied as by GitOps tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, get

#: An address that drops packets (RFC 5737): a remote that is dead.
NOWHERE = "https://192.0.2.1:6443"


@dataclass
class ObjectsRun(Bridge):
    """One `bridge run` with these arguments."""

    source: Sequence[str | Path] = ()

    @property
    def command(self) -> list[str | Path]:
        """The command line."""
        return [*self.through, *self.program, "run", *self.source]


def sync(home: Cluster, *objects: Json) -> str:
    """Applies objects as Argo CD and Flux do; returns kubectl's lines."""
    text = yaml.safe_dump_all(objects)
    args = ("apply", "--server-side", "--field-manager=gitops", "-f", "-")
    return home.kubectl(*args, input=text).stdout


def differences(home: Cluster, *objects: Json) -> str:
    """The differences that a GitOps tool would report."""
    text = yaml.safe_dump_all(objects)
    args = ("diff", "--server-side", "--field-manager=gitops", "-f", "-")
    return home.kubectl(*args, input=text, check=False).stdout


def create_namespace(home: Cluster, name: str) -> None:
    """Creates the namespace, if it does not exist."""
    if name not in {it["metadata"]["name"] for it in get(home, "namespaces")}:
        home.kubectl("create", "namespace", name)


def remove_all(home: Cluster, resource: str, namespace: str) -> None:
    """Deletes objects and Secrets, also those of a test that failed: no bridge runs any more that
    would remove the finalizer."""
    for it in get(home, resource, namespace=namespace):
        patch = '{"metadata": {"finalizers": null}}'
        name = it["metadata"]["name"]
        home.kubectl("patch", resource, name, "-n", namespace, "--type=merge", "-p", patch)
    home.kubectl("delete", f"{resource},secrets", "--all", "-n", namespace)
