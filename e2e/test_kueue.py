"""The real Kueue in the home cluster admits Jobs to virtual nodes, by ResourceFlavors and quotas.

Queues, Jobs and Kueue's configuration are those of docs/how-to/kueue.md, with small numbers.
Kueue's first build takes some minutes.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import kueue_manager
from e2e.clusters.cluster import Cluster
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged, Limited, second_node
from e2e.kubectl import Json, get, get_one, is_ready, uids, wait_for
from e2e.simulated_node import simulated_node
from e2e.workload_manifests import BUSYBOX

pytestmark = pytest.mark.timeout(400)

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "kueue.md"
#: Seconds until the bridge reports that it cannot reach its remote, and the Node shows it.
LOSS_SECONDS = 90.0
#: The quota of the flavor, and the request of each pod: the quota is enough for two pods.
QUOTA, REQUEST = "100m", "40m"
#: The CPUs of a simulated node.
SIZE = 8
#: Seconds until Kueue evicts a Job whose pods are not all ready, and until it admits it again.
TIMEOUT, BACKOFF = 20, 10
#: Ends when a file exists, so that a test decides how long the pod runs.
SCRIPT = "echo started; until [ -e /tmp/end ]; do sleep 0.2; done; echo ended"

_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TEXTS: list[str] = _BLOCK.findall(PAGE.read_text())
_DOCUMENTS: list[Json] = [found for text in _TEXTS for found in yaml.safe_load_all(text)]


def _of_page(kind: str) -> Json:
    """A copy of the page's first object of this kind."""
    found = next(document for document in _DOCUMENTS if document.get("kind") == kind)
    return copy.deepcopy(found)


