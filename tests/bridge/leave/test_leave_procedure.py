"""`bridge leave`: after a confirmation, managed objects are removed from both clusters, and no
others."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.certificates.cert_dir import default_cert_dir
from bridge.leave import eviction, leave_summary
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.node import join_record, node_object
from bridge.node.namespace_ownership_lease import NamespaceRecord
from bridge.node.node_lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.relay.forward import rtnetlink
from bridge.relay.forward.rtnetlink import Route
from sync.kube import bearer_token
from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
)
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.namespaces import namespace_ownership
from tests.bridge.running_join import SOON
from tests.bridge.two_clusters import CANARY, Clusters
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, node, pod, secret
from tests.sync.engine_harness import NODE, REMOTE_NAMESPACE
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    DOMAIN,
    LABEL_HOME,
    LABEL_NODE,
    namespace_users,
    used_by_annotation,
)
from translators.relay import forward_plan
from translators.timestamps import format_micro_time, parse_time
from translators.virtual_node_identity import Identity, home_id_from_uid

pytestmark = pytest.mark.usefixtures("soon")

Agree = Callable[[list[str]], bool]


class World:
    """Two clusters after a join, with the notifications and confirmations of `leave`."""

    def __init__(self, two: Clusters) -> None:
        self.two = two
        self.notified: list[str] = []
        self.confirmations: list[list[str]] = []
        self.answer = True
        self.settings = LeaveSettings(NODE, two.settings.home, None, force=False)
        self.node = two.home.put(self._node())
        self.lease = two.home.put(lease())
        self._account(two.remote)

    def _node(self) -> Object:
        made = node(NODE)
        made["metadata"] |= {
            "labels": {node_object.LABEL_REMOTE: home_id_from_uid(_cluster(self.two.remote))},
            "annotations": {
                node_object.ANNOTATION_KUBECONFIG: str(self.two.settings.remote.path),
                node_object.ANNOTATION_CONTEXT: "remote-context",
            },
        }
        return made

    def _account(self, remote: FakeApi) -> None:
        """Creates the objects that the cluster creates in every namespace."""
        account: Object = {"apiVersion": "v1", "kind": "ServiceAccount"}
        self.remote_namespace()
        remote.put({**account, "metadata": {"name": "default", "namespace": REMOTE_NAMESPACE}})
        remote.put(config_map("kube-root-ca.crt", REMOTE_NAMESPACE))

    def remote_namespace(self, name: str = REMOTE_NAMESPACE) -> None:
        meta = {"name": name, "namespace": ""}
        self.two.remote.put(
            self.ours({"apiVersion": "v1", "kind": "Namespace", "metadata": {**meta}})
        )

    def ours(self, obj: Object, *, node: str = NODE) -> Object:
        """The object as the bridge creates it in the remote."""
        obj["metadata"] |= {
            "labels": {LABEL_HOME: home_id_from_uid(_cluster(self.two.home)), LABEL_NODE: node}
        }
        obj["metadata"]["annotations"] = {
            ANNOTATION_HOME_NAMESPACE: "default",
            ANNOTATION_HOME_NAME: obj["metadata"]["name"],
            ANNOTATION_HOME_UID: "1",
        }
        return obj

    def workload(self) -> None:
        """Creates a pod with a ConfigMap and a Secret; no kubelet has started it yet."""
        self.two.home.put(pod("web", node=NODE))
        self.two.remote.put(self.ours(using("web", "conf")))
        self.two.remote.put(self.ours(config_map("conf", REMOTE_NAMESPACE)))
        self.two.remote.put(
            self.ours(secret("key", REMOTE_NAMESPACE, data={"k": "Y2FuYXJ5LTQ3MTE="}))
        )

    def agree(self, lines: list[str]) -> bool:
        self.confirmations.append(lines)
        return self.answer

    async def leave(
        self, settings: LeaveSettings | None = None, agree: Agree | None = None
    ) -> bool:
        async with asyncio.timeout(SOON):
            return await leave(
                settings or self.settings, notify=self.notified.append, confirm=agree or self.agree
            )

    async def refused(self, settings: LeaveSettings | None = None) -> str:
        """The error of a leave that fails before any write or confirmation."""
        with pytest.raises(PreflightError) as caught:
            await self.leave(settings)
        assert self.confirmations == []
        assert self.two.writes() == []
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def to(self, remote: KubeconfigRef | None, *, force: bool = False) -> LeaveSettings:
        return LeaveSettings(NODE, self.two.settings.home, remote, force=force)


def _cluster(api: FakeApi) -> str:
    return str(api.get(NAMESPACES, "kube-system")["metadata"]["uid"])


def lease(*, holder: str | None = None, ago: float = 0.0) -> Object:
    """The node's Lease, renewed ``ago`` seconds ago."""
    renewed = datetime.now(UTC) - timedelta(seconds=ago)
    spec: Object = {"renewTime": format_micro_time(renewed)}
    if holder:
        spec["holderIdentity"] = holder
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NODE, "namespace": LEASE_NAMESPACE},
        "spec": spec,
    }


