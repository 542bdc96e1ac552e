"""Where the claim is found, whatever the permissions and the prepared namespaces at each join."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import JoinSettings
from bridge.election import election_lease
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.node import lease_namespace
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.node.node_object import LABEL_REMOTE
from bridge.prune.remote_leftovers import PruneSettings, remove_leftovers
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_keeper import ClaimRejected
from bridge.remote_claim.claim_place import (
    MAX_FOLLOWED,
    ClaimPlaces,
    FoundLeases,
    find_claims,
)
from bridge.remote_claim.claim_record import Claim, HomeRecord
from sync.base.exception_summary import first_leaf
from sync.kube.api_errors import MalformedResponse
from sync.kube.api_resources import LEASES, NAMESPACES, NODES, Object
from sync.kube.client import KubeClient
from tests.bridge.prepared_namespaces import limit_to_roles, prepared
from tests.bridge.running_join import running_join, start_join
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.fakeapi.credentials import credentials_for
from tests.sync.engine_harness import NODE
from translators.virtual_node_identity import Identity, home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")


def identity(two: Clusters) -> Identity:
    uid = str(two.home.get(NAMESPACES, "kube-system")["metadata"]["uid"])
    return Identity(home_id_from_uid(uid), "h", NODE)


def leases(two: Clusters) -> dict[str, Claim]:
    """The claims and markers in the remote, by namespace."""
    found = (claim_record.parse_claim(it) for it in two.remote.objects(LEASES))
    return {it.namespace: it for it in found}


async def joined(two: Clusters, settings: JoinSettings) -> dict[str, Claim]:
    """Joins, and ends; returns the Leases."""
    async with running_join(two, settings):
        return leases(two)


async def rejected(settings: JoinSettings) -> str:
    """The error of a join that ends by itself."""
    run = start_join(settings)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(120):
            await run.task
    error = first_leaf(caught.value)
    assert isinstance(error, ClaimRejected), error
    return str(error)


def forget(two: Clusters) -> None:
    """Removes home's record, as in a home that was restored to a state before its first join."""
    name, change = election_lease.election_lease_name(NODE), {claim_record.ANNOTATION_RECORD: None}
    patch: Object = {"metadata": {"annotations": change}}
    two.home.update(LEASES, name, patch, lease_namespace.NAMESPACE)


def places(found: dict[str, Claim]) -> dict[str, str]:
    """Namespace → the namespace to which a marker leads, "" for the claim."""
    return {name: it.marker.namespace if it.marker else "" for name, it in found.items()}


async def test_claim_is_in_the_first_namespace_by_name(two: Clusters) -> None:
    settings = prepared(two, "b", "a", "c")
    limit_to_roles(two, settings)
    first = await joined(two, settings)
    assert places(first) == {"a": "", "b": "a", "c": "a"}
    assert first["b"].marker == ("a", first["a"].id)
    second = await joined(two, prepared(two, "c", "a", "b"))
    assert places(second) == places(first)
    assert second["a"].sequence > first["a"].sequence


async def test_claim_stays_in_its_namespace_when_permissions_are_added(two: Clusters) -> None:
    settings = prepared(two, "b", "c")
    limit_to_roles(two, settings)
    await joined(two, settings)
    two.remote.heal()
    two.remote.api.authorize = lambda _: True
    # A namespace that precedes it, and kube-node-lease, which is preferred.
    found = await joined(two, prepared(two, "a", "b", "c"))
    assert places(found) == {LEASE_NAMESPACE: "b", "a": "b", "b": "", "c": "b"}


async def test_claim_in_kube_node_lease_is_found_with_fewer_namespaces(two: Clusters) -> None:
    found = await joined(two, prepared(two, "a", "b"))
    assert places(found) == {LEASE_NAMESPACE: "", "a": LEASE_NAMESPACE, "b": LEASE_NAMESPACE}
    found = await joined(two, prepared(two, "b"))
    assert places(found)[LEASE_NAMESPACE] == ""


async def test_claim_leaves_a_namespace_that_is_no_longer_prepared(two: Clusters) -> None:
    settings = prepared(two, "a", "b", "c")
    limit_to_roles(two, settings)
    first = await joined(two, settings)
    found = await joined(two, prepared(two, "b", "c"))
    assert places(found) == {"a": "b", "b": "", "c": "b"}
    assert found["b"].sequence > first["a"].sequence
    two.remote.fail(Fault("*", "*/namespaces/a/*", code=403, times=None))
    again = await joined(two, prepared(two, "b", "c"))
    assert places(again) == places(found)


