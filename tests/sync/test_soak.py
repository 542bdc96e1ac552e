"""Random operations of users, kubelets, networks and API servers: both clusters agree in the end.

The auditor of the end-to-end tests checks the result. Each seed is another sequence.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from e2e.audit.copied_objects import check_copies
from e2e.audit.findings import Finding
from e2e.audit.pod_history import History
from e2e.audit.pod_pairs import check_pods
from e2e.audit.unmanaged_changes import check_unmanaged, snapshot
from sync.kube import transport
from sync.kube.api_resources import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, SERVICES, Object
from tests import objects
from tests.fakeapi import FakeApi, Fault
from tests.sync.engine_harness import ADDRESS, NODE, REMOTE_NAMESPACE, EngineHarness

STEPS = 90
NAMES = ("a", "b", "c", "once-a", "once-b", "stays")
USES = ("cm/one", "cm/two", "secret/one", "secret/two")
#: The kinds that are audited.
KINDS = (PODS, CONFIG_MAPS, SECRETS, SERVICES, NAMESPACES)


class Mix:
    """Random steps from one seed."""

    def __init__(self, harness: EngineHarness, seed: int) -> None:
        self.harness = harness
        self.random = random.Random(seed)
        self.history = History()
        self.containers = 0
        self.before = snapshot(())

    def make(self) -> None:
        """Creates a pod unless its name is used."""
        name = self.random.choice(NAMES)
        if self.harness.home.find(PODS, name, "default") is None:
            policy = "Never" if name.startswith("once") else "Always"
            uses = self.random.sample(USES, self.random.randint(0, 2))
            labels = {"app": self.random.choice("xy")}
            self.harness.pod(name, uses=uses, labels=labels, restartPolicy=policy)

    def unmake(self) -> None:
        """Deletes a pod gracefully, with another grace period, or by force."""
        name = self.random.choice(NAMES)
        if self.harness.home.find(PODS, name, "default"):
            grace = self.random.choice((None, None, 20, 1, 0))
            self.harness.home.delete(PODS, name, "default", grace_seconds=grace)

    def edit(self) -> None:
        """Changes labels, annotations or an image."""
        name, value = self.random.choice(NAMES), str(self.random.randint(0, 5))
        pod = self.harness.home.find(PODS, name, "default")
        if pod is not None:
            container = {**pod["spec"]["containers"][0], "image": f"busybox:{value}"}
            changes: tuple[Object, ...] = (
                {"metadata": {"labels": {"soak": value}}},
                {"metadata": {"annotations": {"soak": value}}},
                {"metadata": {"labels": {"soak": None}}},
                {"spec": {"containers": [container]}},
            )
            self.harness.home.update(PODS, name, self.random.choice(changes), "default")

    def configure(self) -> None:
        """Creates, changes and deletes ConfigMaps, Secrets and Services."""
        name, data = self.random.choice(("one", "two")), {"k": self.random.choice("abc")}
        kind, made = self.random.choice(
            (
                (CONFIG_MAPS, objects.config_map(name, data=data)),
                (SECRETS, objects.secret(name, data={"k": "YQ=="}) | {"type": "Opaque"}),
                (SERVICES, _service(name, self.random.choice("xy"))),
            )
        )
        if self.random.random() < 0.7:
            self.harness.home.put(made)
        elif self.harness.home.find(kind, name, "default"):
            self.harness.home.delete(kind, name, "default")

    def kubelet(self, *, chance: float = 0.5) -> bool:
        """The remote's scheduler and kubelet advance some pods; returns whether any advanced."""
        for pod in self.harness.home.objects(PODS):
            self.history.saw_home(pod)
        acted = False
        for pod in self.harness.remote.objects(PODS, REMOTE_NAMESPACE):
            self.history.saw_remote(pod)
            if self.random.random() < chance:
                acted |= self._sync(pod)
        return acted

    def _sync(self, pod: Object) -> bool:
        name, harness = pod["metadata"]["name"], self.harness
        phase = (pod.get("status") or {}).get("phase") or "Pending"
        if name == "clash":
            return False
        if "deletionTimestamp" in pod["metadata"]:
            harness.remote.remove(PODS, name, REMOTE_NAMESPACE)
        elif pod["spec"].get("schedulingGates"):
            return False
        elif phase == "Pending":
            self.containers += 1
            main = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}
            main["containerID"] = f"containerd://{self.containers}"
            harness.report_running(name, containerStatuses=[main])
        elif phase == "Running" and name.startswith("once") and self.random.random() < 0.3:
            harness.report_terminated(self.random.choice(("Succeeded", "Failed")), name)
        else:
            return False
        return True

    def lose(self) -> None:
        """A user of the remote deletes a running pod."""
        pods = self.harness.remote.objects(PODS, REMOTE_NAMESPACE)
        running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
        if running:
            name = self.random.choice(running)["metadata"]["name"]
            self.harness.remote.remove(PODS, name, REMOTE_NAMESPACE)

    def fail(self) -> None:
        """A few requests fail."""
        fault = Fault(
            self.random.choice(("*", "POST", "PATCH", "DELETE", "GET")),
            self.random.choice(("*", "*/pods*", "*/configmaps*", "*/services*", "*/status")),
            times=self.random.randint(1, 3),
            **self.random.choice(_FAULTS),
        )
        self._either().fail(fault)

    def disturb(self) -> None:
        """Watches break, end, expire, or stay silent for a while."""
        api = self._either()
        how: Callable[[], object] = self.random.choice(
            (api.break_watches, api.end_watches, api.mute_watches, api.unmute_watches, api.compact)
        )
        how()
        if how == api.compact:
            api.expire_watches()

    async def restart(self) -> None:
        """Kills the bridge, changes objects without it, and starts another one."""
        await self.harness.stop()
        for _ in range(self.random.randint(0, 5)):
            self.step()
        await self.harness.start(settle=False)

    async def outage(self) -> None:
        """An API server goes down and comes back."""
        api = self._either()
        await api.stop()
        await asyncio.sleep(0.02)
        await api.start()

    def _either(self) -> FakeApi:
        return self.random.choice((self.harness.home, self.harness.remote))

    def step(self) -> None:
        """Runs one random step of another actor."""
        steps = (self.make, self.unmake, self.edit, self.configure, self.kubelet)
        faults = (self.lose, self.fail, self.disturb)
        (step,) = self.random.choices((*steps, *faults), (6, 4, 4, 4, 8, 2, 2, 2))
        step()

    async def begin(self) -> None:
        """Creates a mapped namespace, and unmanaged objects inside and outside of it."""
        await self.harness.start()
        self.harness.pod("stays")
        await self.harness.settle()
        for namespace, name in (("theirs", "x"), (REMOTE_NAMESPACE, "clash")):
            self.harness.remote.put(objects.pod(name, namespace, node="worker"))
            self.harness.remote.put(objects.config_map("theirs", namespace, data={"k": "v"}))
        self.harness.pod("clash")
        self.before = snapshot(_all(self.harness.remote))

    async def run(self) -> None:
        """Runs all steps."""
        for number in range(STEPS):
            self.step()
            if number % 30 == 20:
                await self.restart()
            elif number % 30 == 10:
                await self.outage()
            await asyncio.sleep(self.random.choice((0, 0, 0.002, 0.01)))

    async def quiet(self) -> None:
        """Ends all faults, and lets the remote's kubelet finish its work."""
        for api in (self.harness.home, self.harness.remote):
            api.heal()
            api.unmute_watches()
        await self.harness.settle(waiting=True)
        while self.kubelet(chance=1):
            await self.harness.settle(waiting=True)

    def findings(self) -> list[Finding]:
        """The findings of the auditor."""
        home, remote = _all(self.harness.home), _all(self.harness.remote)
        pods = [pod for pod in home if pod["kind"] == "Pod"]
        mine = [pod for pod in self.harness.remote.objects(PODS, REMOTE_NAMESPACE) if _is_ours(pod)]
        return [
            *check_pods(pods, mine, all_remote=remote, address=ADDRESS),
            *check_copies(home, remote, pods=pods, node=NODE),
            *check_unmanaged(self.before, remote),
            *self.history.findings(),
        ]