def using(name: str, config: str) -> Object:
    """A remote pod that references a ConfigMap."""
    made = pod(name, REMOTE_NAMESPACE)
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    return made


@pytest.fixture
def world(two: Clusters) -> World:
    """A node without pods whose bridge has stopped."""
    return World(two)


def slice_of(service: str, node: str = NODE) -> Object:
    """An EndpointSlice that routes home's Service to the bridge of that node."""
    identity = Identity(home_id="any", home_name="h", node=node)
    meta = {"name": service, "namespace": "default", "uid": "service-uid"}
    known: Object = {"metadata": meta, "spec": {"ports": [{"port": 80}]}}
    (made,) = forward_plan.forward_slices(
        known, {forward_plan.EndpointPort("", 0): 4000}, identity, address="192.0.2.1"
    )
    return made


async def test_relay_slices_are_deleted_and_those_of_other_nodes_stay(world: World) -> None:
    world.two.home.put(slice_of("web"))
    other = world.two.home.put(slice_of("web", node="other"))
    before = {it["metadata"]["name"] for it in world.two.home.objects(ENDPOINT_SLICES)}
    assert await world.leave()
    (lines,) = world.confirmations
    assert f"home:   EndpointSlice default/{slice_of('web')['metadata']['name']}" in lines
    after = {it["metadata"]["name"] for it in world.two.home.objects(ENDPOINT_SLICES)}
    assert before - after == {slice_of("web")["metadata"]["name"]}
    assert other["metadata"]["name"] in after


async def test_forbidden_endpointslices_count_as_absent(world: World) -> None:
    world.two.home.fail(Fault("GET", "*/endpointslices", times=None, code=403))
    assert await world.leave()
    assert world.two.home.find(NODES, NODE) is None


@pytest.mark.parametrize("ours", [True, False])
async def test_local_route_of_a_killed_bridge_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    removed: list[str] = []
    cidr = ipaddress.ip_network("198.51.100.0/24")
    route = Route(cidr, is_local=ours, is_bridge_owned=ours, has_gateway=not ours)
    monkeypatch.setattr(rtnetlink, "routes", lambda _: [route])
    monkeypatch.setattr(rtnetlink, "remove_local_route", lambda it: removed.append(str(it)))
    options = {join_record.ANNOTATION_OPTIONS: '{"relayCidr": "198.51.100.0/24"}'}
    world.two.home.update(NODES, NODE, {"metadata": {"annotations": options}})
    assert await world.leave()
    line = "here:   the local route for 198.51.100.0/24"
    assert (line in world.confirmations[0]) is ours
    assert removed == ([str(cidr)] if ours else [])


async def test_local_route_that_cannot_be_removed_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(1, "no")

    cidr = ipaddress.ip_network("198.51.100.0/24")
    route = Route(cidr, is_local=True, is_bridge_owned=True, has_gateway=False)
    monkeypatch.setattr(rtnetlink, "routes", lambda _: [route])
    monkeypatch.setattr(rtnetlink, "remove_local_route", refuse)
    options = {join_record.ANNOTATION_OPTIONS: '{"relayCidr": "198.51.100.0/24"}'}
    world.two.home.update(NODES, NODE, {"metadata": {"annotations": options}})
    assert await world.leave()
    assert any("`ip route del local 198.51.100.0/24 dev lo`" in line for line in world.notified)
    assert world.two.home.find(NODES, NODE) is None


@pytest.mark.parametrize("value", ["7", '{"relayCidr": "x"}', '{"relayCidr": ["x"]}', "no JSON"])
async def test_malformed_join_options_do_not_prevent_leaving(world: World, value: str) -> None:
    options = {join_record.ANNOTATION_OPTIONS: value}
    world.two.home.update(NODES, NODE, {"metadata": {"annotations": options}})
    assert await world.leave()


async def test_confirmation_lists_all_objects_before_any_write(world: World) -> None:
    world.workload()
    world.answer = False
    assert await world.leave() is False
    assert world.confirmations == [
        [
            f"home:   Node {NODE} and its Lease",
            "home:   Pod default/web",
            f"remote: Pod {REMOTE_NAMESPACE}/web",
            f"remote: ConfigMap {REMOTE_NAMESPACE}/conf",
            f"remote: Secret {REMOTE_NAMESPACE}/key",
            f"remote: Namespace {REMOTE_NAMESPACE}, if otherwise empty",
        ]
    ]
    assert world.two.writes() == []
    assert CANARY not in str(world.notified)


