"""Unmanaged objects in the remote, which the bridge must leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from e2e.conftest import Bridged
from e2e.kubectl import get, wait_for
from e2e.workload_manifests import busybox
from translators import quantity


@contextmanager
def unmanaged_objects(bridged: Bridged) -> Iterator[None]:
    """Creates unmanaged objects in the bridge's namespace, one with a name that collides, and in
    another namespace."""
    there = f"others-{bridged.namespace}"
    wait_for(bridged.remote_pods, "the namespace is there")
    bridged.remote.kubectl("create", "namespace", there)
    made = [(there, "theirs"), (bridged.remote_namespace, "clash")]
    for namespace, name in made:
        for manifest in (busybox(bridged.remote.node_names[0], name, "sleep 3600"), _CONFIG):
            bridged.remote.kubectl("apply", "-n", namespace, "-f", "-", input=manifest)
    try:
        yield
    finally:
        bridged.remote.kubectl("delete", "namespace", there, "--wait=false")
        for kind, name in (("pod", "clash"), ("configmap", "theirs"), ("secret", "theirs")):
            bridged.remote.kubectl(
                *("delete", kind, name, "-n", bridged.remote_namespace, "--wait=false"),
                "--ignore-not-found",
            )


def unmanaged_requests(bridged: Bridged, resource: str) -> Fraction:
    """The requests of pods that do not belong to a bridge, such as a control plane that runs as
    pods: cores or bytes."""
    return sum(
        (
            quantity.parse_quantity(
                container.get("resources", {}).get("requests", {}).get(resource, 0)
            )
            for pod in get(
                bridged.remote, "pods", selector="!cluster-bridge.io/node", all_namespaces=True
            )
            for container in pod["spec"]["containers"]
        ),
        Fraction(0),
    )


_CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: theirs}
data: {KEY: theirs}
---
apiVersion: v1
kind: Secret
metadata: {name: theirs}
stringData: {KEY: theirs}
"""
