"""Remote namespaces are created with the first pod and deleted after the last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get, uids, wait_for
from e2e.workload_manifests import busybox


def _there(bridged: Bridged) -> str | None:
    return uids(get(bridged.remote, "namespaces")).get(bridged.remote_namespace)


@pytest.mark.short_linger
def test_empty_namespace_is_deleted_and_recreated(bridged: Bridged) -> None:
    """Pods created during the deletion wait, and start in a new one."""
    bridged.apply(busybox(bridged.node, "first", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    before = _there(bridged)
    assert before
    bridged.kubectl("delete", "pod", "first", "--timeout=60s")
    wait_for(lambda: _there(bridged) is None, "the namespace was deleted")

    bridged.apply(busybox(bridged.node, "second", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
    assert _there(bridged) not in (None, before)


@pytest.mark.short_linger
def test_namespace_deleted_under_its_pods_is_recreated(bridged: Bridged) -> None:
    """After a deletion of the whole remote namespace the pod is re-created at once."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    before = _there(bridged)
    bridged.remote.kubectl("delete", "namespace", bridged.remote_namespace, "--timeout=60s")
    wait_for(lambda: _there(bridged) not in (None, before), "it is made again", seconds=20)
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")


@pytest.mark.core
@pytest.mark.short_linger
def test_namespace_with_unmanaged_objects_stays(bridged: Bridged) -> None:
    """One unmanaged ConfigMap suffices."""
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


# -- resources that the preferred version of their group does not serve ----------------------

#: A CustomResourceDefinition that serves one version.
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.namespaces.example.com}
spec:
  group: namespaces.example.com
  scope: Namespaced
  names: {plural: PLURAL, singular: SINGULAR, kind: KIND, listKind: KINDList}
  versions:
    - name: VERSION
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
"""
ROUTE = """
apiVersion: namespaces.example.com/v1alpha2
kind: OldRoute
metadata: {name: theirs}
"""


def _crd(plural: str, kind: str, version: str) -> str:
    crd = CRD.replace("PLURAL", plural).replace("SINGULAR", plural.removesuffix("s"))
    return crd.replace("KIND", kind).replace("VERSION", version)


@pytest.fixture
def old_routes(remote: Cluster) -> Iterator[None]:
    """The remote serves OldRoute only in v1alpha2, of a group that prefers v1."""
    crds = _crd("newroutes", "NewRoute", "v1") + _crd("oldroutes", "OldRoute", "v1alpha2")
    remote.kubectl("apply", "-f", "-", input=crds)
    try:
        wait_for(
            lambda: remote.kubectl("get", "oldroutes", "-A", check=False).returncode == 0,
            "the remote serves the resource",
        )
        group = "/apis/namespaces.example.com"
        wait_for(
            lambda: (
                '"preferredVersion":{"groupVersion":"namespaces.example.com/v1"'
                in remote.kubectl("get", "--raw", group).stdout
            ),
            "the group prefers the other version",
        )
        yield
    finally:
        remote.kubectl("delete", "-f", "-", "--timeout=60s", input=crds)


@pytest.mark.usefixtures("old_routes")
@pytest.mark.short_linger
def test_custom_resource_of_a_non_preferred_version_keeps_its_namespace(
    bridged: Bridged,
) -> None:
    """After the last pod, and after `bridge leave`."""
    bridged.apply(busybox(bridged.node, "guest", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/guest", "--timeout=60s")
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("-n", namespace, "apply", "-f", "-", input=ROUTE)
    bridged.kubectl("delete", "pod", "guest", "--timeout=60s")
    with pytest.raises(AssertionError, match="not in 8 s"):
        wait_for(lambda: _there(bridged) is None, "it stays", seconds=8)

    assert bridged.bridge.stop() == 0
    left = bridge_process.run("leave", bridged.node, "--yes", home=bridged.bridge.home)
    assert left.returncode == 0, left.stderr
    assert f"namespace {namespace} stays: it holds OldRoute theirs" in left.stderr
    assert "theirs" in uids(get(bridged.remote, "oldroutes", namespace=namespace))
    bridged.remote.kubectl("-n", namespace, "delete", "oldroute", "theirs")
