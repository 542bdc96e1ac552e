"""A virtual node's end: what is ours goes from both clusters, after a question; nothing else."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from bridge.base.errors import PreflightError
from bridge.certificates.cert_dir import default_cert_dir
from bridge.drain import eviction
from bridge.leave import summary
from bridge.leave.procedure import leave
from bridge.leave.summary import LeaveSettings
from bridge.node import join_record, node_object
from bridge.node.lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.relay.forward import netlink
from bridge.relay.forward.netlink import Route
from sync.kube.credentials import KubeconfigRef
from sync.kube.resources import (
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
from tests.bridge.joined import SOON
from tests.bridge.two_clusters import CANARY, Clusters
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, node, pod, secret
from tests.sync.world import NODE, THERE
from translators.identity import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    DOMAIN,
    LABEL_HOME,
    LABEL_NODE,
    Identity,
    home_id_from_uid,
    namespace_users,
    used_by_annotation,
)
from translators.relay import forward
from translators.timestamps import format_micro_time, parse_time

pytestmark = pytest.mark.usefixtures("soon")

Agree = Callable[[list[str]], bool]


class Left:
    """Two clusters after a join, and what leaving said and asked."""

    def __init__(self, two: Clusters) -> None:
        self.two = two
        self.told: list[str] = []
        self.asked: list[list[str]] = []
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
        """What the cluster itself puts into every namespace."""
        account: Object = {"apiVersion": "v1", "kind": "ServiceAccount"}
        self.remote_namespace()
        remote.put({**account, "metadata": {"name": "default", "namespace": THERE}})
        remote.put(config_map("kube-root-ca.crt", THERE))

    def remote_namespace(self, name: str = THERE) -> None:
        meta = {"name": name, "namespace": ""}
        self.two.remote.put(
            self.ours({"apiVersion": "v1", "kind": "Namespace", "metadata": {**meta}})
        )

    def ours(self, obj: Object, *, node: str = NODE) -> Object:
        """The object as the bridge makes it in the remote."""
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
        """A pod with a ConfigMap and a Secret; the remote's kubelet has not taken it yet."""
        self.two.home.put(pod("web", node=NODE))
        self.two.remote.put(self.ours(using("web", "conf")))
        self.two.remote.put(self.ours(config_map("conf", THERE)))
        self.two.remote.put(self.ours(secret("key", THERE, data={"k": "Y2FuYXJ5LTQ3MTE="})))

    def agree(self, lines: list[str]) -> bool:
        self.asked.append(lines)
        return self.answer

    async def leave(
        self, settings: LeaveSettings | None = None, agree: Agree | None = None
    ) -> bool:
        async with asyncio.timeout(SOON):
            return await leave(
                settings or self.settings, notify=self.told.append, agree=agree or self.agree
            )

    async def refused(self, settings: LeaveSettings | None = None) -> str:
        """The sentence of a refusal, which touches nothing and asks nothing."""
        with pytest.raises(PreflightError) as caught:
            await self.leave(settings)
        assert self.asked == []
        assert self.two.writes() == []
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def to(self, remote: KubeconfigRef | None, *, force: bool = False) -> LeaveSettings:
        return LeaveSettings(NODE, self.two.settings.home, remote, force=force)


def _cluster(api: FakeApi) -> str:
    return str(api.get(NAMESPACES, "kube-system")["metadata"]["uid"])


def lease(*, holder: str | None = None, ago: float = 0.0) -> Object:
    """The node's Lease, renewed so many seconds ago."""
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
    """A remote pod that refers to a ConfigMap."""
    made = pod(name, THERE)
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    return made


@pytest.fixture
def left(two: Clusters) -> Left:
    """A node whose bridge has stopped, with no pods on it."""
    return Left(two)


# -- a relay -------------------------------------------------------------------------------


def slice_of(service: str, node: str = NODE) -> Object:
    """One that leads home's Service to the bridge of that node."""
    identity = Identity(home_id="any", home_name="h", node=node)
    meta = {"name": service, "namespace": "default", "uid": "service-uid"}
    known: Object = {"metadata": meta, "spec": {"ports": [{"port": 80}]}}
    (made,) = forward.forward_slices(
        known, {forward.EndpointPort("", 0): 4000}, identity, address="192.0.2.1"
    )
    return made


