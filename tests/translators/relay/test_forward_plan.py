"""Plans and EndpointSlices of forwarding from home."""

from __future__ import annotations

import time
from typing import Any

import pytest

from translators.object_accessors import Object, RemoteUid
from translators.relay import forward_plan
from translators.relay.forward_plan import Backend, EndpointPort
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="home", home_name="h", node="virtual")
HERE = "192.0.2.7"


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "shop", "uid": "service-uid"}
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return {"metadata": meta, "spec": {"selector": {"app": "web"}, "ports": ports, **spec}}


def pod(name: str = "a", *, ready: bool = True, uid: str = "", **fields: Any) -> Object:
    meta: Object = {"name": name, "namespace": "shop-h", "uid": uid or f"uid-{name}"}
    meta["labels"] = {"app": "web"}
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {"phase": "Running", "conditions": [condition]}
    return {"metadata": meta, "spec": {"containers": []}, "status": status, **fields}


def deleting(known: Object) -> Object:
    meta = {**known["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}
    return {**known, "metadata": meta}


def backend(name: str = "a", port: int = 8080) -> Backend:
    return Backend("shop-h", name, RemoteUid(f"uid-{name}"), port)


def planned(
    of: Object, *pods: tuple[Object, Object | None], address: str = HERE
) -> forward_plan.ForwardPlan:
    return forward_plan.plan_forwarding(of, pods, address=address)


def pair(name: str = "a", **fields: Any) -> tuple[Object, Object]:
    return pod(name, **fields), pod(name, **fields)


def test_backends_are_ready_in_both_clusters() -> None:
    found = planned(
        service(),
        pair("a"),
        pair("b", ready=False),
        (pod("gate", ready=False), pod("gate")),
        (pod("going"), deleting(pod("going"))),
        (deleting(pod("gone")), pod("gone")),
        (pod("waits"), None),
    )
    assert found.backends == {"http": (backend("a"),)}
    assert found.unsupported == ()


def test_publish_not_ready_addresses_uses_running_pods() -> None:
    pending = pod("b", ready=False, status={"phase": "Pending"})
    found = planned(
        service(publishNotReadyAddresses=True), pair("a", ready=False), (pending, pending)
    )
    assert found.backends == {"http": (backend("a"),)}


@pytest.mark.parametrize(
    "spec", [{"selector": None}, {"type": "ExternalName", "externalName": "example.org"}]
)
def test_service_without_pods_is_not_forwarded(spec: Object) -> None:
    assert planned(service(**spec), pair()) == forward_plan.NO_FORWARDING


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"clusterIP": "None"}, "headless"),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, "port 53 is UDP"),
        ({"ports": [{"port": 9, "protocol": "SCTP"}]}, "port 9 is SCTP"),
        ({"ipFamilies": ["IPv6"]}, "no IPv4 address"),
    ],
)
def test_unsupported_service_is_reported(spec: Object, reason: str) -> None:
    found = planned(service(**spec), pair())
    assert found.endpoint_ports == []
    assert reason in found.unsupported[0]
    assert planned(service(**spec)).unsupported == (), "no pod is on the node"


def test_udp_port_does_not_affect_tcp_ports() -> None:
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53}]
    found = planned(service(ports=ports), pair())
    assert found.backends == {"tcp": (backend(port=53),)}
    assert len(found.unsupported) == 1


def test_named_target_port_is_resolved_per_pod() -> None:
    def serving(name: str, number: int, **more: Any) -> tuple[Object, Object]:
        ports = [{"name": "web", "containerPort": number, "protocol": "TCP", **more}]
        home = pod(name, spec={"containers": [{"ports": ports}]})
        return home, pod(name)

    proxy = {"name": "web", "containerPort": 15001}
    stays, ends = {"restartPolicy": "Always", "ports": [proxy]}, {"ports": [proxy]}
    sidecar = pod("c", spec={"containers": [], "initContainers": [stays]})
    done = pod("d", spec={"containers": [], "initContainers": [ends]})
    found = planned(
        service(ports=[{"port": 80, "targetPort": "web"}]),
        serving("a", 8080),
        serving("b", 9090),
        serving("udp", 1, protocol="UDP"),
        (sidecar, pod("c")),
        (done, pod("d")),
    )
    assert found.backends == {"": (backend("a", 8080), backend("b", 9090), backend("c", 15001))}