async def test_hidden_claim_ends_the_join_until_a_person_decides(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    held = (await joined(two, settings))[LEASE_NAMESPACE]
    label = two.home.get(NODES, NODE)["metadata"]["labels"][LABEL_REMOTE]
    # The administrator of the remote replaces the ClusterRole by Roles.
    limit_to_roles(two, settings)
    message = await rejected(settings)
    assert "is in Lease kube-node-lease/" in message
    assert "grant get, create and patch of Leases in kube-node-lease" in message
    assert f"--take-over-claim {held.id}: the claim then moves to namespace a" in message
    found = await joined(two, replace(settings, take_over_claim=held.id))
    assert places(found) == {LEASE_NAMESPACE: "", "a": "", "b": "a"}
    assert two.home.get(NODES, NODE)["metadata"]["labels"][LABEL_REMOTE] == label
    # The option stays in a Deployment, and permissions are added again.
    two.remote.heal()
    two.remote.api.authorize = lambda _: True
    found = await joined(two, replace(settings, take_over_claim=held.id))
    assert places(found) == {LEASE_NAMESPACE: "a", "a": "", "b": "a"}


async def test_marker_leads_a_home_without_record_to_the_claim(two: Clusters) -> None:
    """A home that was restored to a state before its first join, with other options."""
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    held = (await joined(two, settings))["a"]
    forget(two)
    message = await rejected(prepared(two, "b"))
    assert "this home has no record of the bridge that holds it" in message
    assert "(Lease a/" in message
    forget(two)
    two.remote.fail(Fault("*", "*/namespaces/a/leases/*", code=403, times=None))
    message = await rejected(prepared(two, "b"))
    assert f"--take-over-claim {held.id}" in message
    assert "in Lease a/" in message


async def find(two: Clusters) -> FoundLeases:
    """Searches as a bridge without prepared namespaces."""
    async with KubeClient(credentials_for(two.remote, "remote")) as remote:
        return await find_claims(remote, identity(two), ClaimPlaces(), HomeRecord())


async def test_search_for_the_claim_follows_few_markers(two: Clusters) -> None:
    name = claim_record.claim_lease_name(identity(two))
    chain = [LEASE_NAMESPACE, *(f"n{number}" for number in range(1, MAX_FOLLOWED + 2))]
    for namespace, following in pairwise(chain[:-1]):
        annotations = {claim_record.ANNOTATION_MARKER: f"{following} abc"}
        meta = {"name": name, "namespace": namespace, "annotations": annotations}
        two.remote.put(LEASES.manifest(meta, spec={}))
    meta = {"name": name, "namespace": chain[-2]}
    two.remote.put(LEASES.manifest(meta, spec={}))
    assert [claim.namespace for claim in (await find(two)).claims] == [chain[-2]]
    annotations = {claim_record.ANNOTATION_MARKER: f"{chain[-1]} abc"}
    two.remote.update(LEASES, name, {"metadata": {"annotations": annotations}}, chain[-2])
    with pytest.raises(MalformedResponse, match="markers of the claim lead to more than 8"):
        await find(two)


async def test_claim_that_was_deleted_is_made_where_it_was(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    held = (await joined(two, settings))["a"]
    two.remote.remove(LEASES, claim_record.claim_lease_name(identity(two)), "a")
    found = await joined(two, settings)
    assert places(found) == {"a": "", "b": "a"}
    assert found["a"].uid != held.uid


async def test_marker_becomes_the_claim_where_the_claim_is_gone(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    await joined(two, settings)
    two.remote.remove(LEASES, claim_record.claim_lease_name(identity(two)), "a")
    found = await joined(two, prepared(two, "b"))
    assert places(found) == {"b": ""}


async def test_leave_removes_claim_and_markers_with_roles_alone(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    assert set(await joined(two, settings)) == {"a", "b"}
    leaving = LeaveSettings(NODE, settings.home, None, force=False)
    assert await leave(leaving, notify=lambda _: None, confirm=lambda _: True)
    assert leases(two) == {}
    assert two.home.find(NODES, NODE) is None


async def test_leave_of_a_home_that_lost_the_claim_is_rejected(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    await joined(two, settings)
    two.remote.fail(Fault("*", "*/namespaces/a/leases/*", code=403, times=None))
    leaving = LeaveSettings(NODE, settings.home, None, force=False)
    with pytest.raises(PreflightError, match="a may not be read with this credential"):
        await leave(leaving, notify=lambda _: None, confirm=lambda _: True)
    assert two.home.find(NODES, NODE) is not None


async def test_prune_with_roles_removes_claims_of_named_namespaces(two: Clusters) -> None:
    settings = prepared(two, "a", "b")
    limit_to_roles(two, settings)
    await joined(two, settings)
    two.remote.fail(Fault("GET", "/apis/coordination.k8s.io/v1/leases", code=403, times=None))
    pruning = PruneSettings(settings.remote, identity(two).home_id, namespaces=("a", "b"))
    reports: list[str] = []
    assert await remove_leftovers(pruning, notify=reports.append, confirm=lambda _: True)
    assert leases(two) == {}
    assert any("may not list Leases in kube-node-lease" in it for it in reports)