async def test_relay_slices_are_deleted_and_those_of_other_nodes_stay(left: Left) -> None:
    left.two.home.put(slice_of("web"))
    other = left.two.home.put(slice_of("web", node="other"))
    before = {it["metadata"]["name"] for it in left.two.home.objects(ENDPOINT_SLICES)}
    assert await left.leave()
    (asked,) = left.asked
    assert f"home:   EndpointSlice default/{slice_of('web')['metadata']['name']}" in asked
    after = {it["metadata"]["name"] for it in left.two.home.objects(ENDPOINT_SLICES)}
    assert before - after == {slice_of("web")["metadata"]["name"]}
    assert other["metadata"]["name"] in after


async def test_forbidden_endpointslices_count_as_absent(left: Left) -> None:
    left.two.home.fail(Fault("GET", "*/endpointslices", times=None, code=403))
    assert await left.leave()
    assert left.two.home.find(NODES, NODE) is None


@pytest.mark.parametrize("ours", [True, False])
async def test_local_route_of_a_killed_bridge_is_removed(
    left: Left, monkeypatch: pytest.MonkeyPatch, ours: bool
) -> None:
    removed: list[str] = []
    cidr = ipaddress.ip_network("198.51.100.0/24")
    route = Route(cidr, is_local=ours, is_bridge_owned=ours, has_gateway=not ours)
    monkeypatch.setattr(netlink, "routes", lambda _: [route])
    monkeypatch.setattr(netlink, "remove_local_route", lambda it: removed.append(str(it)))
    options = {join_record.ANNOTATION_OPTIONS: '{"relayCidr": "198.51.100.0/24"}'}
    left.two.home.update(NODES, NODE, {"metadata": {"annotations": options}})
    assert await left.leave()
    said = "here:   the local route for 198.51.100.0/24"
    assert (said in left.asked[0]) is ours
    assert removed == ([str(cidr)] if ours else [])


