"""Plans, ports and EndpointSlices of reverse forwarding, and the plan of relay agents."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.object_accessors import HomeNamespace, Object
from translators.relay import agent_pod, reverse_plan
from translators.relay.reverse_plan import FIRST_PORT, LAST_PORT, AgentPort, HomeTarget, ReversePlan
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="h", node="virtual")
SHOP = HomeNamespace("shop")
CONTROLLER = "endpointslice-controller.k8s.io"


def service(**spec: Any) -> Object:
    wanted = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}], **spec}
    meta = {"name": "web", "namespace": "shop", "uid": "uid-web"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


def endpoint(address: str, node: str = "worker", **fields: Any) -> Object:
    ref = {"kind": "Pod", "name": address}
    return {"addresses": [address], "nodeName": node, "targetRef": ref, **fields}


def home_slice(*endpoints: Object, by: str = CONTROLLER, kind: str = "IPv4") -> Object:
    labels = {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": by}
    return {
        "metadata": {"name": "web-abc", "namespace": "shop", "labels": labels},
        "addressType": kind,
        "endpoints": [*endpoints],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def plan(found: Object, *slices: Object) -> ReversePlan:
    return reverse_plan.plan_reverse_forwarding(
        found, slices, IDENTITY, verified=reverse_plan.pod_addresses(slices, IDENTITY)
    )


def test_targets_are_ready_pods_at_the_ports_of_the_slice() -> None:
    made = plan(
        service(),
        home_slice(endpoint("10.1.0.2"), endpoint("10.1.0.1", conditions={"ready": True})),
    )
    assert made.targets == {"http": (HomeTarget("10.1.0.1", 8080), HomeTarget("10.1.0.2", 8080))}
    assert not made.unsupported
    assert made.agent_ports("web") == [AgentPort("web", "http", 0), AgentPort("web", "http", 1)]


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(endpoint("10.1.0.1", conditions={"ready": False}), id="not ready"),
        pytest.param(endpoint("10.1.0.1", node="virtual"), id="of the virtual node"),
        pytest.param({"addresses": ["10.1.0.1"], "nodeName": "worker"}, id="no pod"),
    ],
)
def test_other_endpoints_are_not_targets(one: Object) -> None:
    assert plan(service(), home_slice(one)) == reverse_plan.NO_FORWARDING


def test_slices_of_users_are_ignored() -> None:
    """They could name any address that the bridge can reach."""
    for by in ("unmanaged", "cluster-bridge-relay", "endpointslicemirroring-controller.k8s.io"):
        theirs = home_slice(endpoint("192.0.2.1"), by=by)
        assert plan(service(), theirs) == reverse_plan.NO_FORWARDING
    assert (
        plan(service(selector=None), home_slice(endpoint("10.1.0.1"))) == reverse_plan.NO_FORWARDING
    )


def test_endpoint_needs_a_verified_pod_address() -> None:
    """Users can copy the label of home's controller to their EndpointSlices."""
    true, forged = endpoint("10.1.0.1"), endpoint("192.0.2.1")
    there = home_slice(true, forged)
    confirmed = reverse_plan.pod_addresses([home_slice(true)], IDENTITY)
    made = reverse_plan.plan_reverse_forwarding(service(), [there], IDENTITY, verified=confirmed)
    assert made.targets == {"http": (HomeTarget("10.1.0.1", 8080),)}
    assert (
        reverse_plan.plan_reverse_forwarding(service(), [there], IDENTITY, verified=())
        == reverse_plan.NO_FORWARDING
    )


def test_unsupported_service_is_reported() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "sig", "port": 7, "protocol": "SCTP"}]
    there = home_slice(endpoint("10.1.0.1"))
    mixed = plan(service(ports=ports), there)
    assert set(mixed.targets) == {"http"}
    assert mixed.unsupported == ("port 7 is SCTP, but only TCP and UDP are forwarded",)
    headless = plan(service(clusterIP="None"), there)
    assert not headless.targets
    assert "headless" in headless.unsupported[0]
    assert plan(service(clusterIP="None")) == reverse_plan.NO_FORWARDING, "no pod is reachable"
    assert plan(service(type="ExternalName"), there) == reverse_plan.NO_FORWARDING


def dns_slice(*endpoints: Object) -> Object:
    """The slice of a Service with two protocols at one port."""
    ports = [("dns", 5353, "UDP"), ("dns-tcp", 5353, "TCP"), ("http", 8080, "UDP")]
    entries = [{"name": it, "port": port, "protocol": kind} for it, port, kind in ports]
    return {**home_slice(*endpoints), "ports": entries}


