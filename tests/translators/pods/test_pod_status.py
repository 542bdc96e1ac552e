"""The status of a home pod: copied, computed and synthetic parts, accepted by an API server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import V1ContainerStatus, V1PodStatus

from tests.fakeapi.patching import strategic
from tests.translators.golden import ADDRESS, POLICY
from tests.translators.strategies import json_values
from translators.merge_patch import delete_condition, status_patch
from translators.object_accessors import Object
from translators.pods import pod_status, synthetic_status

_NOW = "2025-11-03T10:00:00Z"
_GATE = "example.com/replicated"


def _home(status: Object | None = None, *, generation: int | None = 1, **spec: Any) -> Object:
    meta: Object = {"name": "web", "uid": "home-1"}
    if generation is not None:
        meta |= {"generation": generation}
    return {"metadata": meta, "spec": spec, "status": status or {}}


def _to_home(home: Object, theirs: Object) -> Object:
    return pod_status.translate_status(home, {"status": theirs}, POLICY, now=_NOW)


def _condition(kind: str, status: str = "True", second: int = 0, **more: Any) -> Object:
    time = f"2025-11-03T09:00:{second:02}Z"
    return {"type": kind, "status": status, "lastTransitionTime": time, **more}


def _container(name: str, state: str, code: int = 0) -> Object:
    reported = {"exitCode": code} if state == "terminated" else {}
    return {
        "name": name,
        "ready": state == "running",
        "restartCount": 0,
        "state": {state: reported},
    }


@given(json_values)
def test_unknown_fields_are_copied(value: Any) -> None:
    home, theirs = _home(), {"phase": "Running", "future": value}
    before = copy.deepcopy((home, theirs))

    assert _to_home(home, theirs)["future"] == value
    assert (home, theirs) == before


def test_home_fields_are_not_copied() -> None:
    theirs = {
        "extendedResourceClaimStatus": {},
        "nominatedNodeName": "worker-1",
        "observedGeneration": 4,
        "qosClass": "Guaranteed",
        "resourceClaimStatuses": [{"name": "gpu"}],
    }

    assert set(theirs) & set(_to_home(_home(generation=None), theirs)) == set()


def test_host_ip_is_the_virtual_nodes_after_scheduling() -> None:
    assert "hostIP" not in _to_home(_home(), {"phase": "Pending"})
    status = _to_home(_home(), {"hostIP": "192.168.7.12", "hostIPs": [{"ip": "192.168.7.12"}]})

    assert (status["hostIP"], status["hostIPs"]) == (ADDRESS, [{"ip": ADDRESS}])


def test_start_time_is_set_once() -> None:
    theirs = {"startTime": "2025-11-03T09:00:07Z"}

    assert _to_home(_home(), theirs)["startTime"] == "2025-11-03T09:00:07Z"
    assert _to_home(_home({"startTime": _NOW}), theirs)["startTime"] == _NOW


def test_observed_generation_is_homes() -> None:
    theirs = {"observedGeneration": 1, "conditions": [_condition("Ready", observedGeneration=1)]}
    status = _to_home(_home(generation=7), theirs)

    assert status["observedGeneration"] == 7
    assert status["conditions"][0]["observedGeneration"] == 7


def test_pod_scheduled_has_the_observed_generation() -> None:
    """As a kubelet sets it, although home's scheduler wrote the condition."""
    ours = _condition("PodScheduled") | {"reason": "ours"}
    theirs = _condition("PodScheduled") | {"reason": "theirs"}
    home = _home({"conditions": [ours]}, generation=7)
    (reported,) = _to_home(home, {"conditions": [theirs | {"observedGeneration": 1}]})["conditions"]

    assert reported == ours | {"observedGeneration": 7}
    assert _to_home(home, {"conditions": [theirs]})["conditions"] == [ours]


