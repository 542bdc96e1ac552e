"""Reads of clusters by tests, with the semantics of kubectl."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e import api_reader, kubectl
from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import CommandFailed
from tests.clusters.cluster_handle import cluster_handle
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write


@pytest.fixture
def cluster(api: FakeApi, tmp_path: Path) -> Cluster:
    """The fake API server as one of the test clusters."""
    write(tmp_path / "kubeconfig", kubeconfig(api.url))
    return cluster_handle(tmp_path, server=api.url)


def config_map(name: str, namespace: str = "default", **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "labels": labels}
    managed = [{"manager": "kubectl", "operation": "Update"}]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "managedFields": managed}}


async def test_objects_are_as_kubectl_has_them(api: FakeApi, cluster: Cluster) -> None:
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    api.put(config_map("a"))
    api.put(config_map("b", "shop", app="web"))

    def names(*args: Any, **options: Any) -> list[str]:
        found = kubectl.get(cluster, *args, **options)
        assert {(it["kind"], it["apiVersion"]) for it in found} <= {
            ("ConfigMap", "v1"),
            ("Namespace", "v1"),
        }
        assert not any("managedFields" in it["metadata"] for it in found)
        return [it["metadata"]["name"] for it in found]

    look = asyncio.to_thread
    assert await look(names, "configmaps") == ["a"]
    assert await look(names, "configmap", namespace="shop") == ["b"]
    assert await look(names, "configmaps", all_namespaces=True) == ["a", "b"]
    assert await look(names, "configmaps", all_namespaces=True, selector="app=web") == ["b"]
    both = await look(names, "configmaps,namespaces", namespace="shop")
    assert both[0] == "b"
    assert "shop" in both[1:]
    (b,) = await look(
        api_reader.list_objects, cluster, "configmaps", namespace="shop", managed_fields=True
    )
    assert b["metadata"]["managedFields"]
    one = await look(kubectl.get_one, cluster, "configmap", "b", namespace="shop")
    assert one["metadata"]["labels"] == {"app": "web"}


async def test_what_is_not_there_and_who_does_not_answer_is_an_error(
    api: FakeApi, cluster: Cluster
) -> None:
    with pytest.raises(CommandFailed, match="404"):
        await asyncio.to_thread(api_reader.get_object, cluster, "node", "none")
    await api.stop()
    with pytest.raises(CommandFailed, match="GET /api/v1/nodes"):
        await asyncio.to_thread(api_reader.list_objects, cluster, "nodes")


async def test_a_connection_that_was_closed_is_replaced(api: FakeApi, cluster: Cluster) -> None:
    assert await asyncio.to_thread(api_reader.list_objects, cluster, "configmaps") == []
    api.fail(Fault("GET", "*/configmaps", drop="before"))
    assert await asyncio.to_thread(api_reader.list_objects, cluster, "configmaps") == []
