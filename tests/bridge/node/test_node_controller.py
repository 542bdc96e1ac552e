"""The Node object and its Lease at home; the test creates the remote's nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from bridge.node import conditions, node_object
from bridge.node.node_controller import OUTAGE_SECONDS, SETTLE, SPACING, NodeController, NodeTaken
from bridge.node.node_lease import LEASE_NAMESPACE, RENEW_SECONDS, LeaseAnnotation, request_lease
from bridge.node.node_metadata_merge import NodeMetadata
from bridge.node.node_object import NodeFacts
from sync.base.background_task import background_task
from sync.cache.informer import Informer
from sync.capacity.remote_capacity import CapacityAggregator
from sync.capacity.unschedulable_pods import UnschedulablePods
from sync.kube.api_errors import KubeError, Unauthorized
from sync.kube.api_resources import LEASES, NODES, PODS, Object
from sync.kube.client import KubeClient
from sync.kube.request_limiter import FLOW
from sync.runtime import workqueue
from sync.runtime.event_recorder import EventRecorder
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.sync.engine_harness import IDENTITY
from tests.sync.informer_harness import caught_up, running_informer
from translators.capacity import node_capacity
from translators.capacity.node_capacity import NO_LIMITS

NAME = "virtual"
TAINT = {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"}
FACTS = NodeFacts(
    name=NAME,
    remote_id="remote-1",
    address="192.0.2.7",
    port=10250,
    version="1.2.3",
    configured=NodeMetadata(taints=(TAINT,)),
    annotations={node_object.ANNOTATION_HOME_NAME: "h"},
)
#: Seconds for a renewal of the claim.
CLAIM = 5.0


@pytest.fixture
async def nodes(remote_api: FakeApi, client_for: ClientFor) -> AsyncIterator[Informer]:
    """An informer of the remote's nodes, one of which is usable."""
    joined(remote_api, worker("w1", cpu="4"))
    informer = Informer(await client_for(remote_api, "remote"), NODES)
    async with running_informer(informer):
        yield informer


@pytest.fixture
async def home(home_api: FakeApi, client_for: ClientFor) -> KubeClient:
    """A client of home."""
    return await client_for(home_api, "home")


@pytest.fixture
def node(home: KubeClient, nodes: Informer) -> NodeController:
    """A controller that is neither registered nor running."""
    return controller(home, nodes)


def controller(
    home: KubeClient,
    nodes: Informer,
    configured: NodeMetadata = FACTS.configured,
    *,
    offer: CapacityAggregator | None = None,
    unplaced: UnschedulablePods | None = None,
    note: LeaseAnnotation | None = None,
    events: EventRecorder | None = None,
) -> NodeController:
    """A controller that offers the capacity of the nodes; the test passes other changes to
    ``offer``."""
    offer = offer or CapacityAggregator(IDENTITY, NO_LIMITS)
    nodes.on_change(offer.node_changed)
    for known in nodes.store:
        offer.node_changed(None, known)

    def now() -> str:
        return "2030-01-01T00:00:00Z"

    return NodeController(
        home,
        replace(FACTS, configured=configured),
        capacity=offer,
        remote_nodes=nodes,
        watched=[nodes],
        unschedulable_pods=unplaced,
        events=events or EventRecorder(home, node=NAME, now=now),
        now=now,
        lease_annotation=note,
    )


class RecordedEvents(EventRecorder):
    """Events that were recorded; none is written."""

    def __init__(self, home: KubeClient) -> None:
        super().__init__(home, node=NAME, now=lambda: "2030-01-01T00:00:00Z")
        self.recorded: list[tuple[str, str]] = []
        """Reasons and messages, in order."""

    def warn(self, obj: Object, reason: str, message: str) -> None:
        """Records a Warning about the Node."""
        assert obj["kind"] == "Node"
        self.recorded.append((reason, message))

    def normal(self, obj: Object, reason: str, message: str) -> None:
        """Records a normal Event about the Node."""
        self.warn(obj, reason, message)


