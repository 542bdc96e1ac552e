"""What is computed from measured figures, and what is read from a server's audit log."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from e2e.bench.pods import burst
from e2e.bench.pods.accounts import account
from e2e.bench.pods.burst import Run
from e2e.bench.pods.load import Crowd, Shape
from e2e.bench.pods.requests import BRIDGE, Requests


def test_each_ways_median_is_compared_with_the_others() -> None:
    runs = [Run("direct", seconds, 1.0) for seconds in (4.0, 5.0, 9.0)]
    runs += [Run("bridge", 10.0, 1.0, cpu_burst_ms=2.0, writes=4.0)]
    report = burst.report(Shape(pods=100), runs)
    direct, bridge = report["ways"]["direct"], report["ways"]["bridge"]
    assert direct["pods_per_second"] == 20
    assert (direct["of_direct"], bridge["of_direct"]) == (1, 0.5)
    assert "of_least" not in bridge  # it was not run
    assert (direct["cpu_burst_ms"], bridge["cpu_burst_ms"], bridge["writes"]) == (None, 2.0, 4.0)
    assert len(report["runs"]) == 4


def test_requests_of_the_bridge_are_counted_from_the_mark_on(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"

    def add(verb: str, resource: str, agent: str = BRIDGE, sub: str = "") -> None:
        ref = {"resource": resource} | ({"subresource": sub} if sub else {})
        event = {"verb": verb, "userAgent": agent, "objectRef": ref, "requestURI": "/"}
        with log.open("ab") as file:
            file.write(orjson.dumps(event) + b"\n")

    add("create", "pods")
    requests = Requests(log)
    for _ in range(2):
        add("patch", "pods", sub="status")
    add("get", "pods")
    add("patch", "leases")
    add("create", "pods", agent="kubectl")
    assert requests.count() == {"patch pods/status": 2, "get pods": 1, "patch leases": 1}
    assert requests.writes() == {"patch pods/status": 2}
    requests.mark()
    assert not requests.count()


def test_a_process_has_used_time_and_memory() -> None:
    found = account(os.getpid())
    assert found.cpu > 0
    assert found.peak >= found.resident > 1


@pytest.mark.parametrize("node", [None, "virtual"])
def test_pods_of_a_load_are_spread_over_namespaces_and_what_they_refer_to(node: str | None) -> None:
    shape = Shape(pods=8, namespaces=2, references=2)
    crowd = Crowd(None, "load", shape, node=node)  # type: ignore[arg-type]  # nothing is asked
    pods = [crowd.pod(number) for number in range(shape.pods)]
    assert {namespace for namespace, _ in pods} == {"load-0", "load-1"}
    shared = {
        (namespace, volume["configMap"]["name"])
        for namespace, body in pods
        for volume in body["spec"]["volumes"]
    }
    assert len(shared) == 4
    assert {body["spec"].get("nodeName") for _, body in pods} == {node}
