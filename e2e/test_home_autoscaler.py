"""Home's cluster-autoscaler ignores pods that wait in a remote, and the virtual node.

The rules by which it reads pods and nodes are in `e2e.autoscaler_predicates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e import autoscaler_predicates as autoscaler
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, wait_for
from e2e.workload_manifests import pod, shell

GPU = "example.com/gpu"
REMOTE_SCHEDULED = "cluster-bridge.io/RemoteScheduled"


def _waiting_pod(bridged: Bridged, name: str) -> None:
    """Creates a pod that no node of the remote can take yet."""
    limits = {"resources": {"limits": {GPU: "1"}}}
    bridged.apply(pod(bridged.node, name, containers=[shell("main", "sleep 3600") | limits]))


def _condition(bridged: Bridged, name: str, kind: str) -> str:
    """The status of a condition of a home pod; "" if it has none."""
    status = get_one(bridged.home, "pod", name, namespace=bridged.namespace)["status"]
    found = (it["status"] for it in status.get("conditions") or () if it["type"] == kind)
    return str(next(found, ""))


@pytest.mark.join("--elastic", f"{GPU}=2", "--unschedulable-timeout", "5m")
def test_pod_that_waits_in_the_remote_triggers_no_scale_up_at_home(bridged: Bridged) -> None:
    """Beside a pod that waits at home, which does."""
    _waiting_pod(bridged, "waits-in-the-remote")
    bridged.apply(pod("no-such-node", "waits-at-home"))
    wait_for(
        lambda: _condition(bridged, "waits-in-the-remote", REMOTE_SCHEDULED) == "False",
        "the remote's scheduler has found no node",
    )
    wait_for(
        lambda: _condition(bridged, "waits-at-home", "PodScheduled") == "False",
        "home's scheduler has found no node",
    )

    (remote_pod,) = bridged.remote_pods()
    assert autoscaler.unschedulable([remote_pod]), "the remote's autoscaler is to act on it"
    pods = bridged.home_pods()
    assert [it["metadata"]["name"] for it in autoscaler.unschedulable(pods)] == ["waits-at-home"]
    assert autoscaler.unprocessed(pods) == []


@pytest.mark.join("--elastic", f"{GPU}=2", "--unschedulable-timeout", "1s")
def test_pod_that_the_remote_gave_up_triggers_no_scale_up_at_home(bridged: Bridged) -> None:
    """The pod has ended; only home's scheduler decides on the one that its controller creates."""
    _waiting_pod(bridged, "train")
    wait_for(
        lambda: bridged.home_pods()[0]["status"].get("phase") == "Failed", "the pod has failed"
    )
    pods = bridged.home_pods()
    assert pods[0]["status"]["reason"] == "RemoteUnschedulable"
    assert autoscaler.unschedulable(pods) == autoscaler.unprocessed(pods) == []


def test_virtual_node_belongs_to_no_group_of_homes_autoscaler(bridged: Bridged) -> None:
    """Although the remote's node belongs to a group, from which its autoscaler removes it."""
    with _node_of_a_group(bridged.remote):
        real = get_one(bridged.remote, "node", bridged.remote.node_names[0])
        assert autoscaler.may_have_a_group(real)
        assert autoscaler.counts_for_limits(real)
        assert autoscaler.is_being_deleted(real)
        # The virtual node shares the label that was set last: the bridge has seen the others.
        wait_for(
            lambda: "accelerator" in _virtual_node(bridged)["metadata"]["labels"],
            "the bridge has seen the labels",
        )
        node = _virtual_node(bridged)
        assert not autoscaler.may_have_a_group(node)
        assert not autoscaler.counts_for_limits(node)
        assert not autoscaler.is_being_deleted(node)


def test_label_that_excludes_the_node_from_limits_is_restored(bridged: Bridged) -> None:
    """Without it, an error of the provider at the virtual node would end each scale-up."""
    bridged.home.kubectl("label", "node", bridged.node, "type-")
    wait_for(
        lambda: not autoscaler.counts_for_limits(_virtual_node(bridged)), "the label is restored"
    )


def _virtual_node(bridged: Bridged) -> Json:
    return get_one(bridged.home, "node", bridged.node)


@contextmanager
def _node_of_a_group(remote: Cluster) -> Iterator[None]:
    """The remote's node has labels and annotations of every provider's groups, and the taint of a
    node that is removed, with an effect that disturbs no pod."""
    sets = {
        "taint": [f"{autoscaler.TO_BE_DELETED}=1:PreferNoSchedule"],
        "annotate": [f"{key}=pool" for key in autoscaler.NODE_GROUP_ANNOTATIONS],
        "label": [f"{key}=pool" for key in (*autoscaler.NODE_GROUP_LABELS, "accelerator")],
    }
    for verb, values in sets.items():
        remote.kubectl(verb, "node", remote.node_names[0], *values)
    try:
        yield
    finally:
        for verb, values in sets.items():
            removals = [f"{value.partition('=')[0]}-" for value in values]
            remote.kubectl(verb, "node", remote.node_names[0], *removals)