_FAULTS: tuple[dict[str, Any], ...] = (
    {"code": 429, "retry_after": 0},
    {"code": 500},
    {"code": 503},
    {"code": 410},
    {"drop": "before"},
    {"drop": "after"},
    {"delay": 0.02},
)


def _service(name: str, app: str) -> Object:
    meta = {"name": name, "namespace": "default"}
    # With all server-set fields, because `put` stores an object unchanged.
    port = {"port": 80, "targetPort": 80, "protocol": "TCP"}
    spec = {
        "selector": {"app": app},
        "ports": [port],
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _all(api: FakeApi) -> list[Object]:
    return [obj for kind in KINDS for obj in api.objects(kind)]


def _is_ours(pod: Object) -> bool:
    return "cluster-bridge.io/node" in (pod["metadata"].get("labels") or {})


@pytest.mark.parametrize("seed", range(6))
async def test_clusters_agree_after_a_random_load(
    harness: EngineHarness, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MIN_DELAY", 0.01)
    monkeypatch.setattr(transport, "MAX_DELAY", 0.01)
    mix = Mix(harness, seed)
    await mix.begin()
    await mix.run()
    await mix.quiet()
    assert mix.findings() == []
    assert harness.status("clash")["reason"] == "RemoteClash"

    for pod in harness.home.objects(PODS):
        harness.home.delete(PODS, pod["metadata"]["name"], "default")
    await mix.quiet()
    assert mix.findings() == []
    assert harness.home.objects(PODS) == []
    assert _left(harness) <= {"Namespace"}


def _left(harness: EngineHarness) -> set[str]:
    """The kinds of managed objects that remain in the remote."""
    return {obj["kind"] for obj in _all(harness.remote) if _is_ours(obj)}