@pytest.fixture(scope="module")
def _kueue(
    clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The home cluster has Kueue with the page's configuration and short times."""
    folder = tmp_path_factory.mktemp("kueue")
    [found] = [document for document in _DOCUMENTS if "waitForPodsReady" in document]
    wait: Json = found["waitForPodsReady"]
    wait |= {"timeout": f"{TIMEOUT}s", "requeuingStrategy": {"backoffBaseSeconds": BACKOFF}}
    settings = settings_from_environment()
    try:
        with kueue_manager.running(clusters["home"], settings, folder, found):
            yield
    finally:
        log = folder / "kueue.log"
        print(log.read_text()[-20_000:] if log.exists() else "Kueue did not start")


@dataclass(frozen=True)
class Queued:
    """A virtual node, and a namespace with a LocalQueue for it."""

    bridged: Bridged

    def set_flavors(self, quotas: dict[str, str]) -> None:
        """Gives the ClusterQueue these flavors, with their CPUs, in order."""
        queue = _of_page("ClusterQueue")
        [group] = queue["spec"]["resourceGroups"]
        [flavor] = group["flavors"]
        group["coveredResources"] = ["cpu"]
        group["flavors"] = [
            {**flavor, "name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}]}
            for name, cpu in quotas.items()
        ]
        self.bridged.home.kubectl("apply", "-f", "-", input=json.dumps(queue))

    def submit(
        self,
        name: str,
        *,
        priority: str = "",
        pods: int = 2,
        cpu: str = REQUEST,
        **spec: Any,
    ) -> None:
        """Creates a Job of pods that run at the same time; by default they use the whole quota."""
        job = _of_page("Job")
        job["metadata"].update(name=name, namespace=self.bridged.namespace)
        if priority:
            job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
        job["spec"] |= {"parallelism": pods, "completions": pods, **spec}
        pod = job["spec"]["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = 1
        pod["containers"][0] |= {
            "image": BUSYBOX,
            "command": ["sh", "-c", SCRIPT],
            "resources": {"requests": {"cpu": cpu}},
        }
        self.bridged.apply(json.dumps(job))

    def workload(self, job: str) -> Json:
        """The Workload of a Job; {} before Kueue has created it."""
        bridged = self.bridged
        found = get(bridged.home, "workloads.kueue.x-k8s.io", namespace=bridged.namespace)
        owned = (each for each in found if each["metadata"]["ownerReferences"][0]["name"] == job)
        return next(owned, {})

    def condition(self, job: str, kind: str, field: str = "status") -> str:
        """A field of a condition of the Job's Workload."""
        conditions = (self.workload(job).get("status") or {}).get("conditions") or ()
        found = (str(each[field]) for each in conditions if each["type"] == kind)
        return next(found, "")

    def evictions(self, job: str) -> int:
        """The number of times that Kueue has evicted the Job because its pods were not ready."""
        status = self.workload(job).get("status") or {}
        return int((status.get("requeueState") or {}).get("count") or 0)

    def flavor(self, job: str) -> str:
        """The flavor to which Kueue has admitted the Job; empty if it has not."""
        admission = (self.workload(job).get("status") or {}).get("admission") or {}
        sets = admission.get("podSetAssignments") or [{}]
        return str((sets[0].get("flavors") or {}).get("cpu", ""))

    def set_active(self, job: str, active: bool) -> None:
        """Sets ``active`` of the Job's Workload."""
        name = self.workload(job)["metadata"]["name"]
        patch = json.dumps({"spec": {"active": active}})
        self.bridged.kubectl("patch", "workload", name, "--type=merge", "-p", patch)

    def pods(self, job: str, *phases: str) -> list[Json]:
        """The Job's pods in the home cluster in these phases; by default those that run."""
        return [
            pod
            for pod in self.bridged.home_pods()
            if pod["metadata"]["labels"].get("job-name") == job
            and pod["status"]["phase"] in (phases or ("Running",))
        ]

    def active_pods(self, job: str) -> list[Json]:
        """The Job's pods in the home cluster that have not ended."""
        return self.pods(job, "Pending", "Running")

    def wait_until_running(self, job: str, *, pods: int = 2, node: str = "") -> list[Json]:
        """Waits until this number of the Job's pods run on the virtual node."""
        wait_for(lambda: len(self.pods(job)) == pods, f"{pods} pods of {job} run", seconds=120)
        found = self.pods(job)
        assert {pod["spec"]["nodeName"] for pod in found} == {node or self.bridged.node}
        return found

    def wait_until_evicted(self, job: str) -> None:
        """Waits until Kueue has evicted the Job (not all pods were ready), and no pod is left."""
        before = self.evictions(job)
        wait_for(
            lambda: self.evictions(job) > before, f"Kueue evicts {job}", seconds=TIMEOUT + 30.0
        )
        assert self.condition(job, "Evicted", "reason") == "PodsReadyTimeout"
        wait_for(lambda: not self.active_pods(job), f"no pod of {job} is left")

    def end(self, job: str) -> None:
        """Lets the running pods of the Job complete."""
        for pod in self.pods(job):
            self.bridged.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/end")

    def wait_until_finished(self, job: str) -> None:
        """Waits until the Job has completed."""
        wait_for(lambda: self.condition(job, "Finished") == "True", f"{job} has completed")


@pytest.fixture
def queued(_kueue: None, bridged: Bridged) -> Iterator[Queued]:
    """The page's queue for the test's namespace; flavors for one virtual node each exist too."""
    bridged.home.kubectl("label", "namespace", bridged.namespace, f"{kueue_manager.SELECTS}=true")
    local = _of_page("LocalQueue")
    local["metadata"]["namespace"] = bridged.namespace
    flavors = [_of_page("ResourceFlavor") for _ in range(3)]
    for flavor, name, node in zip(
        flavors[1:], ("cheap", "dear"), (bridged.node, _second(bridged)), strict=True
    ):
        flavor["metadata"]["name"] = name
        flavor["spec"]["nodeLabels"] = {"kubernetes.io/hostname": node}
    items = [*flavors, _of_page("ClusterQueue"), local, _of_page("WorkloadPriorityClass")]
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    bridged.home.kubectl("apply", "-f", "-", input=objects)
    found = Queued(bridged)
    found.set_flavors({"virtual-nodes": QUOTA})
    try:
        yield found
    finally:
        bridged.kubectl("delete", "jobs", "--all", "--wait=true", "--timeout=60s")
        bridged.home.kubectl("delete", "-f", "-", input=objects, timeout=90)


@pytest.fixture
def pools(remote: Cluster) -> Iterator[ExitStack]:
    """The remote has two simulated nodes of the pool ``small``; a test can add nodes."""
    with ExitStack() as stack:
        for name in ("small-a", "small-b"):
            _add_node(stack, remote, name, pool="small")
        yield stack


def _add_node(stack: ExitStack, remote: Cluster, name: str, *, pool: str, size: int = SIZE) -> None:
    capacity = {"cpu": str(size), "memory": "16Gi", "pods": "20"}
    stack.enter_context(simulated_node(remote, name, capacity=capacity, pool=pool))


def _second(bridged: Bridged) -> str:
    return f"{bridged.node}-b"


@pytest.fixture
def second(pools: ExitStack, queued: Queued, limited: Limited, tmp_path: Path) -> Iterator[str]:
    """Another virtual node, for one simulated node of the pool ``large``."""
    bridged = queued.bridged
    _add_node(pools, bridged.remote, "large-a", pool="large", size=12)
    name = _second(bridged)
    with second_node(bridged, limited, name, tmp_path, "--node-selector", "pool=large"):
        try:
            wait_for(lambda: _is_ready(bridged, name), "the second virtual node is Ready")
            yield name
        finally:
            bridged.kubectl("delete", "jobs", "--all", "--wait=true", "--timeout=60s")
            wait_for(lambda: not bridged.home_pods(), "no pod is left")


small = pytest.mark.join("--node-selector", "pool=small")


def test_job_waits_for_quota_and_runs_on_the_virtual_node(queued: Queued) -> None:
    """Logs and exec work, and the remote has no Kueue."""
    queued.submit("first")
    pods = queued.wait_until_running("first")
    assert "kueue" not in queued.bridged.remote.kubectl("get", "crds", "-o", "name").stdout
    queued.submit("next")
    wait_for(lambda: queued.condition("next", "QuotaReserved") == "False", "the next Job waits")
    for pod in pods:
        name = pod["metadata"]["name"]
        _wait_for_log(queued.bridged, name, "started")
        assert queued.bridged.kubectl("exec", name, "--", "hostname").strip() == name
    assert not queued.pods("next")
    queued.end("first")
    queued.wait_until_finished("first")
    assert "ended" in queued.bridged.kubectl("logs", pods[0]["metadata"]["name"])
    queued.wait_until_running("next")


def test_suspended_job_is_resumed_by_its_queue_and_held_by_its_workload(queued: Queued) -> None:
    """Kueue owns ``suspend`` of a Job; ``active`` of the Workload is the user's."""
    queued.submit("first")
    first = uids(queued.wait_until_running("first"))
    queued.submit("held", suspend=True)
    wait_for(lambda: queued.condition("held", "QuotaReserved") == "False", "the quota is in use")
    assert not queued.active_pods("held")
    assert uids(queued.pods("first")) == first
    queued.end("first")
    queued.wait_until_finished("first")
    before = uids(queued.wait_until_running("held"))

    queued.bridged.kubectl("patch", "job", "held", "-p", '{"spec": {"suspend": true}}')
    wait_for(lambda: not before.keys() & uids(queued.active_pods("held")).keys(), "its pods end")
    queued.wait_until_running("held")

    queued.set_active("held", False)
    wait_for(lambda: not queued.active_pods("held"), "the pods of an inactive Workload end")
    wait_for(
        lambda: not any(name.startswith("held") for name in uids(queued.bridged.remote_pods())),
        "also in the remote",
    )
    queued.set_active("held", True)
    queued.wait_until_running("held")
    queued.end("held")
    queued.wait_until_finished("held")


def test_workload_of_higher_priority_preempts(queued: Queued) -> None:
    """Kueue evicts the other Job, and starts it again when the quota is free."""
    queued.submit("low")
    queued.wait_until_running("low")
    queued.submit("high", priority="urgent")
    queued.wait_until_running("high")
    wait_for(lambda: not queued.pods("low"), "the pods of the other Job end")
    assert queued.condition("low", "Preempted") == "True"
    queued.end("high")
    queued.wait_until_running("low")


def test_lost_remote_keeps_its_workload_and_nothing_is_evicted_on_return(queued: Queued) -> None:
    """The same pods run before, during and after the outage; a new Job waits for the return."""
    bridged = queued.bridged
    queued.submit("train", pods=1)
    before = uids(queued.wait_until_running("train", pods=1))
    wait_for(lambda: queued.condition("train", "PodsReady") == "True", "the pod is ready")
    uid = queued.workload("train")["metadata"]["uid"]
    bridged.remote.freeze_network()
    try:
        wait_for(
            lambda: not _is_ready(bridged, bridged.node),
            "the Node shows the loss",
            seconds=LOSS_SECONDS,
        )
        queued.submit("other", pods=1)
        wait_for(lambda: queued.condition("other", "Admitted") == "True", "the quota is free")
        wait_for(lambda: queued.evictions("other"), "its pod does not start", seconds=TIMEOUT + 30)
        assert queued.condition("train", "Admitted") == "True"
        assert queued.condition("train", "PodsReady") == "True", "the pod keeps its last status"
    finally:
        bridged.remote.thaw_network()
    wait_for(lambda: _is_ready(bridged, bridged.node), "the node returns", seconds=LOSS_SECONDS)
    wait_for(lambda: uids(queued.pods("train")) == before, "the same pods run")
    queued.wait_until_running("other", pods=1)
    assert queued.workload("train")["metadata"]["uid"] == uid
    assert queued.condition("train", "Admitted") == "True"
    assert queued.condition("train", "Evicted") == ""
    queued.end("train")
    queued.wait_until_finished("train")


def test_job_is_not_evicted_while_the_bridge_is_down_and_no_other_is_admitted(
    queued: Queued,
) -> None:
    """The home cluster reports the pods of a lost node as not ready; ``recoveryTimeout`` is 0."""
    bridged = queued.bridged
    queued.submit("train", pods=1)
    before = uids(queued.wait_until_running("train", pods=1))
    wait_for(lambda: queued.condition("train", "PodsReady") == "True", "the pod is ready")
    bridged.bridge.kill()
    wait_for(
        lambda: queued.condition("train", "PodsReady") == "False",
        "the pod is not ready",
        seconds=LOSS_SECONDS,
    )
    assert queued.condition("train", "PodsReady", "reason") == "WaitForRecovery"
    queued.submit("other", pods=1)
    wait_for(lambda: queued.workload("other"), "Kueue knows the other Job")
    time.sleep(TIMEOUT)
    assert queued.condition("train", "Admitted") == "True"
    assert queued.flavor("other") == "", "although its quota is free"
    bridged.bridge.start()
    wait_for(lambda: queued.condition("train", "PodsReady") == "True", "the pod is ready again")
    assert uids(queued.pods("train")) == before
    assert queued.condition("train", "Evicted") == ""
    queued.wait_until_running("other", pods=1)


@small
@pytest.mark.parametrize(
    "timeout",
    [
        pytest.param(False, id="waits"),
        pytest.param(True, id="given up", marks=pytest.mark.join("--unschedulable-timeout", "4")),
    ],
)
def test_pod_that_fits_the_sum_and_no_node_is_evicted_and_the_queue_goes_on(
    pools: ExitStack, queued: Queued, timeout: bool
) -> None:
    """Also if the bridge gives the pod up, and the Job replaces it, until Kueue's timeout."""
    queued.set_flavors({"virtual-nodes": str(2 * SIZE)})
    queued.submit("large", pods=1, cpu=str(SIZE + 1))
    wait_for(lambda: queued.condition("large", "Admitted") == "True", "the quota suffices")
    wait_for(queued.bridged.remote_pods, "the pod waits in the remote")
    queued.submit("small", pods=2, cpu=str(SIZE - 1))
    queued.wait_until_evicted("large")
    queued.wait_until_running("small")
    assert queued.evictions("small") == 0
    assert bool(queued.pods("large", "Failed")) == timeout
    assert queued.condition("large", "Finished") == ""


@small
def test_gang_starts_whole_or_is_evicted_whole(pools: ExitStack, queued: Queued) -> None:
    """Three pods fit the sum of two nodes, of which each holds one."""
    queued.set_flavors({"virtual-nodes": str(3 * SIZE)})
    queued.submit("gang", pods=3, cpu=str(SIZE - 3))
    queued.wait_until_running("gang")
    queued.submit("other", pods=1, cpu="1")
    wait_for(lambda: queued.workload("other"), "Kueue knows the other Job")
    started = uids(queued.active_pods("gang"))
    assert len(started) == 3
    assert queued.flavor("other") == "", "it waits until the gang is ready or evicted"
    queued.wait_until_evicted("gang")
    queued.wait_until_running("other", pods=1)

    _add_node(pools, queued.bridged.remote, "small-c", pool="small")
    found = queued.wait_until_running("gang", pods=3)
    assert not started.keys() & uids(found).keys(), "no pod of the first attempt goes on"
    wait_for(lambda: queued.condition("gang", "PodsReady") == "True", "the gang is ready")


@small
@pytest.mark.join("--unschedulable-timeout", "4")
def test_pod_given_up_goes_to_the_other_virtual_node_of_the_flavor(
    pools: ExitStack, queued: Queued, second: str
) -> None:
    """Kueue evicts nothing, and the Job does not count the pod as a failure."""
    _add_node(pools, queued.bridged.remote, "small-c", pool="small")
    wait_for(lambda: _cpus(queued.bridged) >= 3 * SIZE, "the first is the larger one")
    queued.set_flavors({"virtual-nodes": "100"})
    queued.submit("large", pods=1, cpu=str(SIZE + 2), backoffLimit=0)
    queued.wait_until_running("large", pods=1, node=second)
    [given_up] = queued.pods("large", "Failed")
    assert given_up["spec"]["nodeName"] == queued.bridged.node
    assert given_up["status"]["reason"] == "RemoteUnschedulable"
    assert queued.evictions("large") == 0


@small
def test_flavors_fill_in_order_and_an_evicted_job_tries_the_first_again(
    pools: ExitStack, queued: Queued, second: str
) -> None:
    """Kueue goes to the next flavor for lack of quota only."""
    queued.set_flavors({"cheap": str(2 * SIZE), "dear": "12"})
    queued.submit("first", pods=2, cpu="4")
    queued.wait_until_running("first")
    queued.submit("next", pods=1, cpu=str(SIZE + 2))
    queued.wait_until_running("next", pods=1, node=second)
    assert (queued.flavor("first"), queued.flavor("next")) == ("cheap", "dear")
    queued.bridged.kubectl("delete", "job", "first", "next")
    wait_for(lambda: not queued.bridged.home_pods(), "both end")

    queued.submit("again", pods=1, cpu=str(SIZE + 1))
    wait_for(lambda: queued.flavor("again") == "cheap", "the first flavor has the quota")
    queued.wait_until_evicted("again")
    wait_for(lambda: queued.flavor("again"), "Kueue admits it again", seconds=4 * BACKOFF)
    assert queued.flavor("again") == "cheap"


def _cpus(bridged: Bridged) -> int:
    allocatable = get_one(bridged.home, "node", bridged.node)["status"].get("allocatable") or {}
    return int(allocatable.get("cpu", "0"))


def _wait_for_log(bridged: Bridged, pod: str, text: str) -> None:
    wait_for(lambda: text in bridged.kubectl("logs", pod), f"the log of {pod} has {text}")


def _is_ready(bridged: Bridged, node: str) -> bool:
    return is_ready(get_one(bridged.home, "node", node))