async def test_local_route_that_cannot_be_removed_is_reported(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(1, "no")

    cidr = ipaddress.ip_network("198.51.100.0/24")
    route = Route(cidr, is_local=True, is_bridge_owned=True, has_gateway=False)
    monkeypatch.setattr(netlink, "routes", lambda _: [route])
    monkeypatch.setattr(netlink, "remove_local_route", refuse)
    options = {join_record.ANNOTATION_OPTIONS: '{"relayCidr": "198.51.100.0/24"}'}
    left.two.home.update(NODES, NODE, {"metadata": {"annotations": options}})
    assert await left.leave()
    assert any("`ip route del local 198.51.100.0/24 dev lo`" in line for line in left.told)
    assert left.two.home.find(NODES, NODE) is None


@pytest.mark.parametrize("said", ["7", '{"relayCidr": "x"}', '{"relayCidr": ["x"]}', "no JSON"])
async def test_malformed_join_options_do_not_prevent_leaving(left: Left, said: str) -> None:
    options = {join_record.ANNOTATION_OPTIONS: said}
    left.two.home.update(NODES, NODE, {"metadata": {"annotations": options}})
    assert await left.leave()


# -- the question --------------------------------------------------------------------------


async def test_confirmation_lists_all_objects_before_any_write(left: Left) -> None:
    left.workload()
    left.answer = False
    assert await left.leave() is False
    assert left.asked == [
        [
            f"home:   Node {NODE} and its Lease",
            "home:   Pod default/web",
            f"remote: Pod {THERE}/web",
            f"remote: ConfigMap {THERE}/conf",
            f"remote: Secret {THERE}/key",
            f"remote: Namespace {THERE}, if nothing else is in it",
        ]
    ]
    assert left.two.writes() == []
    assert CANARY not in str(left.told)


async def test_lease_without_node_is_listed(left: Left) -> None:
    left.two.home.remove(NODES, NODE)
    left.two.remote.remove(NAMESPACES, THERE)
    assert await left.leave(left.to(left.two.settings.remote))
    assert left.asked == [[f"home:   Lease {LEASE_NAMESPACE}/{NODE}"]]
    assert left.two.home.find(LEASES, NODE, LEASE_NAMESPACE) is None


async def test_long_lists_are_truncated(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "MAX_LISTED", 2)
    for number in range(5):
        left.two.home.put(pod(f"p{number}", node=NODE))
        left.two.remote.put(left.ours(pod(f"p{number}", THERE)))
        left.two.remote.put(left.ours(config_map(f"c{number}", THERE)))
        left.remote_namespace(f"n{number}")
    left.answer = False
    await left.leave()
    assert left.asked[0][1:] == [
        "home:   Pod default/p0",
        "home:   Pod default/p1",
        "home:   Pod: 3 more",
        f"remote: Pod {THERE}/p0",
        f"remote: Pod {THERE}/p1",
        "remote: Pod: 3 more",
        f"remote: ConfigMap {THERE}/c0",
        f"remote: ConfigMap {THERE}/c1",
        "remote: ConfigMap: 3 more",
        f"remote: Namespace {THERE}, if nothing else is in it",
        "remote: Namespace n0, if nothing else is in it",
        "remote: Namespace: 4 more, if nothing else is in them",
    ]


# -- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("ago", [0.0, LEASE_SECONDS - 15.0, -30.0], ids=["now", "late", "ahead"])
async def test_leave_is_refused_while_a_bridge_serves_the_node(left: Left, ago: float) -> None:
    left.two.home.put(lease(holder=NODE, ago=ago))
    sentence = await left.refused()
    assert re.search(rf"a bridge serves node {NODE}: its Lease was renewed \d+ s ago;", sentence)
    assert "--force" in sentence


@pytest.mark.parametrize(
    "held",
    [lease(holder=NODE, ago=LEASE_SECONDS + 5), lease(), None],
    ids=["expired", "given back", "none"],
)
async def test_node_without_a_serving_bridge_is_removed(left: Left, held: Object | None) -> None:
    if held is None:
        left.two.home.remove(LEASES, NODE, LEASE_NAMESPACE)
    else:
        left.two.home.put(held)
    assert await left.leave()


async def test_force_removes_a_node_that_a_bridge_serves(left: Left) -> None:
    left.two.home.put(lease(holder=NODE))
    assert await left.leave(left.to(None, force=True))
    assert left.two.home.find(NODES, NODE) is None


async def test_unmanaged_node_is_not_changed(left: Left) -> None:
    left.two.home.remove(NODES, NODE)
    left.two.home.put(node(NODE))
    sentence = await left.refused(left.to(left.two.settings.remote, force=True))
    assert sentence == f"home: node {NODE} is not a bridge's virtual node; nothing was changed"


async def test_node_without_recorded_remote_requires_kubeconfig(left: Left) -> None:
    left.two.home.update(NODES, NODE, {"metadata": {"annotations": None}})
    assert f"node {NODE} does not record its remote; name its kubeconfig" in await left.refused()
    assert await left.leave(left.to(left.two.settings.remote))


async def test_deleted_node_requires_kubeconfig(left: Left) -> None:
    left.two.home.remove(NODES, NODE)
    assert "name the remote's kubeconfig with --kubeconfig" in await left.refused()


async def test_missing_recorded_kubeconfig_is_named(left: Left) -> None:
    path = left.two.settings.remote.path
    assert path is not None
    path.unlink()
    sentence = await left.refused()
    assert f"remote: kubeconfig {path} (context remote-context): no such file" in sentence
    assert "--kubeconfig" in sentence


async def test_kubeconfig_of_another_cluster_is_rejected(left: Left, tmp_path: Path) -> None:
    sentence = await left.refused(left.to(left.two.settings.home))
    assert f"{left.two.home.url} is not the remote cluster of node {NODE}" in sentence
    assert "--kubeconfig" in sentence


async def test_forbidden_home_is_a_one_line_error(left: Left) -> None:
    left.two.home.fail(Fault("GET", "/api/v1/nodes/*", code=403))
    assert "ask the cluster's administrator for that permission" in await left.refused()


# -- the removal ---------------------------------------------------------------------------


async def test_leave_removes_managed_objects_from_both_clusters(left: Left) -> None:
    left.workload()
    assert await left.leave()
    home, remote = left.two.home, left.two.remote
    assert home.find(NODES, NODE) is None
    assert home.find(LEASES, NODE, LEASE_NAMESPACE) is None
    assert home.objects(PODS) == []
    assert remote.objects(PODS) == []
    assert remote.objects(SECRETS) == []
    assert remote.find(NAMESPACES, THERE) is None
    assert left.told[-1] == f"node {NODE} has left"


async def test_objects_are_deleted_in_order_and_the_node_last(left: Left) -> None:
    left.workload()
    await left.leave()
    assert [f"{it.method} {it.path}" for it in left.two.remote.writes()] == [
        f"DELETE {PODS.path('web', namespace=THERE)}",
        f"DELETE {CONFIG_MAPS.path('conf', namespace=THERE)}",
        f"DELETE {SECRETS.path('key', namespace=THERE)}",
        f"DELETE {NAMESPACES.path(THERE)}",
    ]
    web = PODS.path("web", namespace="default")
    assert [f"{it.method} {it.path}" for it in left.two.home.writes()] == [
        f"PATCH {NODES.path(NODE)}",
        f"DELETE {web}",
        f"DELETE {web}",
        f"DELETE {LEASES.path(NODE, namespace=LEASE_NAMESPACE)}",
        f"DELETE {NODES.path(NODE)}",
    ]
    graces = [it.body.get("gracePeriodSeconds") for it in left.two.home.writes(web)]
    assert graces == [None, 0]


async def test_leave_waits_for_slowly_terminating_remote_pods(left: Left) -> None:
    """With home's pod and the pod's ConfigMap still there."""
    left.workload()
    remote, home = left.two.remote, left.two.home
    remote.bind("web", "worker", THERE)
    leaving = asyncio.create_task(left.leave())
    await remote.until(lambda: "remote: 1 pod(s) are terminating" in left.told)
    assert "deletionTimestamp" in home.get(PODS, "web", "default")["metadata"]
    assert home.get(NODES, NODE)["spec"]["unschedulable"] is True
    assert remote.find(CONFIG_MAPS, "conf", THERE)
    remote.remove(PODS, "web", THERE)
    assert await leaving
    assert home.find(PODS, "web", "default") is None


async def test_unmanaged_and_shared_objects_stay(left: Left) -> None:
    left.workload()
    remote = left.two.remote
    stays = [
        remote.put(left.ours(using("other", "shared"), node="other")),
        remote.put(left.ours(config_map("shared", THERE))),
        remote.put(config_map("foreign", THERE)),
        left.two.home.put(pod("elsewhere", node="machine")),
    ]
    assert await left.leave()
    told = f"remote: ConfigMap {THERE}/shared stays: pods of virtual node other use it"
    assert told in left.told
    # It is kept up to date, and removed, by the one that uses it.
    stays[1]["metadata"]["labels"][LABEL_NODE] = "other"
    stays[1]["metadata"]["resourceVersion"] = remote.get(CONFIG_MAPS, "shared", THERE)["metadata"][
        "resourceVersion"
    ]
    assert stays == [
        remote.get(PODS, "other", THERE),
        remote.get(CONFIG_MAPS, "shared", THERE),
        remote.get(CONFIG_MAPS, "foreign", THERE),
        left.two.home.get(PODS, "elsewhere", "default"),
    ]
    assert not any("shared" in line or "foreign" in line for line in left.asked[0])
    assert "deletionTimestamp" not in remote.get(NAMESPACES, THERE)["metadata"]


async def test_namespace_with_unmanaged_objects_stays_and_is_reported(left: Left) -> None:
    left.two.remote.put(config_map("theirs", THERE))
    assert await left.leave()
    assert f"remote: namespace {THERE} stays: it holds ConfigMap theirs" in left.told
    left.two.remote.remove(CONFIG_MAPS, "theirs", THERE)
    assert await left.leave(left.to(left.two.settings.remote))
    assert left.two.remote.find(NAMESPACES, THERE) is None


async def test_second_leave_has_nothing_to_remove(left: Left) -> None:
    left.workload()
    await left.leave()
    left.two.home.clear_log()
    left.two.remote.clear_log()
    assert await left.leave(left.to(left.two.settings.remote))
    assert left.asked[1] == []
    assert left.two.writes() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", f"*/namespaces/{THERE}/pods/web"),
        ("DELETE", "*/configmaps/conf"),
        ("DELETE", f"*/namespaces/{THERE}"),
    ],
    ids=["a pod", "a copy", "a namespace"],
)
async def test_failed_deletion_keeps_the_node_and_a_second_leave_continues(
    left: Left, method: str, path: str
) -> None:
    left.workload()
    fault = left.two.remote.fail(Fault(method, path, code=500, times=None))
    with pytest.raises(PreflightError, match="remote: DELETE"):
        await left.leave()
    assert left.two.home.find(NODES, NODE)
    left.two.remote.heal(fault)
    assert await left.leave()
    assert left.two.home.find(NODES, NODE) is None
    assert left.two.remote.find(NAMESPACES, THERE) is None


