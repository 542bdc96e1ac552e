"""A virtual node's end: what is ours goes from both clusters, after a question; nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge import leave as leave_module
from bridge.leave import LeaveSettings, leave
from bridge.node import model
from bridge.node.lease import LEASE_NAMESPACE, LEASE_SECONDS
from bridge.preflight.checks import PreflightError
from sync.kube.access import KubeconfigRef
from sync.kube.resources import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
)
from tests.bridge.clusters import CANARY, Clusters
from tests.bridge.joined import SOON
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, node, pod, secret
from tests.sync.world import NODE, THERE
from translators import naming
from translators.naming import home_id

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
            "labels": {model.LABEL_REMOTE: home_id(_cluster(self.two.remote))},
            "annotations": {
                model.ANNOTATION_KUBECONFIG: str(self.two.settings.remote.path),
                model.ANNOTATION_CONTEXT: "remote-context",
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
            "labels": {naming.LABEL_HOME: home_id(_cluster(self.two.home)), naming.LABEL_NODE: node}
        }
        obj["metadata"]["annotations"] = {
            naming.ANNOTATION_HOME_NAMESPACE: "default",
            naming.ANNOTATION_HOME_NAME: obj["metadata"]["name"],
            naming.ANNOTATION_HOME_UID: "1",
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
                settings or self.settings, told=self.told.append, agree=agree or self.agree
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
    spec: Object = {"renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
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


# -- the question --------------------------------------------------------------------------


async def test_it_says_what_goes_and_asks_before_it_touches_anything(left: Left) -> None:
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


async def test_a_lease_that_is_left_alone_is_named_too(left: Left) -> None:
    left.two.home.remove(NODES, NODE)
    left.two.remote.remove(NAMESPACES, THERE)
    assert await left.leave(left.to(left.two.settings.remote))
    assert left.asked == [[f"home:   Lease {LEASE_NAMESPACE}/{NODE}"]]
    assert left.two.home.find(LEASES, NODE, LEASE_NAMESPACE) is None


async def test_long_lists_are_cut(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_module, "SHOWN", 2)
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
async def test_a_node_that_is_served_is_not_left(left: Left, ago: float) -> None:
    left.two.home.put(lease(holder=NODE, ago=ago))
    sentence = await left.refused()
    assert re.search(rf"a bridge serves node {NODE} \(its Lease was renewed \d+ s ago\)", sentence)
    assert "--force" in sentence


@pytest.mark.parametrize(
    "held",
    [lease(holder=NODE, ago=LEASE_SECONDS + 5), lease(), None],
    ids=["expired", "given back", "none"],
)
async def test_a_node_that_nobody_serves_is_left(left: Left, held: Object | None) -> None:
    if held is None:
        left.two.home.remove(LEASES, NODE, LEASE_NAMESPACE)
    else:
        left.two.home.put(held)
    assert await left.leave()


async def test_a_node_that_is_served_is_left_when_forced(left: Left) -> None:
    left.two.home.put(lease(holder=NODE))
    assert await left.leave(left.to(None, force=True))
    assert left.two.home.find(NODES, NODE) is None


async def test_a_node_that_is_not_ours_is_left_alone(left: Left) -> None:
    left.two.home.remove(NODES, NODE)
    left.two.home.put(node(NODE))
    sentence = await left.refused(left.to(left.two.settings.remote, force=True))
    assert sentence == f"home: node {NODE} is not a bridge's virtual node; left alone"


async def test_a_node_that_forgot_its_remote(left: Left) -> None:
    left.two.home.update(NODES, NODE, {"metadata": {"annotations": None}})
    assert f"node {NODE} does not tell its remote; name its kubeconfig" in await left.refused()
    assert await left.leave(left.to(left.two.settings.remote))


async def test_a_node_that_is_gone_does_not_tell_its_remote(left: Left) -> None:
    left.two.home.remove(NODES, NODE)
    assert "name the remote's kubeconfig with --kubeconfig" in await left.refused()


async def test_a_remembered_kubeconfig_that_is_gone_is_named(left: Left) -> None:
    path = left.two.settings.remote.path
    assert path is not None
    path.unlink()
    sentence = await left.refused()
    assert f"remote: kubeconfig {path} (context remote-context): no such file" in sentence
    assert "--kubeconfig" in sentence


async def test_another_cluster_than_the_nodes_own_is_refused(left: Left, tmp_path: Path) -> None:
    sentence = await left.refused(left.to(left.two.settings.home))
    assert f"{left.two.home.url} is not the cluster that node {NODE} stands for" in sentence
    assert "--kubeconfig" in sentence


async def test_a_home_that_does_not_let_us_look_is_a_sentence(left: Left) -> None:
    left.two.home.fail(Fault("GET", "/api/v1/nodes/*", code=403))
    assert "ask the cluster's administrator for that right" in await left.refused()


# -- the removal ---------------------------------------------------------------------------


async def test_what_is_ours_goes_from_both_clusters(left: Left) -> None:
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


async def test_the_order_is_cordon_pods_copies_namespaces_and_the_node_last(left: Left) -> None:
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
        f"DELETE {NODES.path(NODE)}",
        f"DELETE {LEASES.path(NODE, namespace=LEASE_NAMESPACE)}",
    ]
    graces = [it.body.get("gracePeriodSeconds") for it in left.two.home.writes(web)]
    assert graces == [None, 0]


async def test_a_remote_pod_that_ends_slowly_is_waited_for(left: Left) -> None:
    """With home's pod and the pod's ConfigMap still there."""
    left.workload()
    remote, home = left.two.remote, left.two.home
    remote.bind("web", "worker", THERE)
    leaving = asyncio.create_task(left.leave())
    await remote.until(lambda: "remote: 1 pod(s) are ending" in left.told)
    assert "deletionTimestamp" in home.get(PODS, "web", "default")["metadata"]
    assert home.get(NODES, NODE)["spec"]["unschedulable"] is True
    assert remote.find(CONFIG_MAPS, "conf", THERE)
    remote.remove(PODS, "web", THERE)
    assert await leaving
    assert home.find(PODS, "web", "default") is None


async def test_what_others_made_and_what_another_node_uses_stays(left: Left) -> None:
    left.workload()
    remote = left.two.remote
    stays = [
        remote.put(left.ours(using("other", "shared"), node="other")),
        remote.put(left.ours(config_map("shared", THERE))),
        remote.put(config_map("foreign", THERE)),
        left.two.home.put(pod("elsewhere", node="machine")),
    ]
    assert await left.leave()
    assert stays == [
        remote.get(PODS, "other", THERE),
        remote.get(CONFIG_MAPS, "shared", THERE),
        remote.get(CONFIG_MAPS, "foreign", THERE),
        left.two.home.get(PODS, "elsewhere", "default"),
    ]
    assert not any("shared" in line or "foreign" in line for line in left.asked[0])
    assert "deletionTimestamp" not in remote.get(NAMESPACES, THERE)["metadata"]


async def test_a_namespace_with_something_of_others_stays_and_that_is_said(left: Left) -> None:
    left.two.remote.put(config_map("theirs", THERE))
    assert await left.leave()
    assert f"remote: namespace {THERE} stays: it holds ConfigMap theirs" in left.told
    left.two.remote.remove(CONFIG_MAPS, "theirs", THERE)
    assert await left.leave(left.to(left.two.settings.remote))
    assert left.two.remote.find(NAMESPACES, THERE) is None


async def test_a_second_leave_has_nothing_to_remove(left: Left) -> None:
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
async def test_what_fails_keeps_the_node_and_leaving_again_goes_on(
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


async def test_a_node_that_took_the_name_during_the_question_is_not_touched(left: Left) -> None:
    def agree(_: list[str]) -> bool:
        left.two.home.remove(NODES, NODE)
        left.two.home.put(node(NODE))
        return True

    with pytest.raises(PreflightError, match=f"home: PATCH /api/v1/nodes/{NODE}"):
        await left.leave(agree=agree)
    assert "unschedulable" not in left.two.home.get(NODES, NODE)["spec"]
    assert left.two.remote.writes() == []


async def test_a_service_of_ours_goes_too(left: Left) -> None:
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