async def test_lease_without_node_is_listed(world: World) -> None:
    world.two.home.remove(NODES, NODE)
    world.two.remote.remove(NAMESPACES, REMOTE_NAMESPACE)
    assert await world.leave(world.to(world.two.settings.remote))
    assert world.confirmations == [[f"home:   Lease {LEASE_NAMESPACE}/{NODE}"]]
    assert world.two.home.find(LEASES, NODE, LEASE_NAMESPACE) is None


async def test_long_lists_are_truncated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_summary, "MAX_LISTED", 2)
    for number in range(5):
        world.two.home.put(pod(f"p{number}", node=NODE))
        world.two.remote.put(world.ours(pod(f"p{number}", REMOTE_NAMESPACE)))
        world.two.remote.put(world.ours(config_map(f"c{number}", REMOTE_NAMESPACE)))
        world.remote_namespace(f"n{number}")
    world.answer = False
    await world.leave()
    assert world.confirmations[0][1:] == [
        "home:   Pod default/p0",
        "home:   Pod default/p1",
        "home:   Pod: 3 more",
        f"remote: Pod {REMOTE_NAMESPACE}/p0",
        f"remote: Pod {REMOTE_NAMESPACE}/p1",
        "remote: Pod: 3 more",
        f"remote: ConfigMap {REMOTE_NAMESPACE}/c0",
        f"remote: ConfigMap {REMOTE_NAMESPACE}/c1",
        "remote: ConfigMap: 3 more",
        f"remote: Namespace {REMOTE_NAMESPACE}, if otherwise empty",
        "remote: Namespace n0, if otherwise empty",
        "remote: Namespace: 4 more, if otherwise empty",
    ]


@pytest.mark.parametrize("ago", [0.0, LEASE_SECONDS - 15.0, -30.0], ids=["now", "late", "ahead"])
async def test_leave_is_refused_while_a_bridge_serves_the_node(world: World, ago: float) -> None:
    world.two.home.put(lease(holder=NODE, ago=ago))
    sentence = await world.refused()
    assert re.search(rf"a bridge serves node {NODE}: its Lease was renewed \d+ s ago;", sentence)
    assert "--force" in sentence


@pytest.mark.parametrize(
    "held",
    [lease(holder=NODE, ago=LEASE_SECONDS + 5), lease(), None],
    ids=["expired", "given back", "none"],
)
async def test_node_without_a_serving_bridge_is_removed(world: World, held: Object | None) -> None:
    if held is None:
        world.two.home.remove(LEASES, NODE, LEASE_NAMESPACE)
    else:
        world.two.home.put(held)
    assert await world.leave()


async def test_force_removes_a_node_that_a_bridge_serves(world: World) -> None:
    world.two.home.put(lease(holder=NODE))
    assert await world.leave(world.to(None, force=True))
    assert world.two.home.find(NODES, NODE) is None


async def test_unmanaged_node_is_not_changed(world: World) -> None:
    world.two.home.remove(NODES, NODE)
    world.two.home.put(node(NODE))
    sentence = await world.refused(world.to(world.two.settings.remote, force=True))
    assert sentence == f"home: node {NODE} is not a bridge's virtual node; nothing was changed"


async def test_node_without_recorded_remote_requires_kubeconfig(world: World) -> None:
    world.two.home.update(NODES, NODE, {"metadata": {"annotations": None}})
    assert f"node {NODE} does not record its remote; name its kubeconfig" in await world.refused()
    assert await world.leave(world.to(world.two.settings.remote))


async def test_deleted_node_requires_kubeconfig(world: World) -> None:
    world.two.home.remove(NODES, NODE)
    assert "name the remote's kubeconfig with --kubeconfig" in await world.refused()


async def test_missing_recorded_kubeconfig_is_named(world: World) -> None:
    path = world.two.settings.remote.path
    assert path is not None
    path.unlink()
    sentence = await world.refused()
    assert f"remote: kubeconfig {path} (context remote-context): no such file" in sentence
    assert "--kubeconfig" in sentence


async def test_kubeconfig_of_another_cluster_is_rejected(world: World, tmp_path: Path) -> None:
    sentence = await world.refused(world.to(world.two.settings.home))
    assert f"{world.two.home.url} is not the remote cluster of node {NODE}" in sentence
    assert "--kubeconfig" in sentence


async def test_forbidden_home_is_a_one_line_error(world: World) -> None:
    world.two.home.fail(Fault("GET", "/api/v1/nodes/*", code=403))
    assert "ask the cluster's administrator for that permission" in await world.refused()


