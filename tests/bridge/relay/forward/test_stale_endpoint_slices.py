"""Slices of a previous relay, when the node is joined with another ``--network``."""

from __future__ import annotations

import json
import logging

import pytest

from bridge.node.join_record import ANNOTATION_OPTIONS
from sync.kube.api_resources import ENDPOINT_SLICES, NAMESPACES, NODES, Object
from tests.bridge.running_join import running_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.sync.engine_harness import NODE
from translators.relay import forward_plan
from translators.virtual_node_identity import Identity, home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")


def put_slice(two: Clusters, name: str, node: str) -> None:
    """One that a relay of this node has made."""
    home_uid = two.home.get(NAMESPACES, "kube-system")["metadata"]["uid"]
    identity = Identity(home_id=home_id_from_uid(home_uid), home_name="h", node=node)
    service: Object = {"metadata": {"name": "web", "namespace": "shop", "uid": "u"}}
    two.home.put(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                **forward_plan.slice_metadata(service, name, identity),
                "name": name,
                "namespace": "shop",
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.7"]}],
        }
    )


def names(two: Clusters) -> list[str]:
    return sorted(it["metadata"]["name"] for it in two.home.objects(ENDPOINT_SLICES, "shop"))


async def was_joined(two: Clusters, network: str) -> None:
    """By a bridge that was killed, with this network."""
    async with running_join(two):
        pass
    annotations = two.home.get(NODES, NODE)["metadata"]["annotations"]
    options = {**json.loads(annotations[ANNOTATION_OPTIONS]), "network": network}
    changed = {"metadata": {"annotations": {ANNOTATION_OPTIONS: json.dumps(options)}}}
    two.home.update(NODES, NODE, changed)
    put_slice(two, "ours", NODE)
    put_slice(two, "anothers", "another")


async def test_slices_of_the_node_are_deleted(two: Clusters) -> None:
    await was_joined(two, "relay")
    async with running_join(two):
        assert names(two) == ["anothers"]


async def test_no_request_without_a_previous_relay(two: Clusters) -> None:
    await was_joined(two, "flat")
    two.home.clear_log()
    async with running_join(two):
        pass
    assert not two.home.requests("DELETE", "*/endpointslices/*")
    assert names(two) == ["anothers", "ours"]


async def test_missing_permission_to_delete_is_logged(
    two: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    await was_joined(two, "relay")
    two.home.fail(Fault("DELETE", "*/endpointslices/*", code=403))
    with caplog.at_level(logging.WARNING):
        async with running_join(two):
            assert "ours" in names(two)
    assert "kubectl delete endpointslices -A -l" in caplog.text