def worker(name: str, *, cpu: str = "2", ready: bool = True) -> Object:
    """A node of the remote."""
    resources = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {
        "capacity": resources,
        "allocatable": resources,
        "conditions": [condition],
        "nodeInfo": {"architecture": "arm64", "kubeletVersion": "v1.34.4"},
    }
    meta = {"name": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}


def joined(api: FakeApi, node: Object) -> None:
    """Waits for the registered Node; removes the taint that admission adds to a new Node."""
    api.put(node)
    api.update(NODES, node["metadata"]["name"], {"spec": {"taints": None}})


@asynccontextmanager
async def running(node: NodeController) -> AsyncIterator[asyncio.Task[None]]:
    """Registers the Node and runs the controller until the block ends."""
    await node.register()
    task = asyncio.create_task(node.run())
    try:
        async with asyncio.timeout(30):
            await node.node.synced.wait()
        await asyncio.sleep(3 * SETTLE)
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
            await task


def condition(api: FakeApi, kind: str = "Ready") -> Object:
    """A condition of the virtual node, or an empty object."""
    node = api.find(NODES, NAME) or {}
    found = (node.get("status") or {}).get("conditions") or []
    return next((item for item in found if item["type"] == kind), {})


def lease(api: FakeApi) -> Object:
    """The virtual node's Lease."""
    return api.get(LEASES, NAME, LEASE_NAMESPACE)


def node_writes(api: FakeApi) -> list[str]:
    """The writes to the Node."""
    return [entry.method for entry in api.writes(f"/api/v1/nodes/{NAME}*")]


async def test_register_creates_node_with_remote_capacity(
    home_api: FakeApi, node: NodeController
) -> None:
    await node.register()
    made = home_api.get(NODES, NAME)
    assert made["metadata"]["labels"][node_object.LABEL_REMOTE] == "remote-1"
    assert made["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"
    assert TAINT in made["spec"]["taints"]
    assert made["status"]["capacity"]["cpu"] == "4"
    assert made["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.4"
    assert made["status"]["addresses"][0]["address"] == "192.0.2.7"
    assert made["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    assert (condition(home_api)["status"], condition(home_api)["reason"]) == ("True", "RemoteReady")
    for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"):
        assert condition(home_api, kind)["status"] == "False"
    (owner,) = lease(home_api)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", made["metadata"]["uid"])
    assert lease(home_api)["spec"]["holderIdentity"] == NAME
    assert lease(home_api)["spec"]["leaseDurationSeconds"] == 40


async def test_register_adopts_node_of_earlier_join_and_keeps_unmanaged_fields(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    await controller(home, nodes).register()
    uid = home_api.get(NODES, NAME)["metadata"]["uid"]
    theirs = {"key": "theirs", "effect": "NoExecute"}
    change: Object = {
        "metadata": {"labels": {"theirs": "yes"}, "annotations": {"theirs": "too"}},
        "spec": {"taints": [theirs], "unschedulable": True},
        "status": {
            "conditions": [
                *home_api.get(NODES, NAME)["status"]["conditions"],
                {"type": "Theirs", "status": "True"},
            ]
        },
    }
    home_api.update(NODES, NAME, change)
    home_api.clear_log()
    await controller(home, nodes).register()
    assert node_writes(home_api) == [], "nothing differs"
    home_api.update(NODES, NAME, {"metadata": {"labels": {"type": "wrong"}}})
    home_api.update(NODES, NAME, {"status": {"capacity": {"cpu": "1"}}})
    await controller(home, nodes).register()
    assert node_writes(home_api) == ["PATCH", "PATCH"]
    kept = home_api.get(NODES, NAME)
    assert kept["metadata"]["uid"] == uid
    assert kept["metadata"]["labels"]["theirs"] == "yes"
    assert kept["metadata"]["labels"]["type"] == "virtual-kubelet"
    assert kept["metadata"]["annotations"]["theirs"] == "too"
    assert kept["spec"] == {**kept["spec"], "taints": [theirs], "unschedulable": True}
    assert condition(home_api, "Theirs")["status"] == "True"
    assert kept["status"]["capacity"]["cpu"] == "4"


async def test_node_without_a_provider_id_gets_one(home_api: FakeApi, node: NodeController) -> None:
    """A cloud controller deletes a Node without one that is not Ready."""
    await node.register()
    created = home_api.get(NODES, NAME)
    assert created["spec"]["providerID"] == f"cluster-bridge://{FACTS.remote_id}/{NAME}"
    home_api.update(NODES, NAME, {"spec": {"providerID": None}})
    async with running(node):
        await home_api.until(lambda: home_api.get(NODES, NAME)["spec"].get("providerID"))
    assert home_api.get(NODES, NAME)["spec"]["taints"] == created["spec"]["taints"]


async def test_provider_id_of_another_program_stays(
    home_api: FakeApi, node: NodeController
) -> None:
    """The API permits no change of it."""
    await node.register()
    home_api.update(NODES, NAME, {"spec": {"providerID": "aws:///zone/i-1"}})
    home_api.clear_log()
    await node.register()
    assert home_api.get(NODES, NAME)["spec"]["providerID"] == "aws:///zone/i-1"
    assert not home_api.writes(NODES.path(NAME))


@pytest.mark.parametrize(
    ("labels", "whose"),
    [
        ({}, "is not a bridge's"),
        ({node_object.LABEL_REMOTE: "remote-2"}, "stands for another remote"),
    ],
    ids=["of a machine", "of another remote"],
)
async def test_register_rejects_unmanaged_node(
    home_api: FakeApi, node: NodeController, labels: dict[str, str], whose: str
) -> None:
    theirs = home_api.put(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME, "labels": labels}}
    )
    with pytest.raises(NodeTaken, match=whose):
        await node.register()
    assert home_api.get(NODES, NAME) == theirs
    assert home_api.find(LEASES, NAME, LEASE_NAMESPACE) is None
    await node.release()
    assert home_api.find(LEASES, NAME, LEASE_NAMESPACE) is None


async def test_burst_of_changes_is_one_status_write(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController
) -> None:
    async with running(node):
        home_api.clear_log()
        beat = {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "x"}]}
        remote_api.update(NODES, "w1", {"status": beat})
        home_api.update(NODES, NAME, {"metadata": {"labels": {"theirs": "yes"}}})
        await asyncio.sleep(5 * SETTLE)
        assert node_writes(home_api) == []
        for number in range(2, 6):
            joined(remote_api, worker(f"w{number}"))
        await home_api.until(lambda: home_api.get(NODES, NAME)["status"]["capacity"]["cpu"] == "12")
        await asyncio.sleep(5 * SETTLE)
        assert len(node_writes(home_api)) <= 2


