"""The real Kueue admits whole Jobs to one remote: with two remotes, queues, preemption and losses.

Kueue's first build takes some minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e import bridge_process, kueue_manager, placement_process, service_accounts
from e2e.bridge_process import Bridge
from e2e.clusters import specs
from e2e.clusters.cluster import Cluster
from e2e.clusters.pytest_fixture import running, settings_from_environment
from e2e.conftest import Bridged, joined, usual_options
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.workload_manifests import BUSYBOX
from sync.kueue.fits_controller import LOST_SECONDS
from translators.capacity import pod_requests

pytestmark = pytest.mark.timeout(400)

QUEUE = "virtual-nodes"
#: Seconds until the bridge reports that it cannot reach its remote, and home shows it.
LOSS_SECONDS = 90.0
#: Ends when a file exists, so that a test decides how long the pod runs.
SCRIPT = "echo started; until [ -e /tmp/end ]; do sleep 0.2; done; echo ended"


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


@pytest.fixture(scope="module")
def _second_remote(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Another remote, of the same size."""
    with running(request, specs(["second"]), settings_from_environment()) as found:
        yield found["second"]


@dataclass(frozen=True)
class Queued:
    """Two remotes, a namespace with a LocalQueue, and the process that decides the check."""

    first: Bridged
    second: Bridged
    free: int
    """The free CPU of each remote in millicores, before the test."""

    def cpu(self, percent: int) -> str:
        """A part of the free CPU of a remote."""
        return f"{self.free * percent // 100}m"

    @property
    def home(self) -> Cluster:
        return self.first.home

    def submit(
        self, name: str, pods: int, percent: int, *, priority: str = "", suspend: bool = False
    ) -> None:
        """Creates a Job whose pods run at the same time, each with this part of a remote's CPU."""
        labels = {"kueue.x-k8s.io/queue-name": QUEUE}
        if priority:
            labels["kueue.x-k8s.io/priority-class"] = priority
        container = {
            "name": "main",
            "image": BUSYBOX,
            "command": ["sh", "-c", SCRIPT],
            "resources": {"requests": {"cpu": self.cpu(percent), "memory": "10Mi"}},
        }
        pod: Json = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        }
        spec = {"parallelism": pods, "completions": pods, "template": {"spec": pod}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
        job["metadata"] = {"name": name, "labels": labels}
        self.first.apply(json.dumps({**job, "spec": {**spec, "suspend": suspend}}))

    def workload(self, job: str) -> Json:
        """The Workload of a Job; {} before Kueue has created it."""
        found = get(self.home, "workloads.kueue.x-k8s.io", namespace=self.first.namespace)
        return next((it for it in found if it["metadata"]["ownerReferences"][0]["name"] == job), {})

    def condition(self, job: str, kind: str) -> str:
        """The status of a condition of the Job's Workload."""
        conditions = (self.workload(job).get("status") or {}).get("conditions") or ()
        return next((str(it["status"]) for it in conditions if it["type"] == kind), "")

    def pods(self, job: str, phase: str = "Running") -> list[Json]:
        """The Job's pods at home in this phase."""
        return [
            it
            for it in self.first.home_pods()
            if it["metadata"]["labels"].get("job-name") == job
            and it["status"].get("phase") == phase
        ]

    def wait_until_running(self, job: str, pods: int, node: str) -> list[Json]:
        """Waits until so many pods of the Job run, all of them on this virtual node."""
        wait_for(lambda: len(self.pods(job)) == pods, f"{pods} pods of {job} run", seconds=120)
        found = self.pods(job)
        assert {it["spec"]["nodeName"] for it in found} == {node}
        return found

    def message(self, job: str) -> str:
        """The last message about the check in the Workload's status or in its conditions."""
        status = self.workload(job).get("status") or {}
        texts = [it.get("message", "") for it in status.get("admissionChecks") or ()]
        texts += [it.get("message", "") for it in status.get("conditions") or ()]
        return " ".join(texts)

    def wait_until_refused(self, job: str) -> str:
        """Waits until no remote can hold the Job; returns the texts of its Workload."""
        wait_for(lambda: "no remote can hold all pods" in self.message(job), f"{job} is refused")
        return self.message(job)

    def end(self, job: str) -> None:
        """Lets the running pods of the Job complete."""
        for pod in self.pods(job):
            self.first.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/end")


@pytest.fixture
def queued(
    _kueue: None, _second_remote: Cluster, bridged: Bridged, tmp_path: Path
) -> Iterator[Queued]:
    """A second virtual node, a queue for the test's namespace, and the deciding process."""
    home, node = bridged.home, f"{bridged.node}b"
    home.kubectl("label", "namespace", bridged.namespace, f"{kueue_manager.SELECTS}=true")
    near = service_accounts.at_home(home, tmp_path, node)
    far = service_accounts.in_remote(_second_remote, tmp_path)
    bridge = Bridge(near, far, tmp_path / "second.log", usual_options(node))
    try:
        with joined(bridge, node, home=home, remote=_second_remote) as second:
            service_accounts.bind(home, node, bridged.namespace)
            with _queues(bridged, second), placement_process.deciding(home, tmp_path):
                yield Queued(bridged, second, min(map(_wait_for_free_cpu, (bridged, second))))
    finally:
        if bridge.log.exists():
            print(bridge.log.read_text())
        service_accounts.take_away_at_home(home, node)


@contextmanager
def _queues(first: Bridged, second: Bridged) -> Iterator[None]:
    """The objects that `bridge kueue flavors` prints, and two priorities."""
    for each in (first, second):
        each.wait_until_schedulable()
    args = ("kueue", "flavors", first.node, second.node, "--queue", QUEUE)
    done = bridge_process.run(*args, "--namespace", first.namespace, home=first.home)
    assert done.returncode == 0, done.stderr
    first.home.kubectl("apply", "-f", "-", input=done.stdout)
    first.home.kubectl("apply", "-f", "-", input=json.dumps(_priorities()))
    try:
        yield
    finally:
        first.kubectl("delete", "jobs", "--all", "--wait=true", "--timeout=60s")
        first.home.kubectl("delete", "-f", "-", input=json.dumps(_priorities()))
        first.home.kubectl("delete", "-f", "-", input=done.stdout, timeout=90)


def _priorities() -> Json:
    items = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in (("low", 1), ("high", 100))
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


@contextmanager
def _half_occupied(queued: Queued, which: Bridged) -> Iterator[None]:
    """An unmanaged pod of this remote requests half of its only node, and home knows of it."""
    with _occupied(which.remote, queued.cpu(50)):
        below = queued.free * 60 // 100
        wait_for(
            lambda: 0 < _free_cpu(which) < below and _offered_cpu(which) < below,
            f"{which.node} publishes its room",
        )
        yield


@contextmanager
def _occupied(remote: Cluster, cpu: str) -> Iterator[None]:
    """An unmanaged pod of the remote requests this much of its only node."""
    container = {"name": "main", "image": BUSYBOX, "command": ["sleep", "3600"]}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "occupies", "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{**container, "resources": {"requests": {"cpu": cpu}}}],
        },
    }
    remote.kubectl("apply", "-f", "-", input=json.dumps(pod))
    try:
        remote.kubectl(
            "wait", "-n", "default", "--for=condition=Ready", "pod/occupies", "--timeout=60s"
        )
        yield
    finally:
        remote.kubectl("delete", "pod", "-n", "default", "occupies", "--ignore-not-found")