def test_home_without_observed_generation_support() -> None:
    theirs = {"observedGeneration": 1, "conditions": [_condition("Ready", observedGeneration=1)]}
    home = _home({"conditions": [_condition("Ready")]}, generation=None)

    assert "conditions" not in status_patch(home["status"], _to_home(home, theirs))


@pytest.mark.parametrize(
    "field", ["message", "podIP", "podIPs", "reason", "resize", "ephemeralContainerStatuses"]
)
def test_fields_removed_in_the_remote_are_removed(field: str) -> None:
    assert status_patch({field: "x"}, _to_home(_home({field: "x"}), {}))[field] is None


@pytest.mark.parametrize(
    ("pod", "phase", "terminal"),
    [
        ({}, "Pending", False),
        ({"status": {"phase": ""}}, "Pending", False),
        ({"status": {"phase": "Running"}}, "Running", False),
        ({"status": {"phase": "Unknown"}}, "Unknown", False),
        ({"status": {"phase": "Succeeded"}}, "Succeeded", True),
        ({"status": {"phase": "Failed"}}, "Failed", True),
    ],
    ids=["no status", "an empty phase", "running", "unknown", "succeeded", "failed"],
)
def test_phase_is_copied(pod: Object, phase: str, terminal: bool) -> None:
    assert (pod_status.phase(pod), pod_status.is_terminal(pod)) == (phase, terminal)


def _found(home: Object, *theirs: Object) -> dict[str, Object]:
    status = _to_home(home, {"conditions": list(theirs)})
    return {condition["type"]: condition for condition in status["conditions"]}


def test_conditions_of_other_writers_are_kept() -> None:
    scheduled, gate = _condition("PodScheduled"), _condition(_GATE, "False")
    home = _home({"conditions": [scheduled, gate, _condition("DisruptionTarget")]})

    assert _found(home, _condition("Initialized")) == {
        "PodScheduled": scheduled,
        _GATE: gate,
        "DisruptionTarget": _condition("DisruptionTarget"),
        "Initialized": _condition("Initialized"),
    }


def test_readiness_gates_are_not_copied() -> None:
    closed = _condition(_GATE, "False")
    home = _home({"conditions": [closed]}, readinessGates=[{"conditionType": _GATE}])

    assert _found(home, _condition(_GATE, "True"))[_GATE] == closed


def test_condition_removed_by_the_kubelet_is_removed() -> None:
    home = _home({"conditions": [_condition("PodResizePending"), _condition("Ready")]})

    assert _found(home, _condition("Ready"))["PodResizePending"] == delete_condition(
        "PodResizePending"
    )


def test_remote_scheduled_condition_follows_the_remotes_scheduler() -> None:
    waiting = _found(_home(), _condition("PodScheduled", "False", reason="Unschedulable"))
    reported = waiting[pod_status.CONDITION_REMOTE_SCHEDULED]
    assert (reported["status"], reported["reason"]) == ("False", "Unschedulable")

    home = _home({"conditions": [reported]})
    assert _found(home, _condition("PodScheduled"))[reported["type"]]["status"] == "True"
    assert _found(_home(), _condition("PodScheduled")) == {}


@pytest.mark.parametrize("kind", ["Accepted", "RemoteScheduled", "Future"])
def test_condition_of_another_bridge_is_not_copied(kind: str) -> None:
    theirs = _condition(f"cluster-bridge.io/{kind}", "False", reason="Unschedulable")

    assert _found(_home(), theirs) == {}
    assert _found(_home(), _condition("PodScheduled"), theirs) == {}
    # One of this bridge is removed or kept as without theirs.
    home = _home({"conditions": [_condition(theirs["type"], "False", reason="Rejected")]})
    assert _found(home, theirs) == _found(home)


