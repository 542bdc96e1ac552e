"""Plans and EndpointSlices of headless Services."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.translators.relay.test_forward_plan import (
    IDENTITY,
    backend,
    deleting,
    pair,
    pod,
    service,
)
from translators.object_accessors import Object
from translators.relay import forward_plan
from translators.relay import headless_forward_plan as relaynames
from translators.relay.forward_plan import EndpointPort
from translators.relay.headless_forward_plan import HeadlessPlan, ListenAddress
from translators.relay.ipam import PodName

ADDRESS = "10.77.0.5"


def headless(**spec: Any) -> Object:
    return service(clusterIP="None", **spec)


def named(name: str, subdomain: str = "web", **fields: Any) -> Object:
    """A home pod as a StatefulSet creates it."""
    spec = {"containers": [], "hostname": name, "subdomain": subdomain}
    made = pod(name, spec=spec, **fields)
    made["metadata"]["namespace"] = "shop"
    return made


def planned(of: Object, *pods: tuple[Object, Object | None]) -> HeadlessPlan:
    return relaynames.plan_endpoints(of, pods, family="IPv4")


def entry(of: Object, home: Object, remote: Object) -> Object:
    """The endpoint at home for the pod."""
    (endpoint,) = planned(of, (home, remote)).endpoints
    (entries,) = relaynames.endpoint_slice(of, endpoint, ADDRESS, IDENTITY)["endpoints"]
    assert isinstance(entries, dict)
    return entries


def test_every_running_pod_is_an_endpoint() -> None:
    pending = pod("c", status={"phase": "Pending"})
    done = pod("d", status={"phase": "Succeeded"})
    found = planned(
        headless(),
        pair("a"),
        pair("b", ready=False),
        (pending, pending),
        (done, done),
        (pod("waits"), None),
    )
    assert [(it.pod.name, it.serving) for it in found.endpoints] == [("a", True), ("b", False)]
    assert found.endpoints[0].backends == {"http": backend("a")}
    assert relaynames.listeners_of(found.endpoints[0], ADDRESS) == {
        ListenAddress(ADDRESS, 8080): backend("a")
    }


def test_slice_equals_that_of_homes_controller() -> None:
    (endpoint,) = planned(headless(), (named("web-0"), pod("web-0"))).endpoints
    made = relaynames.endpoint_slice(headless(), endpoint, ADDRESS, IDENTITY)
    assert made["metadata"]["labels"] == {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "cluster-bridge-relay",
        "cluster-bridge.io/node": "virtual",
        "service.kubernetes.io/headless": "",
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == "service-uid"
    assert made["addressType"] == "IPv4"
    assert made["endpoints"] == [
        {
            "addresses": [ADDRESS],
            "hostname": "web-0",
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": "virtual",
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "uid-web-0"},
        }
    ]
    assert made["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    assert relaynames.recorded_address(made, IDENTITY) == (PodName("shop", "web-0"), ADDRESS)


def test_hostname_is_set_only_for_its_own_service() -> None:
    assert entry(headless(), named("web-0"), pod("web-0"))["hostname"] == "web-0"
    assert "hostname" not in entry(headless(), named("web-0", "other"), pod("web-0"))
    assert "hostname" not in entry(headless(), *pair("a"))


@pytest.mark.parametrize(
    ("home", "remote", "serving", "terminating"),
    [
        (pod(), pod(), True, False),
        (pod(ready=False), pod(), False, False),
        (pod(), pod(ready=False), False, False),
        (deleting(pod()), pod(), True, True),
        (pod(), deleting(pod()), True, True),
        (deleting(pod()), deleting(pod(ready=False)), False, True),
    ],
)
def test_conditions_combine_both_pods(
    home: Object, remote: Object, serving: bool, terminating: bool
) -> None:
    reason = {"serving": serving, "terminating": terminating}
    entries = entry(headless(), home, remote)["conditions"]
    assert entries == {"ready": serving and not terminating, **reason}
    early = entry(headless(publishNotReadyAddresses=True), home, remote)["conditions"]
    assert early == {"ready": True, **reason}


def test_unreachable_pod_is_not_ready_and_keeps_its_address() -> None:
    of = headless(publishNotReadyAddresses=True)
    (endpoint,) = planned(of, (named("web-0"), pod("web-0"))).endpoints
    made = relaynames.endpoint_slice(of, endpoint, ADDRESS, IDENTITY)
    away = relaynames.endpoint_slice(of, endpoint, ADDRESS, IDENTITY, reachable=False)
    nobody = {"ready": False, "serving": False, "terminating": False}
    assert away["endpoints"] == [{**made["endpoints"][0], "conditions": nobody}]
    assert relaynames.not_ready_patch(made) == {"endpoints": away["endpoints"]}
    (plain,) = forward_plan.forward_slices(
        service(), {EndpointPort("http", 0): 4000}, IDENTITY, address=ADDRESS
    )
    assert relaynames.not_ready_patch(plain) is None, "the slice is not of a headless Service"


def test_target_port_is_resolved_per_pod() -> None:
    ports = [
        {"name": "http", "port": 80, "targetPort": "web"},
        {"name": "admin", "port": 90},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    of = headless(ports=ports)
    web = {"name": "web", "containerPort": 9090}
    home = pod("a", spec={"containers": [{"ports": [web]}]})
    found = planned(of, (home, pod("a")), pair("without"))
    assert found.unsupported == ("port 53 is UDP, but only TCP is forwarded",)
    first, second = found.endpoints
    assert relaynames.listeners_of(first, ADDRESS) == {
        ListenAddress(ADDRESS, 9090): backend("a", 9090),
        ListenAddress(ADDRESS, 90): backend("a", 90),
    }
    assert relaynames.listeners_of(second, ADDRESS) == {
        ListenAddress(ADDRESS, 90): backend("without", 90)
    }
    made = relaynames.endpoint_slice(of, first, ADDRESS, IDENTITY)
    assert [(it["name"], it["port"]) for it in made["ports"]] == [("http", 9090), ("admin", 90)]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"ports": []}, "has no ports"),
        ({"ports": [{"port": 9, "protocol": "SCTP"}]}, "port 9 is SCTP"),
        ({"ipFamilies": ["IPv6"]}, "no IPv4 address"),
    ],
)
def test_unsupported_service_is_reported(spec: Object, reason: str) -> None:
    found = planned(headless(**spec), pair())
    assert found.endpoints == ()
    assert reason in found.unsupported[0]
    assert planned(headless(**spec)) == relaynames.HeadlessPlan(), "no pod is on the node"


def test_slice_names_differ_by_pod_and_service() -> None:
    def name(of: Object, known: str) -> str:
        (endpoint,) = planned(of, pair(known)).endpoints
        return str(relaynames.endpoint_slice(of, endpoint, ADDRESS, IDENTITY)["metadata"]["name"])

    other = {**headless(), "metadata": {**headless()["metadata"], "name": "web-admin"}}
    assert len({name(headless(), "a"), name(headless(), "b"), name(other, "a")}) == 3


def test_modified_slice_records_no_address() -> None:
    of = headless()
    (endpoint,) = planned(of, pair("web-0")).endpoints
    made = relaynames.endpoint_slice(of, endpoint, ADDRESS, IDENTITY)
    (entry,) = made["endpoints"]
    target = {**entry["targetRef"], "name": "web-1"}
    for endpoints in (
        None,
        [],
        [{"addresses": [ADDRESS]}],
        [{"targetRef": {"kind": "Node"}}],
        [{**entry, "addresses": ["10.77.0.9"]}],
        [{**entry, "targetRef": target}],
        [entry, entry],
        [{**entry, "addresses": [ADDRESS, "10.77.0.9"]}],
    ):
        assert relaynames.recorded_address({**made, "endpoints": endpoints}, IDENTITY) is None
    metas: list[Object] = [{"labels": {}}, {"name": "web"}, {"deletionTimestamp": "2026-01-01"}]
    for meta in metas:
        changed = {**made, "metadata": {**made["metadata"], **meta}}
        assert relaynames.recorded_address(changed, IDENTITY) is None


@pytest.mark.real_time  # measures CPU time
def test_slice_with_many_addresses_is_not_searched() -> None:
    of = headless()
    (endpoint,) = planned(of, pair("web-0")).endpoints
    made = relaynames.endpoint_slice(of, endpoint, ADDRESS, IDENTITY)
    addresses = [f"10.78.0.{number}" for number in range(100)]
    made["endpoints"] = [{"addresses": addresses}] * 1000
    began = time.thread_time()
    for _ in range(20):
        assert relaynames.recorded_address(made, IDENTITY) is None
    assert time.thread_time() - began < 0.2