def foreign(name: str, cpu: str) -> Object:
    """An unmanaged pod on the remote's node."""
    configured = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, "namespace": "theirs", "uid": name},
        "spec": {"nodeName": "w1", "containers": [configured]},
    }


def allocatable(api: FakeApi) -> str:
    """The CPU that the virtual node offers."""
    found: str = api.get(NODES, NAME)["status"]["allocatable"]["cpu"]
    return found


async def test_free_capacity_is_written_at_once_then_at_most_every_spacing(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    """Under constantly changing load the first change is written soon, and the last one always."""
    offer = CapacityAggregator(IDENTITY, NO_LIMITS)
    async with running(controller(home, nodes, offer=offer)):
        home_api.clear_log()
        offer.pod_changed(None, foreign("first", "500m"))
        await home_api.until(lambda: allocatable(home_api) == "3500m")
        began = asyncio.get_running_loop().time()
        for number in range(100):
            offer.pod_changed(None, foreign(f"p{number}", "10m"))
            await asyncio.sleep(SPACING / 25)
        await home_api.until(lambda: allocatable(home_api) == "2500m")
        took = asyncio.get_running_loop().time() - began
        statuses = [it for it in home_api.writes() if it.path.endswith(f"/{NAME}/status")]
        assert len(statuses) <= 2 + took / SPACING
        home_api.clear_log()
        offer.pod_changed(None, foreign("p1", "10m"))
        offer.pod_changed(None, foreign("one", "100m"))
        offer.pod_changed(foreign("one", "100m"), None)
        await asyncio.sleep(3 * SPACING)
        assert node_writes(home_api) == [], "nothing is different"


async def test_largest_pod_is_written_at_creation_and_then_rarely(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    def largest_pod() -> str:
        found: str = home_api.get(NODES, NAME)["metadata"]["annotations"][
            node_object.ANNOTATION_LARGEST
        ]
        return found

    offer = CapacityAggregator(IDENTITY, NO_LIMITS)
    async with running(controller(home, nodes, offer=offer)):
        assert largest_pod() == "cpu=4,memory=8Gi"
        offer.pod_changed(None, foreign("a", "1"))
        await home_api.until(lambda: largest_pod() == "cpu=3,memory=8Gi")
        offer.pod_changed(None, foreign("b", "1"))
        await home_api.until(lambda: allocatable(home_api) == "2")
        assert largest_pod() == "cpu=3,memory=8Gi", "before the interval has passed"
        offer.pod_changed(None, foreign("c", "1"))
        await home_api.until(lambda: largest_pod() == "cpu=1,memory=8Gi")


async def test_overwritten_fixed_fields_are_restored(
    home_api: FakeApi, node: NodeController
) -> None:
    async with running(node):
        conditions = [
            {**item, "status": "Unknown", "reason": "NodeStatusUnknown"}
            for item in home_api.get(NODES, NAME)["status"]["conditions"]
        ]
        home_api.update(NODES, NAME, {"status": {"conditions": conditions}})
        await home_api.until(lambda: condition(home_api)["status"] == "True")
        assert condition(home_api, "DiskPressure")["status"] == "False"


async def test_remote_without_usable_nodes_makes_node_not_ready(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController
) -> None:
    async with running(node):
        joined(remote_api, worker("w1", ready=False))
        await home_api.until(lambda: condition(home_api)["status"] == "False")
        assert condition(home_api)["reason"] == "NoUsableNodes"
        joined(remote_api, worker("w1"))
        await home_api.until(lambda: condition(home_api)["status"] == "True")


async def test_long_outage_makes_node_not_ready_until_it_ends(
    home_api: FakeApi, remote_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    loop = asyncio.get_running_loop()
    events = RecordedEvents(home)
    node = controller(home, nodes, events=events)
    async with running(node):
        before = home_api.get(NODES, NAME)["status"]["capacity"]
        began = loop.time()
        await remote_api.stop()
        await home_api.until(lambda: condition(home_api)["status"] == "False")
        assert loop.time() - began >= OUTAGE_SECONDS - SETTLE
        assert condition(home_api)["reason"] == "RemoteUnreachable"
        assert home_api.get(NODES, NAME)["status"]["capacity"] == before
        assert lease(home_api)["spec"]["holderIdentity"] == NAME
        await remote_api.start()
        await home_api.until(lambda: condition(home_api)["status"] == "True")
        await asyncio.sleep(SETTLE)
        reports = events.recorded
        assert [reason for reason, _ in reports] == ["NodeNotReady", "NodeReady"]
        assert reports[0][1].startswith("Node virtual is NotReady (the remote cluster cannot be")
        assert reports[1][1].startswith("Node virtual is Ready (usable nodes")


async def test_short_outage_leaves_node_ready(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController
) -> None:
    async with running(node):
        home_api.clear_log()
        await remote_api.stop()
        await asyncio.sleep(OUTAGE_SECONDS / 3)
        await remote_api.start()
        await asyncio.sleep(OUTAGE_SECONDS)
        assert node_writes(home_api) == []


@pytest.mark.parametrize(
    ("code", "reason"), [(401, "RemoteCredentialRefused"), (403, "RemoteForbidden")]
)
async def test_rejected_credential_is_the_reason_of_not_ready(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController, code: int, reason: str
) -> None:
    async with running(node):
        remote_api.fail(Fault("GET", "/api/v1/nodes", code=code, message="no", times=None))
        remote_api.break_watches()
        await home_api.until(lambda: condition(home_api)["status"] == "False")
        # The broken connection comes first; the rejection replaces its reason.
        assert condition(home_api)["reason"] in (reason, "RemoteUnreachable")


@asynccontextmanager
async def renewing_claim(remote: KubeClient) -> AsyncIterator[None]:
    """Renews a claim in the remote all the time, as `bridge.remote_claim` does; each renewal has
    `CLAIM` seconds."""

    async def renew() -> None:
        while True:
            with contextlib.suppress(KubeError):
                await request_lease(remote, "GET", "claim", namespace="a", seconds=CLAIM)
            await asyncio.sleep(CLAIM / 10)

    async with background_task(renew(), name="claim"):
        yield


async def test_remote_that_hangs_is_not_ready(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController, nodes: Informer
) -> None:
    """It accepts connections and responds to nothing. No watch has had a bookmark yet, and the only
    requests are those that renew the claim."""
    async with running(node), renewing_claim(nodes.client):
        await home_api.until(lambda: condition(home_api)["status"] == "True")
        remote_api.fail(Fault(delay=60, times=None))
        await home_api.until(lambda: condition(home_api)["status"] == "False")
        assert condition(home_api)["reason"] == "RemoteUnreachable"
        remote_api.heal()
        await home_api.until(lambda: condition(home_api)["status"] == "True")


async def test_remote_that_responds_late_stays_ready(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController, nodes: Informer
) -> None:
    """Each response takes several times as long as a renewal of the claim may: the watch is
    requested again, the server responds, and changes of its nodes still arrive."""
    async with running(node), renewing_claim(nodes.client):
        await home_api.until(lambda: condition(home_api)["status"] == "True")
        remote_api.clear_log()
        remote_api.fail(Fault(delay=4 * CLAIM, times=None))
        await remote_api.until(lambda: watches(remote_api) >= 2, timeout=60)
        assert condition(home_api)["status"] == "True"
        joined(remote_api, worker("w2"))
        await home_api.until(lambda: home_api.get(NODES, NAME)["status"]["capacity"]["cpu"] == "6")
        assert condition(home_api)["status"] == "True"
        assert nodes.error is None


async def test_throttled_renewal_does_not_count_as_hanging(
    remote_api: FakeApi, nodes: Informer
) -> None:
    """A 429 is a response: a watch that is opened again would only be rejected too."""
    reports: list[str] = []
    nodes.client.on_unanswered(lambda: reports.append("no response"))
    throttled = remote_api.fail(Fault("GET", "*/leases/*", code=429, retry_after=30, times=None))
    with pytest.raises(KubeError):
        await request_lease(nodes.client, "GET", "claim", namespace="a", seconds=2.0)
    assert throttled.hits == 1
    assert reports == []


@pytest.mark.parametrize(
    ("info", "cpu"),
    [
        ("x", "6"),
        ({"kernelVersion": ["a"]}, "6"),
        ({"kubeletVersion": {"a": 1}}, "6"),
        ({"kubeletVersion": "v1." + "9" * 5000}, "8"),
        ({"kubeletVersion": "v1.36.0", "swap": {"capacity": 8589934592}}, "8"),
    ],
    ids=["text", "list", "map", "digits", "swap"],
)
async def test_node_info_of_one_remote_node_does_not_stop_updates(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController, info: object, cpu: str
) -> None:
    """A remote node with a malformed one is not used; its capacity does not count."""
    async with running(node):
        await home_api.until(lambda: condition(home_api)["status"] == "True")
        second = worker("w2")
        second["status"]["nodeInfo"] = info
        joined(remote_api, second)
        joined(remote_api, worker("w3"))
        await home_api.until(lambda: home_api.get(NODES, NAME)["status"]["capacity"]["cpu"] == cpu)


def watches(api: FakeApi) -> int:
    """The watches that were requested since the log was cleared."""
    return sum(entry.watch for entry in api.log)


def spec_taints(api: FakeApi) -> list[Object]:
    """The taints that the API server's admission did not add."""
    found = api.get(NODES, NAME)["spec"].get("taints") or []
    return [taint for taint in found if not taint["key"].startswith("node.kubernetes.io/")]


async def test_options_of_next_join_apply_and_edits_of_users_stay(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    other = {"key": "other", "effect": "NoExecute"}
    theirs = {"key": "theirs", "effect": "NoSchedule"}
    first = NodeMetadata({"team": "a", "tier": "1"}, {"note": "x"}, (TAINT, other))
    await controller(home, nodes, first).register()
    assert spec_taints(home_api) == [TAINT, other]
    people: Object = {
        "metadata": {"labels": {"tier": "by-hand"}},
        "spec": {"taints": [other, theirs]},
    }
    home_api.update(NODES, NAME, people)
    home_api.clear_log()
    await controller(home, nodes, first).register()
    assert node_writes(home_api) == [], "unchanged options keep the users' edits"

    await controller(home, nodes, NodeMetadata({"tier": "2"}, {}, (TAINT,))).register()
    made = home_api.get(NODES, NAME)["metadata"]
    assert "team" not in made["labels"]
    assert made["labels"]["tier"] == "by-hand"
    assert "note" not in made["annotations"]
    assert spec_taints(home_api) == [theirs]
    again = {**TAINT, "value": "again"}
    await controller(home, nodes, NodeMetadata(taints=(again,))).register()
    assert spec_taints(home_api) == [theirs, again]


async def test_concurrent_taint_changes_are_not_lost(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    """The Node changes between the read and the patch."""
    unplaced = Mock(UnschedulablePods, waiting=Mock(return_value=(False, None)))
    node = controller(home, nodes, unplaced=unplaced)
    theirs = {"key": "theirs", "effect": "NoSchedule"}
    async with running(node):
        known = home_api.get(NODES, NAME)
        home_api.mute_watches()
        home_api.update(NODES, NAME, {"spec": {"taints": [*known["spec"]["taints"], theirs]}})
        unplaced.waiting.return_value = (True, None)
        unplaced.on_change.call_args.args[0]()
        await home_api.until(lambda: len(spec_taints(home_api)) == 3)
        assert theirs in spec_taints(home_api)
        home_api.unmute_watches()


async def test_unschedulable_remote_pods_set_soft_taint(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    unplaced = Mock(UnschedulablePods, waiting=Mock(return_value=(False, None)))
    async with running(controller(home, nodes, unplaced=unplaced)):
        tell = unplaced.on_change.call_args.args[0]
        unplaced.waiting.return_value = (True, 3 * SETTLE)
        tell()
        soft = {"key": "cluster-bridge.io/unschedulable", "effect": "PreferNoSchedule"}
        await home_api.until(lambda: soft in spec_taints(home_api))
        unplaced.waiting.return_value = (False, None)
        await home_api.until(lambda: spec_taints(home_api) == [TAINT])


async def test_shared_labels_follow_remote_nodes(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController
) -> None:
    zone = "topology.kubernetes.io/zone"

    def label() -> str | None:
        found: str | None = home_api.get(NODES, NAME)["metadata"]["labels"].get(zone)
        return found

    async with running(node):
        assert label() is None
        remote_api.update(NODES, "w1", {"metadata": {"labels": {zone: "a"}}})
        await home_api.until(lambda: label() == "a")
        joined(remote_api, worker("w2"))
        await home_api.until(lambda: label() is None)


async def test_work_of_a_write_does_not_grow_with_the_nodes(
    home_api: FakeApi,
    remote_api: FakeApi,
    home: KubeClient,
    nodes: Informer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5,000 nodes once took 107 ms of the event loop for each write of the free capacity."""
    looked = [0]
    is_counted = node_capacity.is_counted

    def counted(node: Object) -> bool:
        looked[0] += 1
        return is_counted(node)

    monkeypatch.setattr(conditions, "is_counted", counted)
    monkeypatch.setattr(node_capacity, "is_counted", counted)
    for number in range(200):
        joined(remote_api, worker(f"x{number}"))
    await caught_up(remote_api, nodes)
    node = controller(home, nodes)
    async with running(node):
        await node.register()
        looked[0] = 0
        home_api.update(NODES, NAME, {"metadata": {"labels": {"type": "other"}}})
        await home_api.until(
            lambda: home_api.get(NODES, NAME)["metadata"]["labels"]["type"] != "other"
        )
        assert looked[0] < 20
        ready = home_api.get(NODES, NAME)["status"]["conditions"][0]
        assert "201 of 201" in ready["message"]


async def test_idle_controller_writes_only_lease_renewals(
    home_api: FakeApi, node: NodeController
) -> None:
    async with running(node):
        home_api.clear_log()
        times: set[str] = set()

        def renewed() -> bool:
            times.add(lease(home_api)["spec"]["renewTime"])
            return len(times) >= 3

        await home_api.until(renewed)
        paths = {entry.path for entry in home_api.writes()}
        assert paths == {f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{NAME}"}


async def test_lease_renewal_is_not_delayed_by_queued_pod_requests(
    home_api: FakeApi, home: KubeClient, node: NodeController
) -> None:
    home_api.fail(Fault("PATCH", "*/pods/*", delay=5, times=None))

    async def write(number: int) -> None:
        FLOW.set(f"ns-{number % 100}")
        await home.patch(PODS, f"p{number}", {"status": {}}, namespace="default")

    async with running(node):
        writes = [asyncio.create_task(write(number)) for number in range(5000)]
        await home_api.until(lambda: any(entry.method == "PATCH" for entry in home_api.log))
        times: set[str] = set()

        def renewed() -> bool:
            times.add(lease(home_api)["spec"]["renewTime"])
            return len(times) >= 4

        async with asyncio.timeout(5 * RENEW_SECONDS):
            await home_api.until(renewed)
        assert home.limiter.waiting > 4000
        for task in writes:
            task.cancel()
        await asyncio.gather(*writes, return_exceptions=True)


async def test_changed_lease_annotation_is_written_with_renewal(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    reports: list[str] = []
    line = "1"
    node = controller(
        home, nodes, note=LeaseAnnotation("example.com/note", lambda: line, reports.append)
    )
    async with running(node):
        await home_api.until(lambda: noted(home_api) == "1")
        home_api.clear_log()
        await asyncio.sleep(3 * RENEW_SECONDS)
        assert not any("annotations" in it.body["metadata"] for it in home_api.requests("PATCH"))
        line = "2"
        await home_api.until(lambda: noted(home_api) == "2")
        line = "3"
    await node.release()
    assert noted(home_api) == "3"

    line = ""
    async with running(
        controller(
            home, nodes, note=LeaseAnnotation("example.com/note", lambda: line, reports.append)
        )
    ):
        assert reports == ["", "3"]
        home_api.remove(LEASES, NAME, LEASE_NAMESPACE)
        await home_api.until(lambda: home_api.find(LEASES, NAME, LEASE_NAMESPACE))
        line = "4"
        await home_api.until(lambda: noted(home_api) == "4")
    assert reports == ["", "3"], "read once"


def noted(api: FakeApi) -> str | None:
    """The value of the Lease's annotation."""
    annotations: dict[str, str] = lease(api)["metadata"].get("annotations") or {}
    return annotations.get("example.com/note")


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
async def test_lost_lease_is_recreated_or_taken_over(
    home_api: FakeApi, node: NodeController, replaced: bool
) -> None:
    async with running(node):
        uid = lease(home_api)["metadata"]["uid"]
        home_api.remove(LEASES, NAME, LEASE_NAMESPACE)
        if replaced:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}
            home_api.put({**kind, "metadata": {"name": NAME, "namespace": LEASE_NAMESPACE}})
        await home_api.until(
            lambda: (home_api.find(LEASES, NAME, LEASE_NAMESPACE) or {"spec": {}})["spec"].get(
                "holderIdentity"
            )
        )
        again = lease(home_api)["metadata"]
        assert again["uid"] != uid
        assert again["ownerReferences"][0]["uid"] == home_api.get(NODES, NAME)["metadata"]["uid"]


async def test_deleted_node_is_recreated_and_owns_lease(
    home_api: FakeApi, node: NodeController
) -> None:
    async with running(node):
        old = home_api.remove(NODES, NAME)["metadata"]["uid"]
        await home_api.until(lambda: condition(home_api).get("status") == "True")
        new = home_api.get(NODES, NAME)["metadata"]["uid"]
        assert new != old
        await home_api.until(
            lambda: lease(home_api)["metadata"]["ownerReferences"][0]["uid"] == new
        )


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen yet"])
async def test_node_replaced_by_another_owner_ends_join(
    home_api: FakeApi, node: NodeController, seen: bool
) -> None:
    async with running(node) as task:
        if not seen:
            home_api.fail(Fault("POST", "/api/v1/nodes", code=409, reason="AlreadyExists"))
        home_api.remove(NODES, NAME)
        if seen:
            theirs = home_api.put(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME, "labels": {}}}
            )
        else:
            taken = home_api.fail(Fault("GET", f"/api/v1/nodes/{NAME}", watch=False))
            taken.raw = b'{"kind":"Node","metadata":{"name":"virtual","uid":"9"}}'
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(30):
                await task
        assert caught.group_contains(NodeTaken)
        if seen:
            assert home_api.get(NODES, NAME) == theirs


async def test_pending_status_is_written_when_home_is_back(
    home_api: FakeApi, remote_api: FakeApi, node: NodeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(node):
        monkeypatch.setattr(workqueue, "RETRY_FIRST", 600.0)
        await home_api.stop()
        joined(remote_api, worker("w2"))
        await asyncio.sleep(5 * SETTLE)
        await home_api.start()
        await home_api.until(lambda: home_api.get(NODES, NAME)["status"]["capacity"]["cpu"] == "6")


async def test_lease_is_released_at_the_end(home_api: FakeApi, node: NodeController) -> None:
    async with running(node):
        pass
    await node.release()
    assert lease(home_api)["spec"].get("holderIdentity") is None
    assert condition(home_api)["status"] == "True"


async def test_lease_that_was_never_held_is_not_released(
    home_api: FakeApi, home: KubeClient, nodes: Informer
) -> None:
    """The controller stops before it registers, while another process serves the node."""
    await controller(home, nodes).register()
    await controller(home, nodes).release()
    assert lease(home_api)["spec"]["holderIdentity"] == NAME


async def test_failed_release_is_ignored(home_api: FakeApi, node: NodeController) -> None:
    await node.register()
    await home_api.stop()
    await node.release()


async def test_cancellation_leaves_no_task(home_api: FakeApi, node: NodeController) -> None:
    async with running(node):
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert {"watch-home-node", "node-lease", "node-status"} <= names
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not {"watch-home-node", "node-lease", "node-status"} & names


async def test_ended_controller_rewatches_nothing(
    remote_api: FakeApi, home: KubeClient, nodes: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client outlives the controller when another bridge takes over."""
    rewatches: list[Informer] = []
    monkeypatch.setattr(nodes, "rewatch", lambda: rewatches.append(nodes))
    node = controller(home, nodes)
    await node.register()
    remote_api.fail(Fault("GET", "/version", code=401, times=None))

    async def rejected() -> int:
        """The number of rewatches after a request with a rejected credential."""
        rewatches.clear()
        with pytest.raises(Unauthorized):
            await nodes.client.request("GET", "/version")
        return len(rewatches)

    running = asyncio.create_task(node.run())
    await asyncio.sleep(0)
    assert await rejected() == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await rejected() == 0


async def test_unexpected_exception_in_a_reconcile_is_logged_and_the_node_is_kept(
    home_api: FakeApi,
    remote_api: FakeApi,
    node: NodeController,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    status, stumbles = node_object.desired_status, [True]

    def broken(*args: Any, **options: Any) -> Object:
        if stumbles:
            stumbles.pop()
            raise ValueError("canary-4711")
        return status(*args, **options)

    async with running(node):
        monkeypatch.setattr(node_object, "desired_status", broken)
        joined(remote_api, worker("w2", cpu="8"))
        await home_api.until(lambda: not stumbles)
        await home_api.until(lambda: home_api.get(NODES, NAME)["status"]["capacity"]["cpu"] == "12")
    assert "please report it" in caplog.text
    assert "canary-4711" not in caplog.text
