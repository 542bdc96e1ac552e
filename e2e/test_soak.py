"""A random load on everything, after which home and remote agree on every object.

CLUSTER_BRIDGE_SOAK_SECONDS  duration of the load (30; `make soak` takes 300)
CLUSTER_BRIDGE_SOAK_SEED     seed of the load (random by default, and printed)
"""

from __future__ import annotations

import os
import random
import sys

import pytest

from e2e.audit import Auditor, Finding
from e2e.clusters import Backend
from e2e.conftest import Bridged
from e2e.kubectl import get_one, uids, wait_for
from e2e.provisioned_storage import ProvisionedStorage, load_volumes
from e2e.random_load import RandomLoad, jobs_are_done
from e2e.storage_classes import hostpath
from e2e.unmanaged_objects import unmanaged_objects
from e2e.workload_manifests import busybox

SECONDS = float(os.environ.get("CLUSTER_BRIDGE_SOAK_SECONDS") or 30)
#: Timeout of the load with preparation and audit.
LIMIT = SECONDS + 420
#: Even a short load has a stop and a crash.
RESTART_EVERY = min(20.0, SECONDS / 3)
#: Seconds for the last Jobs, with their back-offs.
JOB_SECONDS = 120.0


@pytest.mark.alone
@pytest.mark.usefixtures("provisioners")
@pytest.mark.timeout(LIMIT, func_only=True)
def test_clusters_agree_after_a_random_load(bridged: Bridged) -> None:
    """Creates, updates, deletes, Jobs and crashes, with restarts of the bridge, beside unmanaged
    objects."""
    seed = int(os.environ.get("CLUSTER_BRIDGE_SOAK_SEED") or random.SystemRandom().getrandbits(32))
    say(f"soak: {SECONDS:.0f} s, CLUSTER_BRIDGE_SOAK_SEED={seed}")
    mix = RandomLoad(bridged, seed, say)
    storage = ProvisionedStorage(bridged)
    with hostpath(bridged.remote, default=True), load_volumes(storage, mix):
        mix.set_up()
        _run(bridged, mix)
        storage.clear()


def _run(bridged: Bridged, mix: RandomLoad) -> None:
    with unmanaged_objects(bridged), auditor_of(bridged) as auditor:
        bridged.apply(busybox(bridged.node, "clash", "sleep 3600"))
        mix.run(SECONDS, restart_every=RESTART_EVERY)
        say(f"soak: quiet; {auditor.counts()}; {dict(mix.restarts)}")
        _report(auditor.settled(), "with all that the mix has left", mix)
        # kind's nodes keep their volumes in a container.
        assert auditor.compares_contents or bridged.remote.backend is not Backend.NATIVE
        wait_for(lambda: jobs_are_done(bridged), "every job is complete", seconds=JOB_SECONDS)
        clash = get_one(bridged.home, "pod", "clash", namespace=bridged.namespace)
        assert clash["status"]["reason"] == "RemoteClash"

        kinds = "deployments,statefulsets,jobs,pods,services,configmaps,secrets,pvc"
        bridged.kubectl("delete", kinds, "--all", "--wait=false")
        wait_for(lambda: not bridged.home_pods(), "all home pods were deleted", seconds=90)
        _report(auditor.settled(), "with everything deleted", mix)
        assert set(uids(bridged.remote_pods())) == {"clash"}, "only the unmanaged pod is left"
        say(f"soak: over; {auditor.counts()}, {len(mix.steps)} steps")


def say(line: str) -> None:
    """Prints a line of progress (pytest -s)."""
    print(line, file=sys.stderr, flush=True)


def auditor_of(bridged: Bridged) -> Auditor:
    """An auditor of the test's virtual node."""
    return Auditor(bridged.home, bridged.remote, node=bridged.node)


def _report(findings: list[Finding], when: str, mix: RandomLoad) -> None:
    """Fails with the findings. The fixture prints the log of the bridge."""
    listed = "\n".join(f"  {finding}" for finding in findings)
    steps = "\n".join(mix.steps[-60:])
    assert not findings, f"{when}:\n{listed}\nthe last steps:\n{steps}"
