"""Remote namespaces come with the first pod and go after the last."""

from __future__ import annotations

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import get, uids, wait_for
from e2e.workloads import busybox


def _there(bridged: Bridged) -> str | None:
    return uids(get(bridged.remote, "namespaces")).get(bridged.remote_namespace)


@pytest.mark.join("--namespace-linger=2")
def test_an_empty_namespace_goes_and_comes_again(bridged: Bridged) -> None:
    """Pods that come while it goes wait, and start in another one."""
    bridged.apply(busybox(bridged.node, "first", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    before = _there(bridged)
    assert before
    bridged.kubectl("delete", "pod", "first", "--timeout=60s")
    wait_for(lambda: _there(bridged) is None, "the namespace is gone")

    bridged.apply(busybox(bridged.node, "second", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
    assert _there(bridged) not in (None, before)


@pytest.mark.join("--namespace-linger=2")
def test_a_namespace_that_is_deleted_under_its_pods_is_made_again(bridged: Bridged) -> None:
    """Somebody deletes the whole namespace in the remote: the pod is made again at once."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    before = _there(bridged)
    bridged.remote.kubectl("delete", "namespace", bridged.remote_namespace, "--timeout=60s")
    wait_for(lambda: _there(bridged) not in (None, before), "it is made again", seconds=20)
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")


@pytest.mark.join("--namespace-linger=2")
def test_a_namespace_with_something_of_others_stays(bridged: Bridged) -> None:
    """One ConfigMap of somebody else is enough."""
    bridged.apply(busybox(bridged.node, "guest", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/guest", "--timeout=60s")
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("-n", namespace, "create", "configmap", "theirs")
    try:
        bridged.kubectl("delete", "pod", "guest", "--timeout=60s")
        with pytest.raises(AssertionError, match="not in 8 s"):
            wait_for(lambda: _there(bridged) is None, "it stays", seconds=8)
    finally:
        bridged.remote.kubectl("-n", namespace, "delete", "configmap", "theirs")