async def test_leave_removes_managed_objects_from_both_clusters(world: World) -> None:
    world.workload()
    assert await world.leave()
    home, remote = world.two.home, world.two.remote
    assert home.find(NODES, NODE) is None
    assert home.find(LEASES, NODE, LEASE_NAMESPACE) is None
    assert home.objects(PODS) == []
    assert remote.objects(PODS) == []
    assert remote.objects(SECRETS) == []
    assert remote.find(NAMESPACES, REMOTE_NAMESPACE) is None
    assert world.notified[-1] == f"node {NODE} has left"


async def test_objects_are_deleted_in_order_and_the_node_last(world: World) -> None:
    world.workload()
    await world.leave()
    assert [f"{it.method} {it.path}" for it in world.two.remote.writes()] == [
        f"DELETE {PODS.path('web', namespace=REMOTE_NAMESPACE)}",
        f"DELETE {CONFIG_MAPS.path('conf', namespace=REMOTE_NAMESPACE)}",
        f"DELETE {SECRETS.path('key', namespace=REMOTE_NAMESPACE)}",
        f"DELETE {NAMESPACES.path(REMOTE_NAMESPACE)}",
    ]
    web = PODS.path("web", namespace="default")
    assert [f"{it.method} {it.path}" for it in world.two.home.writes()] == [
        f"PATCH {NODES.path(NODE)}",
        f"DELETE {web}",
        f"DELETE {web}",
        f"DELETE {LEASES.path(NODE, namespace=LEASE_NAMESPACE)}",
        f"DELETE {NODES.path(NODE)}",
    ]
    graces = [it.body.get("gracePeriodSeconds") for it in world.two.home.writes(web)]
    assert graces == [None, 0]


async def test_leave_waits_for_slowly_terminating_remote_pods(world: World) -> None:
    """Home's pod and the pod's ConfigMap stay until then."""
    world.workload()
    remote, home = world.two.remote, world.two.home
    remote.bind("web", "worker", REMOTE_NAMESPACE)
    leaving = asyncio.create_task(world.leave())
    await remote.until(lambda: "remote: 1 pod(s) are terminating" in world.notified)
    assert "deletionTimestamp" in home.get(PODS, "web", "default")["metadata"]
    assert home.get(NODES, NODE)["spec"]["unschedulable"] is True
    assert remote.find(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)
    remote.remove(PODS, "web", REMOTE_NAMESPACE)
    assert await leaving
    assert home.find(PODS, "web", "default") is None


async def test_unmanaged_and_shared_objects_stay(world: World) -> None:
    world.workload()
    remote = world.two.remote
    stays = [
        remote.put(world.ours(using("other", "shared"), node="other")),
        remote.put(world.ours(config_map("shared", REMOTE_NAMESPACE))),
        remote.put(config_map("foreign", REMOTE_NAMESPACE)),
        world.two.home.put(pod("elsewhere", node="machine")),
    ]
    assert await world.leave()
    notified = (
        f"remote: ConfigMap {REMOTE_NAMESPACE}/shared stays: pods of virtual node other use it"
    )
    assert notified in world.notified
    # The node that uses the copy updates and deletes it.
    stays[1]["metadata"]["labels"][LABEL_NODE] = "other"
    stays[1]["metadata"]["resourceVersion"] = remote.get(CONFIG_MAPS, "shared", REMOTE_NAMESPACE)[
        "metadata"
    ]["resourceVersion"]
    assert stays == [
        remote.get(PODS, "other", REMOTE_NAMESPACE),
        remote.get(CONFIG_MAPS, "shared", REMOTE_NAMESPACE),
        remote.get(CONFIG_MAPS, "foreign", REMOTE_NAMESPACE),
        world.two.home.get(PODS, "elsewhere", "default"),
    ]
    assert not any("shared" in line or "foreign" in line for line in world.confirmations[0])
    assert "deletionTimestamp" not in remote.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]


async def test_namespace_with_unmanaged_objects_stays_and_is_reported(world: World) -> None:
    world.two.remote.put(config_map("theirs", REMOTE_NAMESPACE))
    assert await world.leave()
    assert (
        f"remote: namespace {REMOTE_NAMESPACE} stays: it holds ConfigMap theirs" in world.notified
    )
    world.two.remote.remove(CONFIG_MAPS, "theirs", REMOTE_NAMESPACE)
    assert await world.leave(world.to(world.two.settings.remote))
    assert world.two.remote.find(NAMESPACES, REMOTE_NAMESPACE) is None


