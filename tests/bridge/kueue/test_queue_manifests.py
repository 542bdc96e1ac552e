"""`bridge kueue flavors`: the objects, and the nodes that they are for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bridge.base.command_error import PreflightError
from bridge.kueue import queue_command
from bridge.kueue.queue_manifests import QueueOptions, queue_objects
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests import kueue_objects, objects
from tests.bridge.cli.conftest import Invoke, invoke  # noqa: F401  # a fixture
from tests.fakeapi import FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write
from translators.kueue import workload
from translators.kueue.remote_choice import Remote, refusal
from translators.object_accessors import Object

NODES = [
    kueue_objects.virtual_node("burst.one", cpu="1500m"),
    kueue_objects.virtual_node("two", cpu="6"),
]


def by_kind(found: list[Object], kind: str) -> list[Object]:
    """The objects of one kind."""
    return [it for it in found if it["kind"] == kind]


def quotas(found: list[Object], resource: str) -> dict[str, str]:
    """The quota of a resource by flavor."""
    (queue,) = by_kind(found, "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    return {
        flavor["name"]: it["nominalQuota"]
        for flavor in group["flavors"]
        for it in flavor["resources"]
        if it["name"] == resource
    }


def test_one_flavor_stands_for_all_nodes_with_the_sum_as_quota() -> None:
    found = queue_objects(NODES, QueueOptions(namespaces=["shop"]))
    (flavor,) = by_kind(found, "ResourceFlavor")
    assert flavor["spec"]["nodeLabels"] == {kueue_objects.VIRTUAL: "true"}
    assert quotas(found, "cpu") == {"virtual-nodes": "7500m"}
    assert quotas(found, "memory") == {"virtual-nodes": "128Gi"}
    (queue,) = by_kind(found, "ClusterQueue")
    (check,) = by_kind(found, "AdmissionCheck")
    assert workload.is_own_check(check)
    listed = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert listed == [{"name": check["metadata"]["name"]}]
    assert "shop" in str(queue["spec"]["namespaceSelector"])
    (local,) = by_kind(found, "LocalQueue")
    assert (local["metadata"]["namespace"], local["spec"]) == (
        "shop",
        {"clusterQueue": "virtual-nodes"},
    )


def test_each_node_has_a_flavor_that_selects_it() -> None:
    found = queue_objects(NODES, QueueOptions(per_node=True))
    assert quotas(found, "cpu") == {"burst.one": "1500m", "two": "6"}
    flavors = {it["metadata"]["name"]: it for it in by_kind(found, "ResourceFlavor")}
    wanted = kueue_objects.workload("w", kueue_objects.pod_set(1, "1"))
    wanted["status"] = kueue_objects.reserved(wanted, flavor_name="two")
    sets = workload.pod_sets(wanted, flavors)
    room = (kueue_objects.nodes(1, 8),)
    assert refusal(sets, Remote(NODES[1], room)) == ""
    assert "nodeSelector" in refusal(sets, Remote(NODES[0], room))


async def test_unknown_nodes_are_named(api: FakeApi, tmp_path: Path) -> None:
    ref = KubeconfigRef(write(tmp_path / "home.yaml", kubeconfig(api.url)))
    with pytest.raises(PreflightError, match="join a remote first"):
        await queue_command.find_nodes(ref, ())
    api.put(objects.node("worker"))
    api.put(NODES[1])
    with pytest.raises(PreflightError, match="no virtual node worker; the virtual nodes are: two"):
        await queue_command.find_nodes(ref, ("worker", "two"))
    (found,) = await queue_command.find_nodes(ref, ())
    assert found["metadata"]["name"] == "two"


def test_command_prints_yaml(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    async def find(_: KubeconfigRef, names: tuple[str, ...]) -> list[Object]:
        assert list(names) == ["two"]
        return NODES[1:]

    monkeypatch.setattr(queue_command, "find_nodes", find)
    result = invoke("kueue", "flavors", "two", "--queue", "gpu", "--namespace", "shop")
    assert result.exit_code == 0, result.output
    kinds = [it["kind"] for it in yaml.safe_load_all(result.stdout)]
    assert kinds == ["ResourceFlavor", "AdmissionCheck", "ClusterQueue", "LocalQueue"]
    assert invoke("kueue", "flavors", "--queue", "Not a name").exit_code == 2
