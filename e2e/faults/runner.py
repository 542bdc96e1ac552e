"""A run: trials of faults one after the other, each with its audit, and a last audit of the end.

A trial: the bridge is joined as the fault needs it, the mix of work goes on, the fault is made and
healed (`Fault.times` times), home calls the node Ready again, and then the auditor looks until both
clusters agree. What it still finds after `Auditor.settled`'s time is counted, once, for the fault
after which it is found first. A trial that fails otherwise (the bridge has ended, the node is not
Ready) is counted as failed; the stage recovers, and the run goes on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e.audit import Auditor, Finding, Kind
from e2e.bridge_process import BridgeFailed
from e2e.clusters.errors import ClusterError
from e2e.faults.bad_responses import NothingMet
from e2e.faults.environment import BridgeEnded, Stage
from e2e.faults.fault_model import Fault, Trial
from e2e.kubectl import get, uids, wait_for
from e2e.random_load import jobs_are_done
from e2e.unmanaged_objects import objects_of_others
from e2e.workload_manifests import busybox

#: Seconds of the mix before each fault, at least and at most.
_BEFORE = (0.5, 2.0)
#: Seconds for jobs that began last, with the back-offs of those whose pods faults have ended.
JOB_SECONDS = 240.0
#: Jobs that are over are removed when there are more, or every audit would read hundreds.
_JOBS = 12
#: What a trial may fail with; anything else is a defect of the harness and ends the run.
_FAILURES = (AssertionError, BridgeEnded, BridgeFailed, ClusterError, NothingMet)
#: The last row: everything is deleted.
THE_END = "the end: all deleted"


@dataclass
class Run:
    """One run on one stage."""

    stage: Stage
    say: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    _known: set[Finding] = field(default_factory=set)

    def faults(self, faults: Iterable[Fault], *, until: float = math.inf) -> None:
        """Trials of these, in their order, until the clock (`time.monotonic`) says so, if ever."""
        with self._audited() as auditor:
            for fault in faults:
                if time.monotonic() >= until:
                    break
                self._show(self._trial(fault, auditor))
            self._show(self._end(auditor))
            self.say(f"seen: {auditor.counts()}, {len(self.stage.mix.steps)} steps of the mix")

    @contextmanager
    def _audited(self) -> Iterator[Auditor]:
        stage = self.stage
        with (
            objects_of_others(stage.bridged),
            Auditor(stage.home, stage.remote, node=stage.bridged.node) as auditor,
        ):
            # In the way of one of these there is an object of others: it waits, and says so.
            stage.bridged.apply(busybox(stage.bridged.node, "clash", "sleep 3600"))
            yield auditor

    def _trial(self, fault: Fault, auditor: Auditor) -> Trial:
        stage, trial, begin = self.stage, Trial(fault.name), time.monotonic()
        try:
            stage.join(fault.join)
            for _ in range(fault.times):
                stage.work(stage.random.uniform(*_BEFORE))
                stage.require_bridge()
                trial.tried += fault.counts
                stage.mix.note(f"-- {fault.name}")
                with fault.strike(stage):
                    stage.work(stage.random.uniform(*fault.seconds))
                stage.mix.note("-- healed")
                stage.require_bridge()
            healed = time.monotonic()
            stage.wait_until_ready()
            trial.ready = time.monotonic() - healed
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__}: {error}")
            self._recover(trial)
        self._audit(fault, trial, auditor)
        trial.seconds = time.monotonic() - begin
        return trial

    def _audit(self, fault: Fault, trial: Trial, auditor: Auditor) -> None:
        stage, begin = self.stage, time.monotonic()
        try:
            if fault.harms:
                # Pods of others are gone too. What the bridge itself has written of theirs shows.
                stage.witnesses.make()
                auditor.accept()
            found = auditor.settled() + stage.witnesses.findings()
            trial.agreed = time.monotonic() - begin
            self._tidy()
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__} at the audit: {error}")
            self._recover(trial)
            return
        trial.findings = [one for one in found if one not in self._known]
        self._known.update(found)
        if any(one.kind is Kind.HARMED for one in trial.findings):
            stage.witnesses.make()

    def _recover(self, trial: Trial) -> None:
        try:
            self.stage.recover()
            self.stage.wait_until_ready()
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__} afterwards: {error}")

    def _tidy(self) -> None:
        """Jobs that are complete, where there are many."""
        bridged = self.stage.bridged
        jobs = get(bridged.home, "jobs", namespace=bridged.namespace)
        done = [job["metadata"]["name"] for job in jobs if job["status"].get("completionTime")]
        if len(done) > _JOBS:
            bridged.kubectl("delete", "job", *done, "--wait=false", check=False)

    def _end(self, auditor: Auditor) -> Trial:
        """Jobs come to their end, and when all is deleted, no managed object is left."""
        bridged, trial, begin = self.stage.bridged, Trial(THE_END, tried=1), time.monotonic()
        try:
            wait_for(lambda: jobs_are_done(bridged), "every job is complete", seconds=JOB_SECONDS)
            kinds = "deployments,statefulsets,jobs,pods,services,configmaps,secrets"
            bridged.kubectl("delete", kinds, "--all", "--wait=false")
            wait_for(lambda: not bridged.home_pods(), "no pod is left at home", seconds=90)
            found = auditor.settled()
            trial.findings = [one for one in found if one not in self._known]
            left = set(uids(bridged.remote_pods())) - {"clash"}
            trial.failed += [f"{name} is left in the remote" for name in sorted(left)]
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__}: {error}")
        trial.seconds = time.monotonic() - begin
        return trial

    def _show(self, trial: Trial) -> None:
        self.trials.append(trial)
        counted = ", ".join([*map(str, trial.findings), *trial.failed]) or "0"
        self.say(
            f"{len(self.trials):4} {trial.fault}: tried {trial.tried}, "
            f"{trial.seconds:.0f} s (ready {trial.ready:.0f}, agreed {trial.agreed:.0f}), "
            f"counted {counted}"
        )


def seeded(seed: int | None) -> int:
    """The seed of a run: a new one unless one is given."""
    return random.SystemRandom().getrandbits(32) if seed is None else seed
