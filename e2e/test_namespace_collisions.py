"""Two home namespaces map to one remote namespace: the second one gets nothing there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e import service_accounts
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import create_namespace, get, get_one, wait_for
from e2e.workload_manifests import busybox, pod, secret, shell

_TEMPLATE = "edge-{namespace}"


def _meeting(bridged: Bridged) -> tuple[str, str, str]:
    """A long name that the template truncates within its dashes, a short one that equals the
    truncated form, and their remote namespace."""
    start = bridged.namespace
    long = start + "-" * (62 - len(start)) + "b"
    tail = hashlib.sha256(f"edge-{long}".encode()).hexdigest()[:16]
    return long, f"{start}-{tail}", f"edge-{start}-{tail}"


@contextmanager
def _namespaces(home: Cluster, node: str, *names: str) -> Iterator[None]:
    try:
        for name in names:
            create_namespace(home, name)
            service_accounts.bind(home, node, name)
        yield
    finally:
        home.kubectl("delete", "namespace", *names, "--wait=false", "--ignore-not-found")


@pytest.mark.join(f"--namespace-template={_TEMPLATE}", "--namespace-linger=2")
def test_second_home_namespace_of_one_remote_namespace_waits(bridged: Bridged) -> None:
    """No pod of the second namespace runs beside the Secrets of the first; none is overwritten."""
    long, short, there = _meeting(bridged)
    home, remote = bridged.home, bridged.remote
    with _namespaces(home, bridged.node, long, short):
        home.kubectl("apply", "-n", long, "-f", "-", input=secret("key", {"KEY": "first"}))
        env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "KEY"}}}]
        holds = pod(bridged.node, "holds", containers=[shell("main", "sleep 3600", env=env)])
        home.kubectl("apply", "-n", long, "-f", "-", input=holds)
        home.kubectl("wait", "-n", long, "--for=condition=Ready", "pod/holds", "--timeout=90s")
        before = get_one(remote, "secret", "key", namespace=there)

        home.kubectl("apply", "-n", short, "-f", "-", input=secret("key", {"KEY": "second"}))
        home.kubectl("apply", "-n", short, "-f", "-", input=holds)
        home.kubectl(
            "apply", "-n", short, "-f", "-", input=busybox(bridged.node, "reads", "sleep 3600")
        )

        def clashes(name: str) -> bool:
            status = get_one(home, "pod", name, namespace=short)["status"]
            named = all(it in status.get("message", "") for it in (long, short))
            return status.get("reason") == "RemoteClash" and named

        wait_for(
            lambda: clashes("holds") and clashes("reads"), "both wait, and name the namespaces"
        )
        assert [it["metadata"]["name"] for it in get(remote, "pods", namespace=there)] == ["holds"]
        after = get_one(remote, "secret", "key", namespace=there)
        # Despite all retries nothing was written.
        assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

        home.kubectl("delete", "-n", short, "pod", "--all", "--timeout=60s")
        assert [it["metadata"]["name"] for it in get(remote, "pods", namespace=there)] == ["holds"]
        home.kubectl("delete", "-n", long, "pod", "--all", "--timeout=60s")