def _free_cpu(bridged: Bridged) -> int:
    """The most free CPU of a node in the published room, in millicores; 0 if there is no room."""
    found = get(bridged.home, "configmaps", namespace="cluster-bridge")
    rooms = [it for it in found if it["metadata"]["name"] == f"room-{bridged.node}"]
    nodes = [node for it in rooms for node in json.loads(it["data"]["room"])]
    return max((int(it["free"].get("cpu", 0)) for it in nodes), default=0)


def _offered_cpu(bridged: Bridged) -> int:
    """The CPU that the virtual node offers, in millicores."""
    status = get_one(bridged.home, "node", bridged.node)["status"]
    return pod_requests.parse_resource_list(status["allocatable"])[pod_requests.CPU]


def _wait_for_free_cpu(bridged: Bridged) -> int:
    """Waits until the bridge has published the room; returns `_free_cpu`."""
    return wait_for(lambda: _free_cpu(bridged), f"{bridged.node} publishes its room")


def test_job_is_admitted_to_the_only_remote_that_holds_all_of_it(queued: Queued) -> None:
    """Each pod alone would fit the other remote, too. Logs and exec work; no remote has Kueue."""
    with _half_occupied(queued, queued.first):
        queued.submit("train", 2, 35)
        pods = queued.wait_until_running("train", 2, queued.second.node)
        assert queued.first.remote_pods() == []
        for each in (queued.first, queued.second):
            assert "kueue" not in each.remote.kubectl("get", "crds", "-o", "name").stdout
        for pod in pods:
            name = pod["metadata"]["name"]
            _wait_for_log(queued.first, name, "started")
            assert queued.first.kubectl("exec", name, "--", "hostname").strip() == name
        queued.end("train")
        wait_for(lambda: queued.condition("train", "Finished") == "True", "the Job has completed")
        assert "ended" in queued.first.kubectl("logs", pods[0]["metadata"]["name"])