async def test_node_re_created_during_the_confirmation_is_not_changed(left: Left) -> None:
    def agree(_: list[str]) -> bool:
        left.two.home.remove(NODES, NODE)
        left.two.home.put(node(NODE))
        return True

    with pytest.raises(PreflightError, match=f"home: PATCH /api/v1/nodes/{NODE}"):
        await left.leave(agree=agree)
    assert "unschedulable" not in left.two.home.get(NODES, NODE)["spec"]
    assert left.two.remote.writes() == []


async def test_managed_service_is_deleted(left: Left) -> None:
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": THERE},
        "spec": {"ports": [{"port": 80}]},
    }
    left.two.remote.put(left.ours(service))
    assert await left.leave()
    assert f"remote: Service {THERE}/web" in left.asked[0]
    assert left.two.remote.objects(SERVICES) == []


# -- a remote that cannot be reached -------------------------------------------------------


async def test_unreachable_remote_is_an_error_before_any_write(left: Left) -> None:
    left.workload()
    await left.two.remote.stop()
    sentence = await left.refused()
    assert "remote: " in sentence
    assert "nothing was removed" in sentence
    assert "--force" in sentence


async def test_force_cleans_home_without_the_remote(left: Left) -> None:
    left.workload()
    await left.two.remote.stop()
    assert await left.leave(left.to(None, force=True))
    home = left.two.home
    assert marked(home) == []
    assert home.objects(PODS) == []
    assert left.asked == [[f"home:   Node {NODE} and its Lease", "home:   Pod default/web"]]
    assert left.told[1].startswith("remote: cannot be reached, so nothing is removed there: ")
    assert "remote: the remote pod of home's Pod default/web: may be left" in left.told
    own = home_id_from_uid(_cluster(home))
    assert f"--remove {own} --node {NODE}`" in left.told[-2]


