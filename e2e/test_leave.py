"""`bridge leave`: what is ours goes from both sides, and nothing else."""

from __future__ import annotations

from e2e import bridge as bridge_command
from e2e.conftest import Bridged
from e2e.kubectl import get, uids, wait_for
from e2e.workloads import busybox


def test_leave_removes_what_is_ours_and_keeps_what_is_not(bridged: Bridged) -> None:
    """It refuses while a bridge serves the node, then says what it removes, and does."""
    bridged.apply(busybox(bridged.node, "one", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=60s")
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("create", "configmap", "-n", namespace, "theirs")

    served = bridge_command.run("leave", "--name", bridged.node, "--yes", home=bridged.home)
    assert served.returncode == 1
    assert "a bridge serves node" in served.stderr
    assert uids(bridged.remote_pods())
    assert bridged.bridge.stop() == 0
    unasked = bridge_command.run("leave", "--name", bridged.node, home=bridged.home)
    assert unasked.returncode == 2

    left = bridge_command.run("leave", "--name", bridged.node, "--yes", home=bridged.home)
    assert left.returncode == 0, left.stderr
    assert f"home:   Pod {bridged.namespace}/one" in left.stderr
    assert f"remote: Pod {namespace}/one" in left.stderr
    assert f"namespace {namespace} stays: it holds ConfigMap theirs" in left.stderr
    assert bridged.node not in uids(get(bridged.home, "nodes"))
    assert not bridged.home_pods()
    assert not bridged.remote_pods()
    assert "theirs" in uids(get(bridged.remote, "configmaps", namespace=namespace))

    bridged.remote.kubectl("delete", "configmap", "-n", namespace, "theirs")
    again = bridge_command.run(
        *("leave", "--name", bridged.node, "--yes", "--kubeconfig", bridged.remote.kubeconfig),
        home=bridged.home,
    )
    assert again.returncode == 0, again.stderr
    wait_for(
        lambda: namespace not in uids(get(bridged.remote, "namespaces")),
        "the empty namespace is gone",
    )
