"""When a bridge of several joins is ready."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from bridge.app.fleet_readiness import START_SECONDS, FleetReadiness
from bridge.fleet.fleet_report import FleetMember, FleetReport, RemoteState, Standing
from sync.kube.kubeconfig_ref import KubeconfigRef


class Process:
    """The report of a process whose source was read, and its readiness."""

    def __init__(self, *keys: str) -> None:
        self.now = 100.0
        self.report = FleetReport()
        self.readiness = FleetReadiness(self.report, clock=lambda: self.now)
        self.standings: dict[str, Standing] = dict.fromkeys(keys, "starting")
        for key in keys:
            self.report.add(key, "joining", KubeconfigRef())

    def set_running(self, *keys: str) -> None:
        for key in keys:
            FleetMember(self.report, key).set_running(partial(self.standings.__getitem__, key))

    @property
    def problem(self) -> str:
        return self.readiness.problem()


def test_bridge_whose_source_was_not_read_is_not_ready() -> None:
    process = Process()
    assert process.problem == "the joins have not been read yet"
    process.report.record_load("home: remotes is not defined")
    assert process.problem == "home: remotes is not defined"
    process.now += 2 * START_SECONDS
    assert process.problem, "however long that takes"
    process.report.record_load()
    assert process.problem == "", "a bridge without a remote is ready"


def test_bridge_is_ready_once_the_caches_of_all_joins_are_filled_and_stays_so() -> None:
    process = Process("lima", "osaka")
    process.report.record_load()
    assert process.problem == "the bridge is joining lima, osaka"
    process.set_running("lima", "osaka")
    process.standings["lima"] = "serving"
    assert process.problem == "the bridge is joining osaka"
    process.standings["osaka"] = "ready"
    assert process.problem == ""
    process.report.add("quito", "joining", KubeconfigRef())
    process.standings["osaka"] = "lost"
    assert process.problem == ""


@pytest.mark.parametrize(
    "states", [["retrying"], ["retrying", "joining"], ["stopping"], ["leaving"], ["left"]]
)
def test_join_that_has_failed_or_ends_holds_up_no_rollout(states: Sequence[RemoteState]) -> None:
    process = Process("lima")
    process.report.record_load()
    assert process.problem
    for state in states:
        process.report.set_state(
            "lima", state, "remote: does not answer" if state == "retrying" else None
        )
    assert process.problem == ""


def test_join_that_does_not_end_holds_up_a_rollout_for_a_limited_time() -> None:
    process = Process("lima")
    process.report.record_load()
    process.set_running("lima")
    assert process.problem == "the bridge is joining lima"
    process.now += START_SECONDS - 1
    assert process.problem
    process.now += 1
    assert process.problem == ""
