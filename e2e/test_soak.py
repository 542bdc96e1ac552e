"""Everything at once, for a while, and then home and remote agree object by object.

CLUSTER_BRIDGE_SOAK_SECONDS  how long the mix goes on (30; `make soak` takes 300)
CLUSTER_BRIDGE_SOAK_SEED     the seed of the mix (a new one each time, which is printed)
"""

from __future__ import annotations

import os
import random
import sys

import pytest

from e2e.audit import Auditor, Finding
from e2e.conftest import Bridged
from e2e.kubectl import get_one, uids, wait_for
from e2e.random_load import RandomLoad, jobs_are_done
from e2e.unmanaged_objects import unmanaged_objects
from e2e.workload_manifests import busybox

SECONDS = float(os.environ.get("CLUSTER_BRIDGE_SOAK_SECONDS") or 30)
#: The mix, and what comes before and after it.
LIMIT = SECONDS + 420
#: A short mix still sees a stop and a crash.
RESTART_EVERY = min(20.0, SECONDS / 3)
#: Seconds for jobs that began last, with their back-offs.
JOB_SECONDS = 120.0


@pytest.mark.timeout(LIMIT, func_only=True)
def test_clusters_agree_after_a_random_load(bridged: Bridged) -> None:
    """Creates, updates, deletes, jobs and crashes, with restarts of the bridge, beside objects
    of others."""
    seed = int(os.environ.get("CLUSTER_BRIDGE_SOAK_SEED") or random.SystemRandom().getrandbits(32))
    say(f"soak: {SECONDS:.0f} s, CLUSTER_BRIDGE_SOAK_SEED={seed}")
    mix = RandomLoad(bridged, seed, say)
    mix.set_up()
    with unmanaged_objects(bridged), auditor_of(bridged) as auditor:
        bridged.apply(busybox(bridged.node, "clash", "sleep 3600"))
        mix.run(SECONDS, restart_every=RESTART_EVERY)
        say(f"soak: quiet; {auditor.counts()}; {dict(mix.restarts)}")
        _report(auditor.settled(), "with all that the mix has left", mix)
        wait_for(lambda: jobs_are_done(bridged), "every job is complete", seconds=JOB_SECONDS)
        clash = get_one(bridged.home, "pod", "clash", namespace=bridged.namespace)
        assert clash["status"]["reason"] == "RemoteClash"

        kinds = "deployments,statefulsets,jobs,pods,services,configmaps,secrets"
        bridged.kubectl("delete", kinds, "--all", "--wait=false")
        wait_for(lambda: not bridged.home_pods(), "all pods are gone at home", seconds=90)
        _report(auditor.settled(), "with everything deleted", mix)
        assert set(uids(bridged.remote_pods())) == {"clash"}, "only the pod of others is left"
        say(f"soak: over; {auditor.counts()}, {len(mix.steps)} steps")


def say(line: str) -> None:
    """One line of progress, for a terminal (pytest -s)."""
    print(line, file=sys.stderr, flush=True)


def auditor_of(bridged: Bridged) -> Auditor:
    """An auditor of the test's virtual node."""
    return Auditor(bridged.home, bridged.remote, node=bridged.node)


def _report(findings: list[Finding], when: str, mix: RandomLoad) -> None:
    """Fails with the findings. The log of the bridge is printed by the fixture."""
    said = "\n".join(f"  {finding}" for finding in findings)
    steps = "\n".join(mix.steps[-60:])
    assert not findings, f"{when}:\n{said}\nthe last steps:\n{steps}"