def test_udp_ports_have_targets_and_agent_ports_of_their_own() -> None:
    spec = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]
    made = plan(service(ports=spec), dns_slice(endpoint("10.1.0.1")))
    target = (HomeTarget("10.1.0.1", 5353),)
    assert made.targets == {"dns": target, "dns-tcp": target}
    assert made.udp_ports == {"dns"}
    assert not made.unsupported
    ports = made.agent_ports("web")
    assert ports == [
        AgentPort("web", "dns", 0, is_udp=True),
        AgentPort("web", "dns-tcp", 0, is_udp=False),
    ]
    numbers = reverse_plan.allocate_ports(ports, {})
    assert len(set(numbers.values())) == 2
    copy = {**service(ports=spec), "metadata": {"name": "web", "namespace": "r", "uid": "uid"}}
    agent = {"metadata": {"name": "a", "namespace": "r"}, "status": {"podIP": "10.9.0.5"}}
    slices = reverse_plan.reverse_slices(copy, numbers, agent, SHOP, IDENTITY)
    (entries,) = [it["ports"] for it in slices]
    assert {it["name"]: it["protocol"] for it in entries} == {"dns": "UDP", "dns-tcp": "TCP"}
    assert reverse_plan.recorded_agent_ports(slices) == numbers


def test_port_of_another_protocol_has_no_target() -> None:
    """The EndpointSlice is older than the Service."""
    made = plan(service(), dns_slice(endpoint("10.1.0.1")))
    assert not made.targets


def test_dual_stack_pod_is_one_target() -> None:
    both = [home_slice(endpoint("10.1.0.1")), home_slice(endpoint("fd00::1"), kind="IPv6")]
    assert plan(service(), *both).targets == {"http": (HomeTarget("10.1.0.1", 8080),)}
    first = service(ipFamilies=["IPv6", "IPv4"])
    assert plan(first, *both).targets == {"http": (HomeTarget("fd00::1", 8080),)}


def test_session_affinity_is_kept() -> None:
    there = home_slice(endpoint("10.1.0.1"))
    assert plan(service(sessionAffinity="ClientIP"), there).sticky
    assert not plan(service(), there).sticky


def test_number_of_endpoints_is_limited() -> None:
    many = home_slice(*(endpoint(f"10.1.0.{number}") for number in range(100)))
    made = plan(service(), many)
    assert len(made.targets["http"]) == 100
    assert len(made.agent_ports("web")) == reverse_plan.MAX_ENDPOINTS


@pytest.mark.real_time  # measures CPU time
def test_time_of_a_plan_does_not_grow_with_the_square_of_the_ports() -> None:
    numbered = [{"name": f"p{number}", "port": 1 + number} for number in range(6000)]
    many = {**home_slice(endpoint("10.1.0.1")), "ports": numbered}
    began = time.thread_time()
    made = plan(service(ports=numbered), many)
    assert time.thread_time() - began < 0.5
    assert made.targets["p5999"] == (HomeTarget("10.1.0.1", 6000),)


SLOTS = st.lists(
    st.builds(
        AgentPort,
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["", "http"]),
        st.integers(0, 15),
    ),
    unique=True,
)


@given(
    wanted=SLOTS,
    known=st.dictionaries(
        SLOTS.map(lambda it: it[0] if it else AgentPort("z", "", 0)),
        st.integers(FIRST_PORT, FIRST_PORT + 20),
    ),
)
def test_agent_ports_are_unique_and_stable(
    wanted: list[AgentPort], known: dict[AgentPort, int]
) -> None:
    known = {slot: port for port, slot in {port: slot for slot, port in known.items()}.items()}
    given_ports = reverse_plan.allocate_ports(wanted, known)
    assert given_ports.keys() == set(wanted)
    both = {**known, **given_ports}
    assert len(set(both.values())) == len(both)
    assert all(given_ports[slot] == known[slot] for slot in wanted if slot in known)
    assert all(FIRST_PORT <= port < LAST_PORT for port in given_ports.values())


def relay(name: str = "one", **status: Any) -> Object:
    made = agent_pod.agent_pod(name, SHOP, IDENTITY, image="bridge:1", node_selector={})
    made["metadata"]["uid"] = f"uid-{name}"
    made["metadata"]["creationTimestamp"] = "2030-01-01T00:00:00Z"
    made["spec"]["nodeName"] = "there"
    ready = [{"type": "Ready", "status": "True"}]
    made["status"] = {"phase": "Running", "podIP": "10.9.0.5", "conditions": ready, **status}
    return made


def test_slices_point_to_the_agent_and_record_its_ports() -> None:
    copy = service()
    copy["metadata"] |= {"namespace": "shop-h", "uid": "uid-copy"}
    ports = {AgentPort("web", "http", 0): 20000, AgentPort("web", "http", 1): 20001}
    slices = reverse_plan.reverse_slices(copy, ports, relay(), SHOP, IDENTITY)
    assert [it["ports"][0]["port"] for it in slices] == [20000, 20001]
    for slice_ in slices:
        assert slice_["endpoints"][0]["addresses"] == ["10.9.0.5"]
        assert slice_["endpoints"][0]["hints"]["forZones"], "it is in another zone"
        assert "nodeName" not in slice_["endpoints"][0], "it is on no node of the remote"
        assert slice_["metadata"]["ownerReferences"][0]["uid"] == "uid-copy"
        assert reverse_plan.is_own_relay_object(slice_, IDENTITY)
    assert len({it["metadata"]["name"] for it in slices}) == 2
    assert reverse_plan.recorded_agent_ports(slices) == ports
    for slice_, malformed in zip(slices, ("none", 5000 * "1"), strict=True):
        slice_["metadata"]["labels"]["cluster-bridge.io/relay"] = malformed
    assert reverse_plan.recorded_agent_ports(slices) == {}