async def test_force_does_not_touch_a_replaced_remote_cluster(left: Left) -> None:
    """As where the remote was built anew: the one that the node stands for is gone for ever."""
    left.workload()
    left.two.remote.remove(NAMESPACES, "kube-system")
    left.two.remote.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
    )
    assert await left.leave(left.to(None, force=True))
    assert left.two.remote.writes() == []
    assert marked(left.two.home) == []
    assert any("is not the remote cluster of node" in line for line in left.told)


async def test_force_reports_remote_failures_and_cleans_home(left: Left) -> None:
    left.workload()
    left.two.remote.fail(Fault("DELETE", "*/configmaps/conf", code=500, times=None))
    assert await left.leave(left.to(None, force=True))
    assert marked(left.two.home) == []
    assert left.two.remote.find(SECRETS, "key", THERE) is None, "the others went all the same"
    assert f"remote: ConfigMap {THERE}/conf: may be left" in left.told


async def test_unreachable_home_names_the_alternative(left: Left) -> None:
    await left.two.home.stop()
    assert "bridge garbage --kubeconfig" in await left.refused()


# -- pods that do not end ------------------------------------------------------------------


async def test_wait_for_pods_times_out(left: Left) -> None:
    left.workload()
    left.two.remote.bind("web", "worker", THERE)
    with pytest.raises(PreflightError, match=r"1 pod\(s\) have not terminated after 0 s"):
        await left.leave(replace(left.settings, timeout=0.05))
    assert left.two.home.find(NODES, NODE), "leaving again goes on"
    assert left.two.remote.find(CONFIG_MAPS, "conf", THERE)
    assert await left.leave(replace(left.settings, timeout=0.05, force=True))
    assert marked(left.two.home) == []
    assert f"remote: Pod {THERE}/web: may be left" in left.told