async def test_second_leave_has_nothing_to_remove(world: World) -> None:
    world.workload()
    await world.leave()
    world.two.home.clear_log()
    world.two.remote.clear_log()
    assert await world.leave(world.to(world.two.settings.remote))
    assert world.confirmations[1] == []
    assert world.two.writes() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", f"*/namespaces/{REMOTE_NAMESPACE}/pods/web"),
        ("DELETE", "*/configmaps/conf"),
        ("DELETE", f"*/namespaces/{REMOTE_NAMESPACE}"),
    ],
    ids=["a pod", "a copy", "a namespace"],
)
async def test_failed_deletion_keeps_the_node_and_a_second_leave_continues(
    world: World, method: str, path: str
) -> None:
    world.workload()
    fault = world.two.remote.fail(Fault(method, path, code=500, times=None))
    with pytest.raises(PreflightError, match="remote: DELETE"):
        await world.leave()
    assert world.two.home.find(NODES, NODE)
    world.two.remote.heal(fault)
    assert await world.leave()
    assert world.two.home.find(NODES, NODE) is None
    assert world.two.remote.find(NAMESPACES, REMOTE_NAMESPACE) is None


async def test_node_re_created_during_the_confirmation_is_not_changed(world: World) -> None:
    def agree(_: list[str]) -> bool:
        world.two.home.remove(NODES, NODE)
        world.two.home.put(node(NODE))
        return True

    with pytest.raises(PreflightError, match=f"home: PATCH /api/v1/nodes/{NODE}"):
        await world.leave(agree=agree)
    assert "unschedulable" not in world.two.home.get(NODES, NODE)["spec"]
    assert world.two.remote.writes() == []


async def test_managed_service_is_deleted(world: World) -> None:
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": REMOTE_NAMESPACE},
        "spec": {"ports": [{"port": 80}]},
    }
    world.two.remote.put(world.ours(service))
    assert await world.leave()
    assert f"remote: Service {REMOTE_NAMESPACE}/web" in world.confirmations[0]
    assert world.two.remote.objects(SERVICES) == []


async def test_unreachable_remote_is_an_error_before_any_write(world: World) -> None:
    world.workload()
    await world.two.remote.stop()
    sentence = await world.refused()
    assert "remote: " in sentence
    assert "nothing was removed" in sentence
    assert "--force" in sentence


async def test_force_cleans_home_without_the_remote(world: World) -> None:
    world.workload()
    await world.two.remote.stop()
    assert await world.leave(world.to(None, force=True))
    home = world.two.home
    assert marked(home) == []
    assert home.objects(PODS) == []
    assert world.confirmations == [
        [f"home:   Node {NODE} and its Lease", "home:   Pod default/web"]
    ]
    assert world.notified[1].startswith("remote: cannot be reached, so nothing is removed there: ")
    assert "remote: the remote pod of home's Pod default/web: may be left" in world.notified
    own = home_id_from_uid(_cluster(home))
    assert f"--remove {own} --node {NODE}`" in world.notified[-2]


async def test_force_does_not_touch_a_replaced_remote_cluster(world: World) -> None:
    """The remote was re-created; the node's remote no longer exists."""
    world.workload()
    world.two.remote.remove(NAMESPACES, "kube-system")
    world.two.remote.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
    )
    assert await world.leave(world.to(None, force=True))
    assert world.two.remote.writes() == []
    assert marked(world.two.home) == []
    assert any("is not the remote cluster of node" in line for line in world.notified)


async def test_force_reports_remote_failures_and_cleans_home(world: World) -> None:
    world.workload()
    world.two.remote.fail(Fault("DELETE", "*/configmaps/conf", code=500, times=None))
    assert await world.leave(world.to(None, force=True))
    assert marked(world.two.home) == []
    assert world.two.remote.find(SECRETS, "key", REMOTE_NAMESPACE) is None, (
        "the others went all the same"
    )
    assert f"remote: ConfigMap {REMOTE_NAMESPACE}/conf: may be left" in world.notified


async def test_unreachable_home_names_the_alternative(world: World) -> None:
    await world.two.home.stop()
    assert "bridge prune --kubeconfig" in await world.refused()


async def test_wait_for_pods_times_out(world: World) -> None:
    world.workload()
    world.two.remote.bind("web", "worker", REMOTE_NAMESPACE)
    with pytest.raises(PreflightError, match=r"1 pod\(s\) have not terminated after 0 s"):
        await world.leave(replace(world.settings, timeout=0.05))
    assert world.two.home.find(NODES, NODE), "leaving again goes on"
    assert world.two.remote.find(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)
    assert await world.leave(replace(world.settings, timeout=0.05, force=True))
    assert marked(world.two.home) == []
    assert f"remote: Pod {REMOTE_NAMESPACE}/web: may be left" in world.notified


