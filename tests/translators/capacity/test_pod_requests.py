"""Requests of pods by the rules of the scheduler.

`e2e/test_resource_quantities.py` compares them with its code.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.capacity import pod_requests
from translators.object_accessors import Object


def _container(name: str = "main", restart: str = "", **requests: str) -> Object:
    found: Object = {"name": name, "resources": {"requests": requests}}
    return {**found, "restartPolicy": restart} if restart else found


def _sidecar(name: str, **requests: str) -> Object:
    return _container(name, "Always", **requests)


def _pod(*containers: Object, init: list[Object] | None = None, **spec: Any) -> Object:
    return {"spec": {"containers": list(containers), "initContainers": init or [], **spec}}


def _resized(granted: str, has: str, *, reason: str = "", asks: str = "2") -> Object:
    status: Object = {
        "name": "main",
        "allocatedResources": {"cpu": granted},
        "resources": {"requests": {"cpu": has}},
    }
    pending = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    pod = _pod(_container(cpu=asks))
    return {**pod, "status": {"containerStatuses": [status], "conditions": pending}}


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        (_pod(_container()), None),
        (_pod(_container(cpu="0")), None),
        (_pod(_container(cpu="1"), _container(cpu="500m")), 1500),
        (_pod(_container(cpu="1"), init=[_container(cpu="3"), _container(cpu="2")]), 3000),
        (_pod(_container(cpu="1"), init=[_sidecar("s", cpu="1")]), 2000),
        (_pod(_container(cpu="1"), init=[_sidecar("s", cpu="1"), _container(cpu="4")]), 5000),
        (_pod(_container(cpu="1"), init=[_container(cpu="4"), _sidecar("s", cpu="1")]), 4000),
        (_pod(_container(cpu="1"), resources={"requests": {"cpu": "500m"}}), 500),
        (_pod(_container(cpu="1"), overhead={"cpu": "250m"}), 1250),
        (_resized("1", "1"), 2000),
        (_resized("3", "1"), 3000),
        (_resized("1", "3"), 3000),
        (_resized("1", "1", reason="Infeasible", asks="64"), 1000),
        (_resized("1", "1", reason="Deferred", asks="64"), 64000),
    ],
    ids=[
        "nothing asked",
        "zero is nothing",
        "containers are added",
        "an init container that asks for more",
        "a sidecar runs beside the containers",
        "an init container beside an earlier sidecar",
        "and before a later one",
        "what the pod asks as a whole",
        "overhead comes on top",
        "a resize that is wanted",
        "one down that is not granted yet",
        "one down that is not done yet",
        "one that will never be",
        "one that waits",
    ],
)
def test_cpu_requests_of_a_pod(pod: Object, cpu: int | None) -> None:
    found = pod_requests.requests_of(pod)

    assert found.get("cpu") == cpu
    assert found["pods"] == 1


def test_resources_are_rounded_up_to_whole_units() -> None:
    requests = {"memory": "100m", "example.com/gpu": "2", "hugepages-2Mi": "4Mi"}
    pod = _pod(_container(**requests), _container(**requests), resources={"requests": {"x/y": "1"}})

    assert pod_requests.requests_of(pod) == {
        "memory": 1,
        "example.com/gpu": 4,
        "hugepages-2Mi": 2**23,
        "pods": 1,
    }


def test_resource_list_is_parsed() -> None:
    assert pod_requests.parse_resource_list(
        {"cpu": "3920m", "hugepages-1Gi": "0", "pods": "110"}
    ) == {"cpu": 3920, "hugepages-1Gi": 0, "pods": 110}
    assert pod_requests.parse_resource_list(None) == {}
    assert pod_requests.parse_resource_list({"cpu": "many"}) == {"cpu": 0}


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 4000, "4"),
        ("memory", 3 * 2**30, "3Gi"),
        ("memory", 10**9, "1000000000"),
        ("ephemeral-storage", 2**20, "1Mi"),
        ("hugepages-2Mi", 2**22, "4Mi"),
        ("pods", 1024, "1024"),
        ("example.com/gpu", 3000, "3k"),
    ],
)
def test_amounts_are_formatted_with_the_usual_suffix(resource: str, amount: int, text: str) -> None:
    assert pod_requests.format_amount(resource, amount) == text
    assert pod_requests.parse_amount(resource, text) == amount


_LISTS = st.dictionaries(st.sampled_from(["cpu", "memory", "x.io/y"]), st.integers(0, 9))


@given(
    containers=st.lists(_LISTS, max_size=3),
    init=st.lists(st.tuples(st.booleans(), _LISTS), max_size=5),
)
def test_requests_are_the_most_of_any_step_of_the_start(
    containers: list[dict[str, int]], init: list[tuple[bool, dict[str, int]]]
) -> None:
    def container(amounts: dict[str, int], restart: str = "") -> Object:
        return _container("c", restart, **{key: str(amount) for key, amount in amounts.items()})

    pod = _pod(
        *map(container, containers),
        init=[container(amounts, "Always" if always else "") for always, amounts in init],
    )
    expected: dict[str, int] = {"pods": 1}
    for resource in ("cpu", "memory", "x.io/y"):
        before = [
            sum(amounts.get(resource, 0) for always, amounts in init[:place] if always)
            for place in range(len(init) + 1)
        ]
        running = sum(amounts.get(resource, 0) for amounts in containers) + before[-1]
        starting = [
            amounts.get(resource, 0) + sidecars
            for (_, amounts), sidecars in zip(init, before, strict=False)
        ]
        if most := max(running, *starting, 0):
            expected[resource] = most * 1000 if resource == "cpu" else most
    assert pod_requests.requests_of(pod) == expected


def test_cost_of_sidecars_with_resources_of_their_own_is_linear() -> None:
    def calls(sidecars: int) -> int:
        """How many functions are called for a pod with so many sidecars."""
        init = [_sidecar(f"s{number}", **{f"x.io/{number}": "1"}) for number in range(sidecars)]
        pod = _pod(_container(cpu="1"), init=init)
        counts: Counter[str] = Counter()
        previous = sys.getprofile()
        sys.setprofile(lambda _, event, __: counts.update((event,)))
        try:
            pod_requests.requests_of(pod)
        finally:
            sys.setprofile(previous)
        return counts["call"] + counts["c_call"]

    assert calls(400) < 3 * calls(200)
