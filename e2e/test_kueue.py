"""The real Kueue at home admits Jobs to a virtual node, by a ResourceFlavor and its quota.

Kueue's first build takes some minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import kueue_manager
from e2e.clusters.cluster import Cluster
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, uids, wait_for
from e2e.workload_manifests import BUSYBOX

pytestmark = pytest.mark.timeout(400)

#: Seconds until the bridge reports that it cannot reach its remote, and home shows it.
LOSS_SECONDS = 90.0
#: The quota of the flavor, and the request of each pod: the quota is enough for two pods.
QUOTA, REQUEST = "100m", "40m"
#: Ends when a file exists, so that a test decides how long the pod runs.
SCRIPT = "echo started; until [ -e /tmp/end ]; do sleep 0.2; done; echo ended"
_API = "kueue.x-k8s.io/v1beta2"


@pytest.fixture(scope="module")
def _kueue(
    clusters: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Home has Kueue."""
    folder = tmp_path_factory.mktemp("kueue")
    try:
        with kueue_manager.running(clusters["home"], settings_from_environment(), folder):
            yield
    finally:
        log = folder / "kueue.log"
        print(log.read_text()[-20_000:] if log.exists() else "Kueue did not start")


@dataclass(frozen=True)
class Queued:
    """A virtual node, and a namespace with a LocalQueue for it."""

    bridged: Bridged

    def submit(self, name: str, *, priority: str = "low") -> None:
        """Creates a Job of two pods, which use the whole quota."""
        labels = {
            "kueue.x-k8s.io/queue-name": self.bridged.node,
            "kueue.x-k8s.io/priority-class": f"{self.bridged.node}-{priority}",
        }
        container = {
            "name": "main",
            "image": BUSYBOX,
            "command": ["sh", "-c", SCRIPT],
            "resources": {"requests": {"cpu": REQUEST}},
        }
        pod: Json = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels},
            "spec": {"parallelism": 2, "completions": 2, "template": {"spec": pod}},
        }
        self.bridged.apply(json.dumps(job))

    def workload(self, job: str) -> Json:
        """The Workload of a Job; {} before Kueue has created it."""
        bridged = self.bridged
        found = get(bridged.home, "workloads.kueue.x-k8s.io", namespace=bridged.namespace)
        return next((it for it in found if it["metadata"]["ownerReferences"][0]["name"] == job), {})

    def condition(self, job: str, kind: str) -> str:
        """The status of a condition of the Job's Workload."""
        conditions = (self.workload(job).get("status") or {}).get("conditions") or ()
        return next((str(it["status"]) for it in conditions if it["type"] == kind), "")

    def pods(self, job: str) -> list[Json]:
        """The Job's running pods at home."""
        return [
            it
            for it in self.bridged.home_pods()
            if it["metadata"]["labels"].get("job-name") == job
            and it["status"].get("phase") == "Running"
        ]

    def wait_until_running(self, job: str) -> list[Json]:
        """Waits until both pods of the Job run on the virtual node."""
        wait_for(lambda: len(self.pods(job)) == 2, f"two pods of {job} run", seconds=120)
        found = self.pods(job)
        assert {it["spec"]["nodeName"] for it in found} == {self.bridged.node}
        return found

    def end(self, job: str) -> None:
        """Lets the running pods of the Job complete."""
        for pod in self.pods(job):
            self.bridged.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/end")

    def wait_until_finished(self, job: str) -> None:
        """Waits until the Job has completed."""
        wait_for(lambda: self.condition(job, "Finished") == "True", f"{job} has completed")


@pytest.fixture
def queued(_kueue: None, bridged: Bridged) -> Iterator[Queued]:
    """A queue for the test's namespace, with a quota of the virtual node."""
    bridged.home.kubectl("label", "namespace", bridged.namespace, f"{kueue_manager.SELECTS}=true")
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": _queue_objects(bridged)})
    bridged.home.kubectl("apply", "-f", "-", input=objects)
    try:
        yield Queued(bridged)
    finally:
        bridged.kubectl("delete", "jobs", "--all", "--wait=true", "--timeout=60s")
        bridged.home.kubectl("delete", "-f", "-", input=objects, timeout=90)


def _queue_objects(bridged: Bridged) -> list[Json]:
    """A flavor for the virtual node, its queue, and two priorities; all have the node's name."""
    name = bridged.node
    flavor = {
        "nodeLabels": {"kubernetes.io/hostname": name},
        "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
    }
    quota = {"name": name, "resources": [{"name": "cpu", "nominalQuota": QUOTA}]}
    queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
    }
    meta = {"name": name}
    return [
        {"apiVersion": _API, "kind": "ResourceFlavor", "metadata": meta, "spec": flavor},
        {"apiVersion": _API, "kind": "ClusterQueue", "metadata": meta, "spec": queue},
        {
            "apiVersion": _API,
            "kind": "LocalQueue",
            "metadata": {**meta, "namespace": bridged.namespace},
            "spec": {"clusterQueue": name},
        },
        *(
            {
                "apiVersion": _API,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"{name}-{priority}"},
                "value": value,
            }
            for priority, value in (("low", 1), ("high", 100))
        ),
    ]


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


def test_workload_of_higher_priority_preempts(queued: Queued) -> None:
    """Kueue evicts the other Job, and starts it again when the quota is free."""
    queued.submit("low")
    queued.wait_until_running("low")
    queued.submit("high", priority="high")
    queued.wait_until_running("high")
    wait_for(lambda: not queued.pods("low"), "the pods of the other Job end")
    assert queued.condition("low", "Preempted") == "True"
    queued.end("high")
    queued.wait_until_running("low")


def test_lost_remote_keeps_its_workload_and_nothing_is_evicted_on_return(queued: Queued) -> None:
    """The same pods run before, during and after the outage."""
    bridged = queued.bridged
    queued.submit("train")
    before = uids(queued.wait_until_running("train"))
    uid = queued.workload("train")["metadata"]["uid"]
    bridged.remote.freeze_network()
    try:
        wait_for(lambda: not _is_ready(bridged), "home shows the loss", seconds=LOSS_SECONDS)
        assert queued.condition("train", "Admitted") == "True"
    finally:
        bridged.remote.thaw_network()
    wait_for(lambda: _is_ready(bridged), "the node is Ready again", seconds=LOSS_SECONDS)
    wait_for(lambda: uids(queued.pods("train")) == before, "the same pods run")
    assert queued.workload("train")["metadata"]["uid"] == uid
    assert queued.condition("train", "Admitted") == "True"
    assert queued.condition("train", "Evicted") == ""
    queued.end("train")
    queued.wait_until_finished("train")


def _wait_for_log(bridged: Bridged, pod: str, text: str) -> None:
    wait_for(lambda: text in bridged.kubectl("logs", pod), f"the log of {pod} has {text}")


def _is_ready(bridged: Bridged) -> bool:
    conditions = get_one(bridged.home, "node", bridged.node)["status"]["conditions"]
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