async def test_keep_workloads_leaves_the_remote_unchanged_and_cleans_home(world: World) -> None:
    world.workload()
    before = [world.two.remote.objects(kind) for kind in (PODS, CONFIG_MAPS, SECRETS, NAMESPACES)]
    assert await world.leave(replace(world.settings, keep_workloads=True))
    assert world.two.remote.writes() == []
    after = [world.two.remote.objects(kind) for kind in (PODS, CONFIG_MAPS, SECRETS, NAMESPACES)]
    assert after == before
    assert marked(world.two.home) == []
    assert world.two.home.objects(PODS) == []
    assert world.confirmations == [
        [f"home:   Node {NODE} and its Lease", "home:   Pod default/web"]
    ]
    assert any(
        "1 pod(s) and 2 object(s) for them stay as they are" in line for line in world.notified
    )
    assert any("runs twice" in line for line in world.notified)


async def test_keep_workloads_is_refused_while_a_bridge_serves_the_node(world: World) -> None:
    world.two.home.put(lease(holder=NODE))
    keep = replace(world.to(None, force=True), keep_workloads=True)
    assert "stop it with Ctrl-C and leave again" in await world.refused(keep)


async def test_objects_created_after_the_confirmation_are_removed(world: World) -> None:
    world.workload()

    def agree(lines: list[str]) -> bool:
        world.two.home.put(pod("late", node=NODE))
        world.remote_namespace("late-h")
        late = world.ours(using("late", "late-conf"))
        late["metadata"]["namespace"] = "late-h"
        world.two.remote.put(late)
        world.two.remote.put(world.ours(config_map("late-conf", "late-h")))
        return world.agree(lines)

    assert await world.leave(agree=agree)
    remote = world.two.remote
    assert [remote.find(PODS, "late", "late-h"), remote.find(NAMESPACES, "late-h")] == [None, None]
    assert world.two.home.find(PODS, "late", "default") is None
    for what in ("Pod late-h/late", "ConfigMap late-h/late-conf", "Namespace late-h"):
        assert f"remote: {what} was created after the confirmation; removing it" in world.notified


async def test_objects_created_during_the_removal_are_removed(world: World) -> None:
    world.workload()
    remote = world.two.remote

    async def deleted(_: web.Request) -> web.Response:
        remote.put(world.ours(using("again", "conf")))
        remote.remove(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)
        return web.json_response({})

    remote.route("DELETE", "*/configmaps/conf", deleted)
    assert await world.leave()
    assert remote.find(PODS, "again", REMOTE_NAMESPACE) is None
    assert remote.find(NAMESPACES, REMOTE_NAMESPACE) is None


async def test_objects_that_keep_appearing_are_an_error(world: World) -> None:
    world.workload()

    async def stays(_: web.Request) -> web.Response:
        return web.json_response({})

    world.two.remote.route("DELETE", "*/configmaps/conf", stays)
    with pytest.raises(PreflightError, match="objects of node virtual keep appearing"):
        await world.leave()
    assert world.two.home.find(NODES, NODE), "leaving again goes on"


async def test_namespace_used_by_another_node_stays_until_that_node_leaves(world: World) -> None:
    world.workload()
    remote = world.two.remote
    other = node("other")
    other["metadata"]["labels"] = dict(world.node["metadata"]["labels"])
    world.two.home.put(other)
    claims = {used_by_annotation(it): "true" for it in (NODE, "other", "gone")}
    remote.update(NAMESPACES, REMOTE_NAMESPACE, {"metadata": {"annotations": claims}})
    assert await world.leave()
    assert (
        f"remote: namespace {REMOTE_NAMESPACE} stays: virtual node(s) other use it"
        in world.notified
    )
    assert namespace_users(remote.get(NAMESPACES, REMOTE_NAMESPACE)) == {"other"}
    assert await world.leave(
        replace(world.settings, name="other", remote=world.two.settings.remote)
    )
    assert remote.find(NAMESPACES, REMOTE_NAMESPACE) is None


async def test_handed_over_namespace_stays(world: World) -> None:
    remote = world.two.remote
    handed = {"metadata": {"annotations": {ANNOTATION_ACCEPTS: "*"}}}
    remote.update(NAMESPACES, REMOTE_NAMESPACE, handed)
    assert await world.leave()
    assert f"remote: namespace {REMOTE_NAMESPACE} stays: it was handed over" in world.notified