@pytest.mark.real_time  # measures CPU time
def test_time_does_not_grow_with_service_ports_times_container_ports() -> None:
    names = [f"p{number}" for number in range(1000)]
    ports = [{"name": name, "containerPort": 1 + n} for n, name in enumerate(names)]
    spec = {"containers": [{"ports": ports}]}
    pods = [(pod(f"{number}", spec=spec), pod(f"{number}")) for number in range(100)]
    of = service(ports=[{"name": name, "port": 80, "targetPort": name} for name in names])
    began = time.thread_time()
    found = planned(of, *pods)
    assert time.thread_time() - began < 1
    assert list(found.backends) == names
    assert [target.port for target in found.backends["p999"]] == [1000] * 100


def test_session_affinity_of_the_service() -> None:
    assert planned(service(), pair()).affinity_seconds is None
    assert planned(service(sessionAffinity="ClientIP"), pair()).affinity_seconds == 10800
    config = {"clientIP": {"timeoutSeconds": 60}}
    wanted = service(sessionAffinity="ClientIP", sessionAffinityConfig=config)
    assert planned(wanted, pair()).affinity_seconds == 60


def test_endpoints_match_ready_pods_up_to_the_maximum() -> None:
    three = planned(service(), *(pair(str(n)) for n in range(3)))
    assert three.endpoint_ports == [
        EndpointPort("http", 0),
        EndpointPort("http", 1),
        EndpointPort("http", 2),
    ]
    many = planned(service(), *(pair(str(n)) for n in range(100)))
    assert len(many.endpoint_ports) == forward_plan.MAX_ENDPOINTS
    assert len(many.backends["http"]) == 100


def test_irrelevant_changes_keep_plan_inputs_equal() -> None:
    known = pod()
    louder = {**known, "status": {**known["status"], "podIP": "10.0.0.1"}}
    assert forward_plan.plan_inputs(known) == forward_plan.plan_inputs(louder)
    assert forward_plan.plan_inputs(known) != forward_plan.plan_inputs(pod(ready=False))
    assert forward_plan.plan_inputs(known) != forward_plan.plan_inputs(deleting(known))
    assert forward_plan.plan_inputs(known) != forward_plan.plan_inputs(None)


def test_each_endpoint_has_its_own_port() -> None:
    ports = [{"name": "http", "port": 80, "appProtocol": "http"}, {"name": "admin", "port": 90}]
    listening = {
        EndpointPort("http", 0): 4000,
        EndpointPort("http", 1): 4001,
        EndpointPort("admin", 0): 4002,
    }
    first, second = forward_plan.forward_slices(
        service(ports=ports), listening, IDENTITY, address=HERE
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["metadata"]["labels"] == {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "cluster-bridge-relay",
        "cluster-bridge.io/node": "virtual",
    }
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Service", "service-uid")
    assert first["addressType"] == "IPv4"
    assert [it["addresses"] for it in first["endpoints"]] == [[HERE]]
    assert first["ports"] == [
        {"name": "admin", "port": 4002, "protocol": "TCP"},
        {"name": "http", "port": 4000, "protocol": "TCP", "appProtocol": "http"},
    ]
    assert [it["port"] for it in second["ports"]] == [4001]


def test_remote_is_another_zone_for_clients_at_home() -> None:
    listening = {EndpointPort("http", 0): 4000}
    near: Object = service()
    near["spec"]["trafficDistribution"] = "PreferSameNode"
    hints = [
        slice_["endpoints"][0]["hints"]
        for it in (service(), near)
        for slice_ in forward_plan.forward_slices(it, listening, IDENTITY, address=HERE)
    ]
    other = [{"name": "other-cluster.cluster-bridge.io"}]
    assert hints == [{"forZones": other}, {"forZones": other, "forNodes": other}]


def test_slices_record_ports() -> None:
    listening = {EndpointPort("http", 0): 4000, EndpointPort("http", 1): 4001}
    made = forward_plan.forward_slices(service(), listening, IDENTITY, address=HERE)
    assert forward_plan.recorded_forward_ports(made, "web", IDENTITY) == listening
    assert forward_plan.recorded_forward_ports(made, "other", IDENTITY) == {}


def test_slice_names_differ_by_node() -> None:
    other = Identity(home_id="home", home_name="h", node="other")
    assert forward_plan.forward_slice_name("web", 0, IDENTITY) != forward_plan.forward_slice_name(
        "web", 0, other
    )
    assert forward_plan.slice_selector(IDENTITY) != forward_plan.slice_selector(other)
    long = forward_plan.forward_slice_name("w" * 253, 0, IDENTITY)
    assert len(long) == 253


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "224.0.0.1"])
def test_invalid_endpoint_addresses_are_detected(address: str) -> None:
    assert forward_plan.invalid_endpoint_address(address)


@pytest.mark.parametrize("address", ["192.0.2.1", "10.0.0.1", "2001:db8::1"])
def test_valid_endpoint_addresses_are_accepted(address: str) -> None:
    assert not forward_plan.invalid_endpoint_address(address)