@pytest.mark.real_time  # measures CPU time
def test_time_to_read_recorded_ports_does_not_grow_with_their_square() -> None:
    copy = service(ports=[{"name": f"p{number}", "port": 1 + number} for number in range(12000)])
    copy["metadata"] |= {"namespace": "shop-h", "uid": "uid-copy"}
    ports = {AgentPort("web", f"p{number}", 0): FIRST_PORT + number for number in range(12000)}
    slices = reverse_plan.reverse_slices(copy, ports, relay(), SHOP, IDENTITY)
    began = time.thread_time()
    recorded = reverse_plan.recorded_agent_ports(5 * slices)
    assert time.thread_time() - began < 0.5
    assert recorded == ports


def test_dual_stack_agent_has_endpoints_of_both_families() -> None:
    copy = service()
    both = relay(podIPs=[{"ip": "10.9.0.5"}, {"ip": "fd00::5"}])
    slices = reverse_plan.reverse_slices(
        copy, {AgentPort("web", "http", 0): 20000}, both, SHOP, IDENTITY
    )
    assert {it["addressType"] for it in slices} == {"IPv4", "IPv6"}
    assert len({it["metadata"]["name"] for it in slices}) == 2


def test_objects_outside_the_mapped_namespace_are_ignored() -> None:
    copied = relay()
    assert reverse_plan.is_own_relay_object(copied, IDENTITY)
    copied["metadata"]["namespace"] = "unmanaged"
    assert not reverse_plan.is_own_relay_object(copied, IDENTITY)


def test_agent_pod_conforms_to_restricted() -> None:
    """The requirements of Pod Security's `restricted` level
    (k8s.io/pod-security-admission/policy)."""
    made = agent_pod.agent_pod(
        "one", SHOP, IDENTITY, image="bridge:1", node_selector={"disk": "ssd"}
    )
    spec = made["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert not {"env", "envFrom", "volumeMounts"} & container.keys()
    assert not {"volumes", "hostNetwork", "serviceAccountName"} & spec.keys()
    assert made["metadata"]["namespace"] == "shop-h"


HASH = agent_pod.spec_hash("bridge:1", {})


def planned_agents(
    *pods: Object, wanted: str | None = HASH, talks: str = "", hangs: str = ""
) -> agent_pod.AgentPodPlan:
    """``talks``: the names of agents that listen on all required ports; ``hangs``: of unresponsive
    agents."""
    return agent_pod.plan_agent_pods(
        pods,
        desired_hash=wanted,
        listening=lambda pod: pod["metadata"]["name"] in talks.split(),
        unresponsive=lambda pod: pod["metadata"]["name"] in hangs.split(),
    )


def names(pods: tuple[Object, ...]) -> list[str]:
    return [it["metadata"]["name"] for it in pods]


def test_agent_is_created_and_deleted_as_needed() -> None:
    assert planned_agents().create
    assert not planned_agents(relay()).create
    assert not planned_agents(wanted=None).create
    unwanted = planned_agents(relay(), wanted=None)
    assert names(unwanted.delete) == ["one"]


def test_deleted_agent_serves_until_its_successor_does() -> None:
    going = relay()
    going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    alone = planned_agents(going, talks="one")
    assert alone.create
    assert names(alone.serving) == ["one"]
    both = planned_agents(going, relay("two"), talks="one two")
    assert not both.create
    assert not both.delete, "it is being deleted already"
    assert names(both.serving) == ["two", "one"]


def test_outdated_agent_is_deleted_when_its_successor_serves() -> None:
    old = relay("old")
    old["metadata"]["annotations"][agent_pod.ANNOTATION_SPEC_HASH] = "another"
    assert planned_agents(old, talks="old").create
    waiting = planned_agents(old, relay("new", phase="Pending", conditions=[]), talks="old")
    assert not waiting.delete
    assert names(waiting.serving) == ["old"]
    done = planned_agents(old, relay("new"), talks="old new")
    assert names(done.delete) == ["old"]
    assert names(done.serving) == ["new", "old"]


def test_ended_agent_is_replaced_as_failed() -> None:
    ended = planned_agents(relay(phase="Failed", conditions=[]))
    assert names(ended.delete) == ["one"]
    assert names(ended.failed) == ["one"]
    assert ended.create
    assert not planned_agents(relay()).failed


def test_unresponsive_agent_is_replaced_as_failed() -> None:
    hangs = planned_agents(relay(), hangs="one")
    assert names(hangs.delete) == names(hangs.failed) == ["one"]
    assert hangs.create
    assert names(hangs.serving) == ["one"], "it may recover"
    going = relay()
    going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    later = planned_agents(going, relay("two"), hangs="one", talks="two")
    assert not later.delete, "it is being deleted already"
    assert later.current == relay("two")


def test_serving_agent_is_kept_after_a_race() -> None:
    assert names(planned_agents(relay("one"), relay("two"), talks="two").delete) == ["one"]
