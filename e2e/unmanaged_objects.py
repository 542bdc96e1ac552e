"""What others have in the remote: what the bridge leaves alone, and what is not there for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from e2e.conftest import Bridged
from e2e.kubectl import get, wait_for
from e2e.workload_manifests import busybox
from translators import quantity


@contextmanager
def objects_of_others(bridged: Bridged) -> Iterator[None]:
    """Objects of others beside ours in our namespace, one in the way, and a namespace of theirs."""
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


def asked_by_others(bridged: Bridged, resource: str) -> Fraction:
    """What pods of the remote's own request, such as a control plane that runs as pods: cores or
    bytes."""
    return sum(
        (
            quantity.parse_quantity(
                container.get("resources", {}).get("requests", {}).get(resource, 0)
            )
            for pod in get(bridged.remote, "pods", selector="!cluster-bridge.io/node", every=True)
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