# -- workloads that stay -------------------------------------------------------------------


async def test_keep_workloads_leaves_the_remote_unchanged_and_cleans_home(left: Left) -> None:
    left.workload()
    before = [left.two.remote.objects(kind) for kind in (PODS, CONFIG_MAPS, SECRETS, NAMESPACES)]
    assert await left.leave(replace(left.settings, keep_workloads=True))
    assert left.two.remote.writes() == []
    after = [left.two.remote.objects(kind) for kind in (PODS, CONFIG_MAPS, SECRETS, NAMESPACES)]
    assert after == before
    assert marked(left.two.home) == []
    assert left.two.home.objects(PODS) == []
    assert left.asked == [[f"home:   Node {NODE} and its Lease", "home:   Pod default/web"]]
    assert any("1 pod(s) and 2 object(s) for them stay as they are" in line for line in left.told)
    assert any("runs twice" in line for line in left.told)


async def test_keep_workloads_is_refused_while_a_bridge_serves_the_node(left: Left) -> None:
    left.two.home.put(lease(holder=NODE))
    keep = replace(left.to(None, force=True), keep_workloads=True)
    assert "stop it with Ctrl-C and leave again" in await left.refused(keep)


# -- what comes while the question stands -----------------------------------------------------


async def test_objects_created_after_the_confirmation_are_removed(left: Left) -> None:
    left.workload()

    def agree(lines: list[str]) -> bool:
        left.two.home.put(pod("late", node=NODE))
        left.remote_namespace("late-h")
        late = left.ours(using("late", "late-conf"))
        late["metadata"]["namespace"] = "late-h"
        left.two.remote.put(late)
        left.two.remote.put(left.ours(config_map("late-conf", "late-h")))
        return left.agree(lines)

    assert await left.leave(agree=agree)
    remote = left.two.remote
    assert [remote.find(PODS, "late", "late-h"), remote.find(NAMESPACES, "late-h")] == [None, None]
    assert left.two.home.find(PODS, "late", "default") is None
    for what in ("Pod late-h/late", "ConfigMap late-h/late-conf", "Namespace late-h"):
        assert f"remote: {what} was created after the confirmation; removing it" in left.told


async def test_objects_created_during_the_removal_are_removed(left: Left) -> None:
    left.workload()
    remote = left.two.remote

    async def deleted(_: web.Request) -> web.Response:
        remote.put(left.ours(using("again", "conf")))
        remote.remove(CONFIG_MAPS, "conf", THERE)
        return web.json_response({})

    remote.route("DELETE", "*/configmaps/conf", deleted)
    assert await left.leave()
    assert remote.find(PODS, "again", THERE) is None
    assert remote.find(NAMESPACES, THERE) is None


async def test_objects_that_keep_appearing_are_an_error(left: Left) -> None:
    left.workload()

    async def stays(_: web.Request) -> web.Response:
        return web.json_response({})

    left.two.remote.route("DELETE", "*/configmaps/conf", stays)
    with pytest.raises(PreflightError, match="objects of node virtual keep appearing"):
        await left.leave()
    assert left.two.home.find(NODES, NODE), "leaving again goes on"


# -- several virtual nodes of one home ---------------------------------------------------------


