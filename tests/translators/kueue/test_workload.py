"""Reading Workloads, and the patches of Workloads and AdmissionChecks."""

from __future__ import annotations

from tests import kueue_objects as objects
from translators.kueue import workload
from translators.kueue.promises import promises
from translators.kueue.workload import CheckResult
from translators.object_accessors import Object

NOW = "2031-01-01T00:00:00Z"
OWN = frozenset({objects.CHECK})


def with_quota(*checks: Object) -> Object:
    """A Workload of two pod sets whose quota is reserved."""
    found = objects.workload("w", objects.pod_set(1, "1", "a"), objects.pod_set(2, "1", "b"))
    return {**found, "status": objects.reserved(found, *checks)}


def test_ready_selects_the_node_for_every_pod_set_and_keeps_other_checks() -> None:
    other = objects.check_state("budget", "Ready")
    found = with_quota(other, objects.check_state())
    status = workload.checks_status(found, OWN, CheckResult("Ready", "fits", "burst"), NOW)
    assert status is not None
    kept, own = status["admissionChecks"]
    assert kept == other
    assert (own["state"], own["lastTransitionTime"]) == ("Ready", NOW)
    assert [it["name"] for it in own["podSetUpdates"]] == ["a", "b"]
    assert own["podSetUpdates"][0] == {
        "name": "a",
        "nodeSelector": {"kubernetes.io/hostname": "burst"},
        "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
    }
    assert workload.chosen_hostname({"status": status}) == "burst"
    # The same result again is no change.
    again = {**found, "status": {**found["status"], **status}}
    assert workload.checks_status(again, OWN, CheckResult("Ready", "fits", "burst"), NOW) is None


def test_retry_keeps_kueues_counter_and_drops_the_node() -> None:
    ready = objects.check_state(state="Ready", hostname="burst", pod_set_name="a")
    found = with_quota({**ready, "retryCount": 3})
    result = CheckResult("Retry", "lost")
    status = workload.checks_status(found, OWN, result, NOW)
    assert status is not None
    assert status["admissionChecks"] == [
        {
            "name": objects.CHECK,
            "state": "Retry",
            "lastTransitionTime": NOW,
            "message": "lost",
            "retryCount": 3,
        }
    ]


def test_long_message_is_cut_at_a_character() -> None:
    status = workload.checks_status(with_quota(), OWN, CheckResult("Retry", "ü" * 9000), NOW)
    assert status is not None
    message = status["admissionChecks"][0]["message"]
    assert len(message.encode()) <= workload.MESSAGE_MAX
    assert message.endswith("ü...")


def test_flavor_labels_and_tolerations_are_part_of_the_pods() -> None:
    flavor = objects.flavor(zone="a")
    flavor["spec"]["tolerations"] = [{"key": "paid", "operator": "Exists"}]
    first, _ = workload.pod_sets(with_quota(), {objects.FLAVOR: flavor})
    assert first.pod["spec"]["nodeSelector"] == {objects.VIRTUAL: "true", "zone": "a"}
    assert [it["key"] for it in first.pod["spec"]["tolerations"]] == ["paid", objects.VIRTUAL]


def test_check_is_marked_active_once_per_generation() -> None:
    check = objects.admission_check()
    check["metadata"]["generation"] = 1
    check["status"] = {"conditions": [objects.condition("Other", "True", "X")]}
    status = workload.active_status(check, NOW)
    assert status is not None
    assert [it["type"] for it in status["conditions"]] == ["Other", "Active"]
    assert workload.active_status({**check, "status": status}, NOW) is None
    check["metadata"]["generation"] = 2
    assert workload.active_status({**check, "status": status}, NOW) is not None


def test_promises_end_when_a_ledger_counts_the_pod_and_return_when_it_completes() -> None:
    sets = workload.pod_sets(with_quota(), {})

    def pod(pod_set: str, phase: str) -> Object:
        labels = {workload.LABEL_POD_SET: pod_set}
        return {"metadata": {"labels": labels}, "status": {"phase": phase}}

    owed = promises(sets, [], [])
    assert (len(owed.for_room), len(owed.for_node)) == (3, 3)
    starting, running = pod("a", "Pending"), pod("b", "Running")
    owed = promises(sets, [starting, running], [running])
    assert (len(owed.for_room), len(owed.for_node)) == (2, 1)
    done = pod("b", "Succeeded")
    owed = promises(sets, [starting, done], [done])
    assert (len(owed.for_room), len(owed.for_node)) == (3, 2)