@pytest.mark.parametrize(
    ("gates", "containers", "ready"),
    [
        ({}, "True", "True"),
        ({_GATE: "True"}, "True", "True"),
        ({_GATE: "True"}, "False", "False"),
        ({_GATE: "False"}, "True", "False"),
        ({_GATE: None}, "True", "False"),
        ({_GATE: "True", "b": "Unknown"}, "True", "False"),
    ],
    ids=[
        "no gate",
        "an open gate",
        "containers that are not ready",
        "a closed gate",
        "a gate of which nothing is known",
        "one of two",
    ],
)
def test_ready_includes_readiness_gates(
    gates: dict[str, str | None], containers: str, ready: str
) -> None:
    known = [_condition(kind, word) for kind, word in gates.items() if word]
    home = _home({"conditions": known}, readinessGates=[{"conditionType": kind} for kind in gates])
    found = _found(home, _condition("Ready", containers))

    assert found["Ready"]["status"] == ready
    assert ("reason" in found["Ready"]) == (containers == "True" != ready)


def _ready_since(gate: Object | None, ready: Object, before: Object | None = None) -> str:
    known = [condition for condition in (gate, before) if condition]
    home = _home({"conditions": known}, readinessGates=[{"conditionType": _GATE}])
    return str(_found(home, ready)["Ready"]["lastTransitionTime"])[-3:-1]


def test_ready_transition_time_is_that_of_the_last_condition() -> None:
    assert _ready_since(_condition(_GATE, second=20), _condition("Ready", second=5)) == "20"
    assert _ready_since(_condition(_GATE, second=20), _condition("Ready", second=30)) == "30"


def test_not_ready_keeps_its_transition_time() -> None:
    closed, ready = _condition(_GATE, "False", 20), _condition("Ready", second=5)

    assert _ready_since(closed, ready, _condition("Ready", second=5)) == "20"
    assert _ready_since(closed, ready, _condition("Ready", "False", 9)) == "09"
    assert _ready_since(None, ready) == "05"