async def test_namespace_used_by_another_node_stays_until_that_node_leaves(
    left: Left,
) -> None:
    left.workload()
    remote = left.two.remote
    other = node("other")
    other["metadata"]["labels"] = dict(left.node["metadata"]["labels"])
    left.two.home.put(other)
    claims = {used_by_annotation(it): "true" for it in (NODE, "other", "gone")}
    remote.update(NAMESPACES, THERE, {"metadata": {"annotations": claims}})
    assert await left.leave()
    assert f"remote: namespace {THERE} stays: virtual node(s) other use it" in left.told
    assert namespace_users(remote.get(NAMESPACES, THERE)) == {"other"}
    assert await left.leave(replace(left.settings, name="other", remote=left.two.settings.remote))
    assert remote.find(NAMESPACES, THERE) is None


async def test_handed_over_namespace_stays(left: Left) -> None:
    remote = left.two.remote
    handed = {"metadata": {"annotations": {ANNOTATION_ACCEPTS: "*"}}}
    remote.update(NAMESPACES, THERE, handed)
    assert await left.leave()
    assert f"remote: namespace {THERE} stays: it was handed over" in left.told


# -- drain ---------------------------------------------------------------------------------


def daemon(name: str) -> Object:
    """A DaemonSet's pod on the node."""
    made = pod(name, node=NODE)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "9"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods are looked at, and asked about, often."""
    monkeypatch.setattr(eviction, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(eviction, "POLL_SECONDS", 0.005)


@pytest.mark.usefixtures("often")
async def test_drain_respects_disruption_budgets(left: Left) -> None:
    """One after the other, as the budget says; their remote pods end, and all else after them."""
    home, remote = left.two.home, left.two.remote
    for name in ("a", "b"):
        made = home.put(pod(name, node=NODE))
        there = left.ours(pod(name, THERE))
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
    assert await left.leave(replace(left.settings, drain=True))
    evictions = {it.path for it in home.writes("*/eviction")}
    assert evictions == {f"{PODS.path(it, namespace='default')}/eviction" for it in "ab"}
    assert len(kept) == 1
    assert f"home: pod default/{kept.pop()} cannot be evicted yet: Cannot evict" in "\n".join(
        left.told
    )
    assert "home: 2 of 2 pod(s) evicted" in left.told
    assert marked(home) == marked(remote) == []
    assert home.objects(PODS) == []


@pytest.mark.usefixtures("often")
async def test_drain_timeout_names_blocked_pods_and_changes_nothing_else(
    left: Left,
) -> None:
    left.workload()
    left.two.home.api.budget = lambda _: "the budget wants it"
    with pytest.raises(PreflightError) as caught:
        await left.leave(replace(left.settings, drain=True, timeout=0.05))
    assert "1 pod(s) are still blocked (default/web: the budget wants it) after 0 s" in str(
        caught.value
    )
    assert "without --drain" in str(caught.value)
    assert "deletionTimestamp" not in left.two.home.get(PODS, "web", "default")["metadata"]
    assert left.two.remote.writes() == []
    assert left.two.home.get(NODES, NODE)["spec"]["unschedulable"] is True
    assert await left.leave()


@pytest.mark.usefixtures("often")
async def test_drain_renews_the_lease_while_no_bridge_serves_the_node(left: Left) -> None:
    """Or home would call its pods lost, and budgets would keep them for ever; but nobody is to
    take that for a bridge."""
    left.workload()
    left.two.home.put(lease(holder=NODE, ago=LEASE_SECONDS + 5))
    left.two.home.api.budget = lambda _: "the budget wants it"
    with pytest.raises(PreflightError):
        await left.leave(replace(left.settings, drain=True, timeout=0.1))
    spec = left.two.home.get(LEASES, NODE, LEASE_NAMESPACE)["spec"]
    renewed = parse_time(spec["renewTime"])
    assert (datetime.now(UTC) - renewed).total_seconds() < 5
    assert not spec.get("holderIdentity")
    assert await left.leave()


@pytest.mark.usefixtures("often")
async def test_drain_with_a_serving_bridge_asks_to_stop_it_afterwards(
    left: Left,
) -> None:
    left.workload()
    home, remote = left.two.home, left.two.remote
    home.put(lease(holder=NODE))
    settings = replace(left.settings, drain=True)
    leaving_ = asyncio.create_task(left.leave(settings))
    await home.until(lambda: "deletionTimestamp" in home.get(PODS, "web", "default")["metadata"])
    assert remote.writes() == []
    home.remove(PODS, "web", "default")  # as the bridge does
    with pytest.raises(PreflightError, match="is drained and cordoned, and a bridge still serves"):
        await leaving_
    assert home.find(NODES, NODE)
    home.put(lease())
    assert await left.leave(settings)
    assert marked(home) == marked(remote) == []


# -- the certificate -----------------------------------------------------------------------


def requested(name: str, signer: str = "kubernetes.io/kubelet-serving") -> Object:
    """A CertificateSigningRequest."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {"signerName": signer, "request": "", "usages": []},
    }