def test_suspended_job_waits_until_a_remote_has_room(queued: Queued) -> None:
    """The Workload names each remote's reason; the deletion of an unmanaged pod ends its wait."""
    with _half_occupied(queued, queued.first):
        with _half_occupied(queued, queued.second):
            queued.submit("train", 2, 35, suspend=True)
            message = queued.wait_until_refused("train")
            needed = pod_requests.format_amount(pod_requests.CPU, 2 * (queued.free * 35 // 100))
            for each in (queued.first, queued.second):
                reason = rf"requests {needed} of cpu; the node has (\S+) left of \1(;| |$)"
                assert re.search(f"{each.node}: {reason}", message), message
            assert queued.first.home_pods() == []
        queued.wait_until_running("train", 2, queued.second.node)


def test_room_for_one_job_is_promised_to_one(queued: Queued) -> None:
    """Three Jobs at once for two remotes: no pod of a Job waits in a remote for room."""
    for name in ("a", "b", "c"):
        queued.submit(name, 2, 30)
    wait_for(
        lambda: sum(len(queued.pods(name)) == 2 for name in ("a", "b", "c")) == 2,
        "two of the Jobs run",
        seconds=120,
    )
    (waiting,) = (name for name in ("a", "b", "c") if not queued.pods(name))
    queued.wait_until_refused(waiting)
    running_jobs = [name for name in ("a", "b", "c") if name != waiting]
    used = [{it["spec"]["nodeName"] for it in queued.pods(name)} for name in running_jobs]
    assert sorted(map(len, used)) == [1, 1]
    assert used[0] != used[1]
    queued.end(running_jobs[0])
    wait_for(lambda: len(queued.pods(waiting)) == 2, f"{waiting} runs then", seconds=120)


def test_workload_of_higher_priority_preempts(queued: Queued) -> None:
    """Kueue evicts the other Job when the quota is used; the new one starts once the pods of the
    other have ended in the only remote that holds either."""
    queue = get_one(queued.home, "clusterqueue", QUEUE)
    for resource in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
        if resource["name"] == "cpu":
            resource["nominalQuota"] = queued.cpu(75)
    patch = json.dumps({"spec": {"resourceGroups": queue["spec"]["resourceGroups"]}})
    queued.home.kubectl("patch", "clusterqueue", QUEUE, "--type=merge", "-p", patch)
    with _half_occupied(queued, queued.second):
        queued.submit("low", 2, 35, priority="low")
        queued.wait_until_running("low", 2, queued.first.node)
        queued.submit("high", 2, 35, priority="high")
        queued.wait_until_running("high", 2, queued.first.node)
        assert not queued.pods("low")
        assert queued.condition("low", "Preempted") == "True"
        queued.end("high")
        queued.wait_until_running("low", 2, queued.first.node)


def test_lost_remote_keeps_its_workload_and_nothing_is_evicted_on_return(queued: Queued) -> None:
    """The same pods run before, during and after the outage."""
    with _half_occupied(queued, queued.second):
        queued.submit("train", 2, 35)
        before = queued.wait_until_running("train", 2, queued.first.node)
    uid = queued.workload("train")["metadata"]["uid"]
    queued.first.remote.freeze_network()
    try:
        _wait_until_lost(queued.first)
        assert queued.condition("train", "Admitted") == "True"
    finally:
        queued.first.remote.thaw_network()
    wait_for(lambda: _is_ready(queued.first), "the node is Ready again", seconds=LOSS_SECONDS)
    queued.submit("next", 1, 5)
    wait_for(lambda: len(queued.pods("next")) == 1, "another Job runs", seconds=90)
    after = queued.workload("train")
    assert after["metadata"]["uid"] == uid
    assert queued.condition("train", "Admitted") == "True"
    assert queued.condition("train", "Evicted") == ""
    assert {it["metadata"]["uid"] for it in queued.pods("train")} == {
        it["metadata"]["uid"] for it in before
    }
    queued.end("train")
    wait_for(lambda: queued.condition("train", "Finished") == "True", "the Job has completed")


def test_workload_that_has_not_started_moves_from_a_lost_remote(queued: Queued) -> None:
    """Home's scheduler is suspended, so that no pod is bound when the remote is lost."""
    with _half_occupied(queued, queued.second):
        queued.home.suspend_component("kube-scheduler")
        try:
            queued.submit("train", 2, 35)
            wait_for(lambda: len(queued.pods("train", "Pending")) == 2, "Kueue starts the Job")
        except BaseException:
            queued.home.resume_component("kube-scheduler")
            raise
    queued.first.remote.freeze_network()
    try:
        _wait_until_lost(queued.first)
        wait_for(
            lambda: queued.second.node in json.dumps(queued.workload("train")["status"]),
            "Kueue admits the Workload to the other remote",
            seconds=LOST_SECONDS + 30,
        )
        queued.home.resume_component("kube-scheduler")
        queued.wait_until_running("train", 2, queued.second.node)
    finally:
        queued.home.resume_component("kube-scheduler")
        queued.first.remote.thaw_network()
    wait_for(lambda: _is_ready(queued.first), "the node is Ready again", seconds=LOSS_SECONDS)


def _wait_for_log(bridged: Bridged, pod: str, text: str) -> None:
    wait_for(lambda: text in bridged.kubectl("logs", pod), f"the log of {pod} has {text}")


def _is_ready(bridged: Bridged) -> bool:
    conditions = get_one(bridged.home, "node", bridged.node)["status"]["conditions"]
    return any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)


def _wait_until_lost(bridged: Bridged) -> None:
    wait_for(lambda: not _is_ready(bridged), "home shows the loss", seconds=LOSS_SECONDS)