def daemon(name: str) -> Object:
    """A DaemonSet pod on the node."""
    made = pod(name, node=NODE)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "9"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short retry and poll intervals."""
    monkeypatch.setattr(eviction, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(eviction, "POLL_SECONDS", 0.005)


@pytest.mark.usefixtures("often")
async def test_drain_respects_disruption_budgets(world: World) -> None:
    """Pods are evicted one by one, then their remote pods terminate, then the rest is removed."""
    home, remote = world.two.home, world.two.remote
    for name in ("a", "b"):
        made = home.put(pod(name, node=NODE))
        there = world.ours(pod(name, REMOTE_NAMESPACE))
        there["metadata"]["annotations"][ANNOTATION_HOME_UID] = made["metadata"]["uid"]
        remote.put(there)
    home.put(daemon("daemon"))
    kept: set[str] = set()

    def budget(evicted: Object) -> str:
        other = {"a": "b", "b": "a"}[evicted["metadata"]["name"]]
        found = home.find(PODS, other, "default")
        if found and "deletionTimestamp" in found["metadata"]:
            kept.add(evicted["metadata"]["name"])
            return "Cannot evict pod as it would violate the pod's disruption budget."
        return ""

    home.api.budget = budget
    assert await world.leave(replace(world.settings, drain=True))
    evictions = {it.path for it in home.writes("*/eviction")}
    assert evictions == {f"{PODS.path(it, namespace='default')}/eviction" for it in "ab"}
    assert len(kept) == 1
    assert f"home: pod default/{kept.pop()} cannot be evicted yet: Cannot evict" in "\n".join(
        world.notified
    )
    assert "home: 2 of 2 pod(s) evicted" in world.notified
    assert marked(home) == marked(remote) == []
    assert home.objects(PODS) == []


@pytest.mark.usefixtures("often")
async def test_drain_timeout_names_blocked_pods_and_changes_nothing_else(world: World) -> None:
    world.workload()
    world.two.home.api.budget = lambda _: "the budget wants it"
    with pytest.raises(PreflightError) as caught:
        await world.leave(replace(world.settings, drain=True, timeout=0.05))
    assert "1 pod(s) are still blocked (default/web: the budget wants it) after 0 s" in str(
        caught.value
    )
    assert "without --drain" in str(caught.value)
    assert "deletionTimestamp" not in world.two.home.get(PODS, "web", "default")["metadata"]
    assert world.two.remote.writes() == []
    assert world.two.home.get(NODES, NODE)["spec"]["unschedulable"] is True
    assert await world.leave()


@pytest.mark.usefixtures("often")
async def test_drain_renews_the_lease_while_no_bridge_serves_the_node(world: World) -> None:
    """Otherwise home marks the pods not Ready, and budgets block them forever. The renewal has no
    holder, so it does not look like a bridge."""
    world.workload()
    world.two.home.put(lease(holder=NODE, ago=LEASE_SECONDS + 5))
    world.two.home.api.budget = lambda _: "the budget wants it"
    with pytest.raises(PreflightError):
        await world.leave(replace(world.settings, drain=True, timeout=0.1))
    spec = world.two.home.get(LEASES, NODE, LEASE_NAMESPACE)["spec"]
    renewed = parse_time(spec["renewTime"])
    assert (datetime.now(UTC) - renewed).total_seconds() < 5
    assert not spec.get("holderIdentity")
    assert await world.leave()


@pytest.mark.usefixtures("often")
async def test_drain_with_a_serving_bridge_asks_to_stop_it_afterwards(world: World) -> None:
    world.workload()
    home, remote = world.two.home, world.two.remote
    home.put(lease(holder=NODE))
    settings = replace(world.settings, drain=True)
    leaving_ = asyncio.create_task(world.leave(settings))
    await home.until(lambda: "deletionTimestamp" in home.get(PODS, "web", "default")["metadata"])
    assert remote.writes() == []
    home.remove(PODS, "web", "default")  # as the bridge does
    with pytest.raises(PreflightError, match="is drained and cordoned, and a bridge still serves"):
        await leaving_
    assert home.find(NODES, NODE)
    home.put(lease())
    assert await world.leave(settings)
    assert marked(home) == marked(remote) == []


def requested(name: str, signer: str = "kubernetes.io/kubelet-serving") -> Object:
    """A CertificateSigningRequest."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"signerName": signer, "request": "", "usages": []},
    }


async def test_certificate_and_its_requests_are_deleted_and_others_stay(
    world: World, tmp_path: Path
) -> None:
    home, folder = world.two.home, tmp_path / "certs"
    folder.mkdir()
    for name in ("serving.pem", "serving-pending.key", "theirs"):
        (folder / name).write_text("x")
    mine = f"kubelet-serving-{NODE}-0123456789"
    others = [f"kubelet-serving-{NODE}-more-0123456789", "csr-abc"]
    for name in (mine, *others):
        home.put(requested(name))
    assert await world.leave(replace(world.settings, cert_dir=folder))
    assert f"home:   CertificateSigningRequest {mine}" in world.confirmations[0]
    assert f"here:   the node's certificate and key in {folder}" in world.confirmations[0]
    assert [it["metadata"]["name"] for it in home.objects(CERTIFICATE_SIGNING_REQUESTS)] == sorted(
        others
    )
    assert [it.name for it in folder.iterdir()] == ["theirs"]


