"""A short run of `make faults`: one trial each of some quick faults, randomly chosen.

CLUSTER_BRIDGE_FAULTS_SEED  the seed (a new one each time, which is printed)
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from e2e.clusters.cluster import Backend, Cluster
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.faults import fault_list
from e2e.faults.environment import set_up
from e2e.faults.runner import Run, seeded

#: Number of faults in the run.
SOME = 6
#: Timeout in seconds; on an idle machine the run takes one or two minutes.
LIMIT = 900.0


def say(line: str) -> None:
    """Prints a line of progress (pytest -s)."""
    print(line, file=sys.stderr, flush=True)


@pytest.mark.alone
@pytest.mark.timeout(LIMIT, func_only=True)
def test_faults_lose_duplicate_and_leave_nothing(
    home: Cluster, remote: Cluster, tmp_path: Path
) -> None:
    """Kills, cuts, restarts, wrong responses and manual deletions, with an audit after each."""
    seed = seeded(int(os.environ.get("CLUSTER_BRIDGE_FAULTS_SEED") or 0) or None)
    say(f"faults: CLUSTER_BRIDGE_FAULTS_SEED={seed}")
    native = home.backend is Backend.NATIVE
    chance = random.Random(seed)
    quick = fault_list.possible(fault_list.short(fault_list.FAULTS), native=native)
    plan = fault_list.once(chance.sample(quick, SOME), chance)
    settings = settings_from_environment()
    with set_up(home, remote, settings, folder=tmp_path, seed=seed, say=lambda _: None) as stage:
        run = Run(stage, say)
        run.faults(plan)
        steps = "\n".join(stage.load.steps[-60:])
    counted = [f"{trial.fault}: {one}" for trial in run.trials for one in trial.findings]
    counted += [f"{trial.fault}: {one}" for trial in run.trials for one in trial.failed]
    assert not counted, "\n".join([*counted, "the last steps:", steps])
    assert {fault.name for fault in plan} <= {trial.fault for trial in run.trials}
