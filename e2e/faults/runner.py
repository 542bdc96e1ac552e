"""Runs trials of faults in sequence, each with an audit, and a last audit after deleting
everything.

In a trial, the bridge joins in the mode of the fault, the load runs, the fault is injected and
healed (`Fault.times` times), home reports the node Ready, and the auditor waits until both clusters
agree. Remaining findings count once, for the fault after which they first appear. A trial that
fails otherwise (the bridge ended, the node is not Ready) counts as failed; the environment
recovers, and the run continues.
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
from e2e.unmanaged_objects import unmanaged_objects
from e2e.workload_manifests import busybox

#: Minimum and maximum seconds of load before each fault.
_BEFORE = (0.5, 2.0)
#: Seconds for the last Jobs, with the back-offs of those whose pods faults have ended.
JOB_SECONDS = 240.0
#: More complete Jobs than this are deleted, or every audit would read hundreds.
_JOBS = 12
#: Failures of a trial; any other exception is a defect of the harness and ends the run.
_FAILURES = (AssertionError, BridgeEnded, BridgeFailed, ClusterError, NothingMet)
#: The last row: everything is deleted.
THE_END = "the end: all deleted"


@dataclass
class Run:
    """One run in one environment."""

    stage: Stage
    say: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    _known: set[Finding] = field(default_factory=set)

    def faults(self, faults: Iterable[Fault], *, until: float = math.inf) -> None:
        """Runs trials of these faults in order, until this time (`time.monotonic`)."""
        with self._audited() as auditor:
            for fault in faults:
                if time.monotonic() >= until:
                    break
                self._show(self._trial(fault, auditor))
            self._show(self._end(auditor))
            self.say(f"seen: {auditor.counts()}, {len(self.stage.load.steps)} steps of the mix")

    @contextmanager
    def _audited(self) -> Iterator[Auditor]:
        stage = self.stage
        with (
            unmanaged_objects(stage.bridged),
            Auditor(stage.home, stage.remote, node=stage.bridged.node) as auditor,
        ):
            # An unmanaged object has the name of this pod, which therefore stays Pending.
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
                stage.load.note(f"-- {fault.name}")
                with fault.strike(stage):
                    stage.work(stage.random.uniform(*fault.seconds))
                stage.load.note("-- healed")
                stage.require_bridge()
            healed = time.monotonic()
            stage.wait_until_ready()
            trial.ready = time.monotonic() - healed
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__}: {error}")
            self._recover(trial)
        self._audit(trial, auditor)
        trial.seconds = time.monotonic() - begin
        return trial

    def _audit(self, trial: Trial, auditor: Auditor) -> None:
        stage, begin = self.stage, time.monotonic()
        try:
            found = auditor.settled() + stage.untouched_pods.findings()
            trial.agreed = time.monotonic() - begin
            self._tidy()
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__} at the audit: {error}")
            self._recover(trial)
            return
        trial.findings = [one for one in found if one not in self._known]
        self._known.update(found)
        if any(one.kind is Kind.HARMED for one in trial.findings):
            stage.untouched_pods.make()

    def _recover(self, trial: Trial) -> None:
        try:
            self.stage.recover()
            self.stage.wait_until_ready()
        except _FAILURES as error:
            trial.failed.append(f"{type(error).__name__} afterwards: {error}")

    def _tidy(self) -> None:
        """Deletes complete Jobs if there are many."""
        bridged = self.stage.bridged
        jobs = get(bridged.home, "jobs", namespace=bridged.namespace)
        done = [job["metadata"]["name"] for job in jobs if job["status"].get("completionTime")]
        if len(done) > _JOBS:
            bridged.kubectl("delete", "job", *done, "--wait=false", check=False)

    def _end(self, auditor: Auditor) -> Trial:
        """Waits for Jobs, deletes everything, and audits: no managed object may remain."""
        bridged, trial, begin = self.stage.bridged, Trial(THE_END, tried=1), time.monotonic()
        try:
            wait_for(lambda: jobs_are_done(bridged), "every job is complete", seconds=JOB_SECONDS)
            kinds = "deployments,statefulsets,jobs,pods,services,configmaps,secrets,pvc"
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
    """The seed of a run: a random one unless given."""
    return random.SystemRandom().getrandbits(32) if seed is None else seed