async def test_empty_cert_dir_is_deleted(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    assert await world.leave(replace(world.settings, cert_dir=folder))
    assert not folder.exists()


async def test_directory_that_the_node_names_is_only_reported(world: World, tmp_path: Path) -> None:
    """Otherwise anyone who may write the Node would choose what an administrator deletes."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name in ("serving.pem", "client.pem", "serving-pending.key"):
        (folder / name).write_text("x")
    annotation = {node_object.ANNOTATION_CERT_DIR: str(folder)}
    world.two.home.update(NODES, NODE, {"metadata": {"annotations": annotation}})
    assert await world.leave()
    assert len(list(folder.iterdir())) == 3
    assert any(f"{folder} stay" in line and "--cert-dir" in line for line in world.notified)


@pytest.mark.parametrize("shared", [False, True])
async def test_renewed_token_is_deleted_unless_another_node_may_use_it(
    tls_two: Clusters, shared: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World(tls_two)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    now = datetime.now(UTC)
    origin = bearer_token.origin_of(CANARY)
    token = bearer_token.RenewedToken(origin, "other", now, now + timedelta(hours=1))
    kept = bearer_token.keep(token)
    if shared:
        sibling = node("sibling")
        labels = {node_object.LABEL_REMOTE: home_id_from_uid(_cluster(world.two.remote))}
        sibling["metadata"] |= {"labels": labels}
        world.two.home.put(sibling)
    assert await world.leave()
    assert kept.exists() == shared


@pytest.mark.parametrize("recorded", [True, False])
async def test_only_recorded_namespaces_are_deleted(
    world: World, recorded: bool, client_for: ClientFor
) -> None:
    """Anyone who may create namespaces in the remote can give one the labels of the bridge."""
    namespace = world.two.remote.get(NAMESPACES, REMOTE_NAMESPACE)
    record = NamespaceRecord(await client_for(world.two.home), NODE)
    own = namespace_ownership.entries([namespace]) if recorded else []
    await record.write([*own, "of-another"])
    assert await world.leave()
    assert (world.two.remote.find(NAMESPACES, REMOTE_NAMESPACE) is None) == recorded


async def test_cert_dir_with_only_unmanaged_files_stays(world: World, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("x")
    assert await world.leave(replace(world.settings, cert_dir=tmp_path))
    assert not any(str(tmp_path) in line for line in world.confirmations[0])
    assert (tmp_path / "theirs").exists()


async def test_state_folder_is_deleted_with_its_last_certificate(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = default_cert_dir(home_id_from_uid(_cluster(world.two.home)), NODE)
    folder.mkdir(parents=True)
    (folder / "serving.pem").write_text("x")
    assert await world.leave()
    assert not (tmp_path / "state" / "cluster-bridge").exists()


async def test_forbidden_deletion_of_a_csr_is_reported(world: World) -> None:
    name = f"kubelet-serving-{NODE}-0123456789"
    world.two.home.put(requested(name))
    world.two.home.fail(Fault("DELETE", "*/certificatesigningrequests/*", code=403))
    assert await world.leave()
    assert any(f"CertificateSigningRequest {name} stays" in line for line in world.notified)


def marked(api: FakeApi) -> list[str]:
    """All objects with a label, annotation, taint or finalizer of the bridge."""
    kinds = [kind for kinds in api.store.registry.groups().values() for kind in kinds]
    return [
        f"{kind.resource.kind} {obj['metadata']['name']}"
        for kind in kinds
        for obj in api.store.all(kind, None)
        if f"{DOMAIN}/" in str({**obj["metadata"], "spec": obj.get("spec")})
        or (kind.resource == LEASES and obj["metadata"]["namespace"] == LEASE_NAMESPACE)
    ]


@pytest.mark.parametrize("drained", [False, True], ids=["deleted", "drained"])
@pytest.mark.usefixtures("often")
async def test_leave_interrupted_after_any_write_can_be_repeated(
    two: Clusters, drained: bool
) -> None:

    def has_written(run: asyncio.Task[object], writes: int) -> bool:
        return run.done() or len(two.writes()) >= writes

    interrupted = 0
    while True:
        world = World(two)
        world.workload()
        two.home.put(requested(f"kubelet-serving-{NODE}-0123456789"))
        settings = replace(world.settings, drain=drained)
        two.home.clear_log()
        two.remote.clear_log()
        run = asyncio.create_task(world.leave(settings))
        await two.home.until(partial(has_written, run, interrupted + 1))
        if run.done():
            break
        interrupted += 1
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        if two.home.find(NODES, NODE) is None:
            settings = replace(settings, remote=two.settings.remote)
        assert await world.leave(settings)
        assert marked(two.home) == marked(two.remote) == []
        assert two.home.objects(PODS) == []
    assert await run
    assert marked(two.home) == marked(two.remote) == []
    assert interrupted >= 8