async def test_certificate_and_its_requests_are_deleted_and_others_stay(
    left: Left, tmp_path: Path
) -> None:
    home, folder = left.two.home, tmp_path / "certs"
    folder.mkdir()
    for name in ("serving.pem", "pending.key", "theirs"):
        (folder / name).write_text("x")
    annotation = {node_object.ANNOTATION_CERT_DIR: str(folder)}
    home.update(NODES, NODE, {"metadata": {"annotations": annotation}})
    mine = f"kubelet-serving-{NODE}-0123456789"
    others = [f"kubelet-serving-{NODE}-more-0123456789", "csr-abc"]
    for name in (mine, *others):
        home.put(requested(name))
    assert await left.leave()
    assert f"home:   CertificateSigningRequest {mine}" in left.asked[0]
    assert f"here:   the node's certificate and key in {folder}" in left.asked[0]
    assert [it["metadata"]["name"] for it in home.objects(CERTIFICATE_SIGNING_REQUESTS)] == sorted(
        others
    )
    assert [it.name for it in folder.iterdir()] == ["theirs"]


async def test_empty_cert_dir_is_deleted(left: Left, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    annotation = {node_object.ANNOTATION_CERT_DIR: str(folder)}
    left.two.home.update(NODES, NODE, {"metadata": {"annotations": annotation}})
    assert await left.leave()
    assert not folder.exists()


async def test_cert_dir_with_only_unmanaged_files_stays(left: Left, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("x")
    assert await left.leave(replace(left.settings, cert_dir=tmp_path))
    assert not any(str(tmp_path) in line for line in left.asked[0])
    assert (tmp_path / "theirs").exists()


async def test_state_folder_is_deleted_with_its_last_certificate(
    left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = default_cert_dir(home_id_from_uid(_cluster(left.two.home)), NODE)
    folder.mkdir(parents=True)
    (folder / "serving.pem").write_text("x")
    assert await left.leave()
    assert not (tmp_path / "state" / "cluster-bridge").exists()


async def test_forbidden_deletion_of_a_csr_is_reported(left: Left) -> None:
    name = f"kubelet-serving-{NODE}-0123456789"
    left.two.home.put(requested(name))
    left.two.home.fail(Fault("DELETE", "*/certificatesigningrequests/*", code=403))
    assert await left.leave()
    assert any(f"CertificateSigningRequest {name} stays" in line for line in left.told)


# -- interrupted ---------------------------------------------------------------------------


def marked(api: FakeApi) -> list[str]:
    """All objects of all kinds that have a label, annotation, taint or finalizer of ours."""
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
    interrupted = 0
    while True:
        left = Left(two)
        left.workload()
        two.home.put(requested(f"kubelet-serving-{NODE}-0123456789"))
        settings = replace(left.settings, drain=drained)
        two.home.clear_log()
        two.remote.clear_log()
        run = asyncio.create_task(left.leave(settings))
        writes = interrupted + 1
        await two.home.until(lambda run=run, n=writes: run.done() or len(two.writes()) >= n)  # type: ignore[misc]
        if run.done():
            break
        interrupted += 1
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        if two.home.find(NODES, NODE) is None:
            settings = replace(settings, remote=two.settings.remote)
        assert await left.leave(settings)
        assert marked(two.home) == marked(two.remote) == []
        assert two.home.objects(PODS) == []
    assert await run
    assert marked(two.home) == marked(two.remote) == []
    assert interrupted >= 8