@pytest.mark.parametrize(
    ("policy", "code", "stays"),
    [
        ("Always", 0, False),
        ("OnFailure", 1, False),
        ("OnFailure", 0, True),
        ("Never", 0, True),
        ("Never", 1, True),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_container_that_terminated_for_good_stays_terminated(
    kind: str, policy: str, code: int, stays: bool
) -> None:
    field = {"containers": "containerStatuses", "initContainers": "initContainerStatuses"}[kind]
    ended, again = _container("main", "terminated", code), _container("main", "waiting")
    home = _home({field: [ended]}, restartPolicy=policy)
    home["spec"][kind] = [{"name": "main"}]

    assert _to_home(home, {field: [again]})[field] == [ended if stays else again]


def test_sidecar_may_run_again() -> None:
    ended, again = _container("mesh", "terminated"), _container("mesh", "running")
    sidecar = {"name": "mesh", "restartPolicy": "Always"}
    home = _home(
        {"initContainerStatuses": [ended]}, restartPolicy="Never", initContainers=[sidecar]
    )

    assert _to_home(home, {"initContainerStatuses": [again]})["initContainerStatuses"] == [again]


@pytest.mark.parametrize(
    ("own", "stays"),
    [
        ({"restartPolicy": "Never"}, True),
        ({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}, False),
    ],
    ids=["it may not by its own policy", "its own rules may say that it does"],
)
def test_container_restart_policy_is_respected(own: Object, stays: bool) -> None:
    ended, again = _container("main", "terminated", 1), _container("main", "running")
    home = _home({"containerStatuses": [ended]}, containers=[{"name": "main", **own}])

    assert _to_home(home, {"containerStatuses": [again]})["containerStatuses"] == [
        ended if stays else again
    ]


def test_no_container_runs_in_a_re_created_pod() -> None:
    running = {**_container("main", "running"), "containerID": "containerd://1", "started": True}
    status = _to_home(_home({"containerStatuses": [running]}), {"phase": "Pending"})

    assert status["containerStatuses"] == [
        {
            "name": "main",
            "ready": False,
            "restartCount": 0,
            "started": False,
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }
    ]


def test_container_statuses_are_kept_if_the_remote_pod_has_none() -> None:
    home = _home({"containerStatuses": [_container("main", "running")]})

    assert "containerStatuses" not in _to_home(home, {"phase": "Failed"})


@pytest.mark.parametrize(
    ("generation", "status", "acted"),
    [
        (2, {}, False),
        (2, {"observedGeneration": 1, "startTime": _NOW}, False),
        (2, {"observedGeneration": 2, "startTime": _NOW}, True),
        (None, {"startTime": _NOW}, True),
    ],
    ids=["no kubelet yet", "an older one", "this one", "a kubelet that does not say"],
)
def test_pod_is_observed_when_the_kubelet_reports_its_generation(
    generation: int | None, status: Object, acted: bool
) -> None:
    remote: Object = {"metadata": {"generation": generation}, "status": status}

    assert pod_status.is_observed_by_kubelet(_home(generation=7), remote) is acted


def test_deletion_is_observed_when_the_remote_pod_is_deleted() -> None:
    home = _home(generation=7)
    home["metadata"]["deletionTimestamp"] = _NOW
    remote: Object = {"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}

    assert not pod_status.is_observed_by_kubelet(home, remote)
    remote["metadata"] |= {"deletionTimestamp": _NOW, "generation": 2}
    assert not pod_status.is_observed_by_kubelet(home, remote)
    remote["status"]["observedGeneration"] = 2
    assert pod_status.is_observed_by_kubelet(home, remote)


def test_deletion_is_never_observed_by_an_old_kubelet() -> None:
    """So a deletion costs no additional status write."""
    home = _home(generation=7)
    remote: Object = {"metadata": {}, "status": {"startTime": _NOW}}

    assert pod_status.is_observed_by_kubelet(home, remote)
    for one in (home, remote):
        one["metadata"]["deletionTimestamp"] = _NOW
    assert not pod_status.is_observed_by_kubelet(home, remote)


@pytest.mark.parametrize("before", [None, 6], ids=["no generation", "an older generation"])
def test_generation_is_reported_only_after_it_is_observed(before: int | None) -> None:
    home = _home({"observedGeneration": before} if before else {}, generation=7)
    theirs = {"conditions": [{**_condition("Initialized"), "observedGeneration": 1}]}
    status = pod_status.translate_status(home, {"status": theirs}, POLICY, now=_NOW, observed=False)

    assert status.get("observedGeneration") == before
    assert status["conditions"][-1]["observedGeneration"] == before


def _disrupted(message: str) -> Object:
    return {**_condition("DisruptionTarget"), "reason": "EvictionByEvictionAPI", "message": message}


def test_remote_disruption_is_marked_and_removed_with_its_pod() -> None:
    (reported,) = _to_home(_home(), {"conditions": [_disrupted("drained")]})["conditions"]
    assert reported == _disrupted("in the remote cluster: drained")

    again = _home({"conditions": [reported]})
    assert _to_home(again, {"conditions": [_disrupted("drained")]})["conditions"] == [reported]
    (gone,) = _to_home(again, {})["conditions"]
    assert gone == {"type": "DisruptionTarget", "$patch": "delete"}


@pytest.mark.parametrize("theirs", [[], [_disrupted("drained")]], ids=["alone", "and theirs"])
def test_home_disruption_is_kept(theirs: list[Object]) -> None:
    own = _disrupted("evicted at home")

    assert _to_home(_home({"conditions": [own]}), {"conditions": theirs})["conditions"] == [own]


@pytest.mark.parametrize("deleted_at_home", [False, True])
def test_pod_deleted_only_in_the_remote_is_not_ready(deleted_at_home: bool) -> None:
    home = _home()
    if deleted_at_home:
        home["metadata"]["deletionTimestamp"] = _NOW
    remote: Object = {
        "metadata": {"deletionTimestamp": "2025-11-03T10:00:30Z", "deletionGracePeriodSeconds": 30},
        "status": {"conditions": [_condition("Ready")]},
    }
    (ready,) = pod_status.translate_status(home, remote, POLICY, now=_NOW)["conditions"]

    if deleted_at_home:
        assert ready == _condition("Ready")
    else:
        assert (ready["status"], ready["reason"]) == ("False", "RemotePodDeleted")
        assert ready["lastTransitionTime"] == "2025-11-03T10:00:00Z"


def test_every_status_field_is_decided() -> None:
    known = set(V1PodStatus.attribute_map.values())

    assert known <= pod_status.REMOTE_FIELDS | pod_status.HOME_FIELDS
    assert not pod_status.REMOTE_FIELDS & pod_status.HOME_FIELDS


@pytest.mark.parametrize("field", sorted(V1ContainerStatus.attribute_map.values()))
def test_every_container_status_field_is_copied(field: str) -> None:
    theirs = {"name": "main", field: "main"} if field != "state" else {"name": "main", "state": {}}
    status = _to_home(_home(), {"containerStatuses": [theirs]})

    assert status["containerStatuses"] == [theirs]


def _waiting(home: Object) -> Object:
    message = "a pod of that name is there"
    return synthetic_status.pending_status(home, reason="RemoteClash", message=message, now=_NOW)


def test_pending_status_has_a_reason() -> None:
    status = _waiting(_home())

    assert (status["phase"], status["reason"]) == ("Pending", "RemoteClash")
    assert "startTime" not in status
    (accepted,) = status["conditions"]
    assert accepted == {
        "type": "cluster-bridge.io/Accepted",
        "status": "False",
        "reason": "RemoteClash",
        "message": "a pod of that name is there",
        "lastTransitionTime": _NOW,
    }


def test_pending_status_keeps_its_time_and_ends_with_the_creation() -> None:
    home = _home({"conditions": [{**_waiting(_home())["conditions"][0]}]})
    home["status"]["conditions"][0]["lastTransitionTime"] = "2025-11-01T00:00:00Z"

    assert synthetic_status.is_creation_blocked(home)
    assert not synthetic_status.is_creation_blocked(_home())
    assert _waiting(home)["conditions"] == home["status"]["conditions"]
    (gone,) = status_patch(home["status"], _to_home(home, {}))["conditions"]
    assert gone == {"type": pod_status.CONDITION_ACCEPTED, "$patch": "delete"}


def test_skipped_pod_is_ready_despite_readiness_gates() -> None:
    closed = _condition(_GATE, "False")
    scheduled = {**_condition("PodScheduled"), "message": "home's own"}
    home = _home({"conditions": [closed, scheduled]}, readinessGates=[{"conditionType": _GATE}])
    status = synthetic_status.skipped_status(
        home, reason="DaemonSetSkipped", message="why", now=_NOW
    )

    patch = status_patch(home["status"], status)
    conditions = {it["type"]: it["status"] for it in patch["conditions"]}
    assert (
        conditions["Ready"] == conditions["ContainersReady"] == conditions["Initialized"] == "True"
    )
    assert not conditions.keys() & {_GATE, "PodScheduled"}


def test_skipped_pod_keeps_nothing_of_a_previous_remote_pod() -> None:
    before = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "containerStatuses": [_container("main", "running")],
        "conditions": [_condition("Ready"), _condition("PodReadyToStartContainers")],
    }
    status = synthetic_status.skipped_status(
        _home(before), reason="DaemonSetSkipped", message="", now=_NOW
    )

    patch = status_patch(before, status)
    assert [patch[key] for key in ("podIP", "podIPs", "containerStatuses")] == [None] * 3
    assert delete_condition("PodReadyToStartContainers") in patch["conditions"]
    ready = next(it for it in patch["conditions"] if it["type"] == "Ready")
    assert ready["lastTransitionTime"] == _condition("Ready")["lastTransitionTime"]


def test_lost_pod_fails_with_all_containers() -> None:
    ended = _container("done", "terminated")
    running = {
        **_container("main", "running"),
        "state": {"running": {"startedAt": "2025-11-03T09:00:05Z"}},
        "containerID": "containerd://1",
    }
    home = _home(
        {
            "containerStatuses": [running, _container("late", "waiting")],
            "initContainerStatuses": [ended],
            "conditions": [_condition("Ready"), _condition("ContainersReady", "False")],
        }
    )
    before = copy.deepcopy(home)
    status = synthetic_status.lost_status(home, reason="RemotePodLost", message="gone", now=_NOW)
    lost = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "gone"}

    assert (status["phase"], status["reason"], status["message"]) == (
        "Failed",
        "RemotePodLost",
        "gone",
    )
    assert status["initContainerStatuses"] == [ended]
    assert [item["state"]["terminated"] for item in status["containerStatuses"]] == [
        {
            **lost,
            "startedAt": "2025-11-03T09:00:05Z",
            "finishedAt": _NOW,
            "containerID": "containerd://1",
        },
        {**lost, "finishedAt": _NOW},
    ]
    assert not any(item["ready"] or item["started"] for item in status["containerStatuses"])
    assert status["conditions"][0] == {
        "type": "Ready",
        "status": "False",
        "reason": "PodFailed",
        "lastTransitionTime": _NOW,
    }
    assert status["conditions"][1] == _condition("ContainersReady", "False")
    assert home == before


_KINDS = ["Ready", "ContainersReady", "PodScheduled", "PodResizePending", _GATE]
_words = st.sampled_from(["True", "False"])
_condition_lists = st.dictionaries(st.sampled_from(_KINDS), st.tuples(_words, st.booleans())).map(
    lambda found: [
        _condition(kind, word) | ({"reason": "X"} if reason else {})
        for kind, (word, reason) in found.items()
    ]
)
_states = st.sampled_from(["waiting", "running", "terminated"])
_statuses = st.fixed_dictionaries(
    {"phase": st.sampled_from(["Pending", "Running", "Failed"])},
    optional={
        "conditions": _condition_lists,
        "containerStatuses": st.builds(_container, st.just("main"), _states, st.integers(0, 1)).map(
            lambda status: [status]
        ),
        "podIPs": st.just([{"ip": "10.244.3.17"}]),
        "hostIP": st.just("192.168.7.12"),
        "reason": st.just("Evicted"),
    },
)


@given(_statuses, _statuses, st.sampled_from(["Always", "OnFailure", "Never"]), st.booleans())
def test_status_is_accepted_and_idempotent(
    ours: Object, theirs: Object, policy: str, gated: bool
) -> None:
    home = _home(
        ours,
        restartPolicy=policy,
        containers=[{"name": "main"}],
        readinessGates=[{"conditionType": _GATE}] if gated else [],
    )
    patched = strategic(ours, status_patch(ours, _to_home(home, theirs)))

    assert status_patch(patched, _to_home({**home, "status": patched}, theirs)) == {}
    assert _is_accepted(ours, patched, policy)
    found = {condition["type"]: condition for condition in patched.get("conditions", [])}
    before = {condition["type"]: condition for condition in ours.get("conditions", [])}
    assert found.get("PodScheduled") == before.get("PodScheduled")
    if gated and found.get("Ready", {}).get("status") == "True":
        assert found[_GATE]["status"] == "True"


def _is_accepted(old: Object, new: Object, policy: str) -> bool:
    """Whether an API server accepts the change: a terminated state is final unless the restart
    policy allows otherwise."""
    for before, after in zip(
        old.get("containerStatuses", ()), new.get("containerStatuses", ()), strict=False
    ):
        end = before["state"].get("terminated")
        if end is None or "terminated" in after["state"] or policy == "Always":
            continue
        if policy == "Never" or end["exitCode"] == 0:
            return False
    return True
