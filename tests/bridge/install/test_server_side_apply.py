"""Installations in home: applying is idempotent, rollouts are awaited, and leaving removes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.base.recommended_labels import APP, NAME_LABEL
from bridge.clusters.wait_for_clusters import WAITING_SUFFIX
from bridge.install import installation, installation_manifests, rollout, server_side_apply
from bridge.install.installation import Installation
from bridge.install.server_side_apply import INSTALLED_RESOURCES
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.rbac.rbac_manifests import HomePermissions
from sync.kube.api_resources import (
    DEPLOYMENTS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    SECRETS,
    Object,
)
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from tests.bridge.two_clusters import CANARY, Clusters, tls_api
from tests.fakeapi import FakeApi
from tests.objects import node
from tests.sync.engine_harness import NODE
from translators import offload_admission_patch

pytestmark = pytest.mark.usefixtures("soon")

WANTED = Installation(NODE, "image:1", HomePermissions(nodes=[NODE]))
WITH_WEBHOOK = replace(WANTED, offload_webhook=True)
WHERE = WANTED.namespace


@dataclass
class Home:
    """Home, its administrator's client, and the notifications."""

    two: Clusters
    client: KubeClient
    notified: list[str] = field(default_factory=list)

    async def apply(self, wanted: Installation = WANTED, *, dry: bool = False) -> list[str]:
        """Applies the installation, and returns the changes."""
        path = self.two.settings.remote.path
        assert path is not None
        made = installation_manifests.render(wanted, path.read_text())
        self.notified.clear()
        done = await server_side_apply.apply(
            self.client, made, node=wanted.node, dry_run=dry, notify=self.notified.append
        )
        assert CANARY not in "".join(self.notified)
        return [change for change, _ in done if change != "unchanged"]

    def there(self) -> list[str]:
        """All objects of the installed resources."""
        return [
            f"{it['kind']} {it['metadata']['name']}"
            for kind in INSTALLED_RESOURCES
            for it in self.two.home.objects(kind)
            if (it["metadata"].get("labels") or {}).get(NAME_LABEL) == APP
        ]

    def runs(self, name: str = WANTED.name, *, ready: bool = True, **pod_status: object) -> None:
        """Simulates home's controllers, which create the pods."""
        deployment = self.two.home.get(DEPLOYMENTS, name, WHERE)
        count = deployment["spec"]["replicas"] if ready else 0
        status: Object = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": count,
            "updatedReplicas": count,
            "availableReplicas": count,
        }
        self.two.home.update(DEPLOYMENTS, name, {"status": status}, namespace=WHERE)
        template = deployment["spec"]["template"]
        meta = {"name": f"{name}-1", "namespace": WHERE, **template["metadata"]}
        pod: Object = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": meta}
        self.two.home.put({**pod, "status": pod_status})

    def node_is(self, status: str) -> None:
        """Sets the Node's Ready condition."""
        made = node(NODE)
        made["status"] = {"conditions": [{"type": "Ready", "status": status, "message": "why"}]}
        self.two.home.put(made)

    async def waits(self, seconds: float = 1.0, wanted: Installation = WANTED) -> None:
        self.notified.clear()
        await rollout.wait_until_ready(
            self.client,
            wanted,
            timeout=seconds,
            notify=self.notified.append,
            meanwhile=lambda: asyncio.sleep(0),
        )


@pytest.fixture
async def remote_api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    """A remote whose kubeconfig can be stored in home's cluster."""
    async with tls_api(tmp_path) as api:
        yield api


@pytest.fixture
async def home(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(rollout, "POLL_SECONDS", 0.005)
    async with KubeClient(await load(two.settings.home, side="home")) as client:
        yield Home(two, client)


async def test_applying_again_changes_nothing(home: Home) -> None:
    assert set(await home.apply()) == {"created"}
    versions = {kind.plural: home.two.home.objects(kind) for kind in INSTALLED_RESOURCES}
    assert await home.apply() == []
    assert home.notified == []
    assert {kind.plural: home.two.home.objects(kind) for kind in INSTALLED_RESOURCES} == versions


async def test_dry_run_reports_changes_and_persists_nothing(home: Home) -> None:
    assert set(await home.apply(dry=True)) == {"created"}
    assert "would be created" in home.notified[0]
    assert home.there() == []
    await home.apply()
    before = home.there()
    assert await home.apply(replace(WANTED, replicas=5), dry=True) == ["changed"]
    assert home.notified[0].endswith("would be changed: spec.replicas")
    assert home.two.home.get(DEPLOYMENTS, WANTED.name, WHERE)["spec"]["replicas"] == 2
    assert home.there() == before


async def test_permission_that_is_no_longer_requested_is_removed(home: Home) -> None:
    await home.apply(replace(WANTED, all_namespaces=True))
    assert await home.apply() == ["removed"]
    assert "ClusterRoleBinding" in home.notified[0]


async def test_webhook_that_is_no_longer_requested_is_removed_completely(home: Home) -> None:
    await home.apply()
    before = home.there()
    assert set(await home.apply(WITH_WEBHOOK)) == {"created"}
    assert await home.apply(WITH_WEBHOOK) == []
    assert set(await home.apply(dry=True)) == {"removed"}
    assert len(home.there()) > len(before)
    assert set(await home.apply()) == {"removed"}
    assert home.notified[0].startswith("home: MutatingWebhookConfiguration ")
    assert home.there() == before


@pytest.mark.parametrize("left", ["all", "the credential"])
async def test_join_into_another_namespace_is_rejected(home: Home, left: str) -> None:
    await home.apply()
    if left == "the credential":
        home.two.home.remove(DEPLOYMENTS, WANTED.name, WHERE)
    before = {kind.plural: home.two.home.objects(kind) for kind in INSTALLED_RESOURCES}
    for dry in (True, False):
        with pytest.raises(PreflightError) as caught:
            await home.apply(replace(WANTED, namespace="elsewhere"), dry=dry)
    assert f"is installed in namespace {WHERE} (" in str(caught.value)
    assert f"bridge leave {NODE}" in str(caught.value)
    assert {kind.plural: home.two.home.objects(kind) for kind in INSTALLED_RESOURCES} == before
    assert home.notified == []


async def test_installation_without_deployment_and_secret_can_be_moved(home: Home) -> None:
    await home.apply()
    home.two.home.remove(DEPLOYMENTS, WANTED.name, WHERE)
    home.two.home.remove(SECRETS, WANTED.name, WHERE)
    await home.apply(replace(WANTED, namespace="elsewhere"))
    assert home.two.home.get(DEPLOYMENTS, WANTED.name, "elsewhere")


async def test_tenant_objects_with_installation_labels_do_not_block_a_join(home: Home) -> None:
    meta = {"name": WANTED.name, "namespace": "default", "labels": installation.labels(NODE)}
    home.two.home.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta})
    await home.apply()
    assert home.two.home.get(DEPLOYMENTS, WANTED.name, WHERE)


async def test_existing_namespace_is_not_modified(home: Home) -> None:
    theirs: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WHERE}}
    home.two.home.put(theirs)
    await home.apply()
    labels = home.two.home.get(NAMESPACES, WHERE)["metadata"].get("labels") or {}
    assert NAME_LABEL not in labels


async def test_namespace_that_is_being_deleted_is_awaited_and_created_again(home: Home) -> None:
    meta = {"name": WHERE, "finalizers": ["a.b/c"]}
    home.two.home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    home.two.home.delete(NAMESPACES, WHERE)
    applies = asyncio.create_task(home.apply())
    await asyncio.sleep(0.1)
    assert not applies.done()
    assert not home.two.home.writes()
    home.two.home.remove(NAMESPACES, WHERE)
    await applies
    assert home.two.home.get(DEPLOYMENTS, WANTED.name, WHERE)


async def test_new_credential_starts_a_rollout(home: Home) -> None:
    await home.apply()
    path = home.two.settings.remote.path
    assert path is not None
    path.write_text(path.read_text().replace(CANARY, f"{CANARY}-new"))
    assert await home.apply() == ["changed", "changed"]
    assert home.notified[0] == f"home: Secret {WHERE}/{WANTED.name} changed: data.kubeconfig"
    assert "annotations" in home.notified[1]


async def test_rollout_is_done_when_pods_are_updated_and_node_is_ready(home: Home) -> None:
    await home.apply()
    home.runs()
    home.node_is("True")
    await home.waits()
    assert home.notified == []


async def test_rollout_waits_for_the_webhook(home: Home) -> None:
    await home.apply(WITH_WEBHOOK)
    home.runs()
    home.node_is("True")
    name = installation.webhook_name(NODE)
    with pytest.raises(PreflightError, match="home has not begun to create the pods"):
        await home.waits(wanted=WITH_WEBHOOK)
    home.runs(name, ready=False)
    with pytest.raises(PreflightError, match=f"0 of 2 pods of {name} are ready"):
        await home.waits(wanted=WITH_WEBHOOK)
    home.runs(name)
    await home.waits(wanted=WITH_WEBHOOK)


async def test_rollout_waits_for_the_node(home: Home) -> None:
    await home.apply()
    home.runs()
    with pytest.raises(PreflightError, match=r"node \S+ is not registered yet"):
        await home.waits()
    home.node_is("False")
    with pytest.raises(PreflightError, match="is not Ready: why"):
        await home.waits()
    assert len(home.notified) == 1, "each trouble is notified once"


def container(**status: object) -> list[Object]:
    return [{"name": "bridge", "ready": False, "restartCount": 0, **status}]


async def test_image_pull_error_is_reported(home: Home) -> None:
    await home.apply()
    waits = {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}
    home.runs(ready=False, containerStatuses=container(state=waits))
    with pytest.raises(PreflightError, match="not Ready after") as caught:
        await home.waits()
    assert "ErrImagePull: no such host" in str(caught.value)
    assert "--image names another" in home.notified[0]


async def test_image_pull_error_of_several_pods_is_reported_once(home: Home) -> None:
    """Although each pod retries, with different messages."""
    await home.apply()
    states = [
        {"waiting": {"reason": reason, "message": f"no such host {number}"}}
        for number, reason in enumerate(("ErrImagePull", "ImagePullBackOff"))
    ]
    both = [container(state=state, image="bridge:1")[0] for state in states]
    home.runs(ready=False, containerStatuses=both)
    with pytest.raises(PreflightError):
        await home.waits()
    assert len([line for line in home.notified if "bridge:1" in line]) == 1


async def test_unschedulable_pod_is_reported(home: Home) -> None:
    await home.apply()
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}
    home.runs(ready=False, conditions=[condition])
    with pytest.raises(PreflightError, match="is unschedulable: 0/1 nodes"):
        await home.waits()


_APPROVE = (
    "home: waiting for the approval of certificate signing request kubelet-client-far-0123456789: "
    "kubectl certificate approve kubelet-client-far-0123456789"
)


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (
            f"12:00:00 warning: remote: GET /version: refused{WAITING_SUFFIX}",
            "remote: GET /version: refused",
        ),
        (f"12:00:00 info: {_APPROVE}", _APPROVE),
        (json.dumps({"level": "info", "event": _APPROVE, "node": "far"}), _APPROVE),
    ],
    ids=["cluster", "approval", "json"],
)
async def test_reason_of_a_waiting_pod_is_reported_once(
    home: Home, line: str, reported: str
) -> None:
    async def log(request: web.Request) -> web.Response:
        assert request.query["tailLines"] == "1"
        return web.Response(text=f"{line}\n")

    await home.apply()
    home.runs(ready=False, containerStatuses=container(state={"running": {}}))
    pod = f"{WANTED.name}-1"
    home.two.home.route("GET", f"/api/v1/namespaces/{WHERE}/pods/{pod}/log", log)
    with pytest.raises(PreflightError, match=f"{reported}; see"):
        await home.waits()
    assert home.notified == [f"home: pod {pod} waits: {reported}"]


async def test_crash_loop_ends_the_wait(home: Home) -> None:
    await home.apply()
    ended = {"terminated": {"exitCode": 1, "message": "✓ a step\nerror: may not list nodes\n"}}
    crashed = container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended)
    crashed[0]["restartCount"] = 1
    home.runs(ready=False)
    home.two.home.clear_log()
    waiting_for_it = asyncio.create_task(home.waits(60))
    pods = f"/api/v1/namespaces/{WHERE}/pods"
    await home.two.home.until(lambda: len(home.two.home.requests("GET", pods)) > 1)
    home.runs(ready=False, containerStatuses=crashed)
    with pytest.raises(PreflightError, match=r"is in a crash loop.*error: may not list nodes"):
        await waiting_for_it
    assert any("terminated: ✓ a step | error: may not list nodes" in line for line in home.notified)


async def test_crashed_pods_are_replaced_on_a_second_join(home: Home) -> None:
    """The cause may be fixed, and the kubelet's back-off would take minutes."""
    await home.apply()
    crashed = container(state={"waiting": {"reason": "CrashLoopBackOff"}})
    crashed[0]["restartCount"] = 5
    home.runs(ready=False, containerStatuses=crashed)
    await home.apply()
    with pytest.raises(PreflightError, match="is not Ready after"):
        await home.waits()
    assert home.two.home.objects(PODS) == []
    assert home.notified[0] == f"home: pod {WANTED.name}-1 was in a crash loop; replacing it"


async def test_crash_of_the_previous_revision_does_not_end_the_wait(home: Home) -> None:
    await home.apply()
    crashed = container(state={"waiting": {"reason": "CrashLoopBackOff"}})
    crashed[0]["restartCount"] = 5
    home.runs(ready=False, containerStatuses=crashed)
    await home.apply(replace(WANTED, image="image:2"))
    with pytest.raises(PreflightError, match="is not Ready after"):
        await home.waits()


async def left(home: Home, *, force: bool = False) -> list[str]:
    confirmed: list[str] = []
    settings = LeaveSettings(NODE, home.two.settings.home, None, force=force)
    home.notified.clear()

    def confirm(lines: list[str]) -> bool:
        confirmed.extend(lines)
        return True

    assert await leave(settings, notify=home.notified.append, confirm=confirm)
    assert CANARY not in "".join([*confirmed, *home.notified])
    return confirmed


async def test_leave_uses_the_stored_kubeconfig_and_removes_the_installation(home: Home) -> None:
    await home.apply(replace(WANTED, bound_namespaces=["default"]))
    confirmed = await left(home)
    assert f"home:   Deployment {WHERE}/{WANTED.name}" in confirmed
    assert f"home:   Namespace {WHERE}, if nothing else is in it" in confirmed
    assert home.there() == []


async def test_leave_removes_the_webhook_after_its_pods_terminated(home: Home) -> None:
    await home.apply(WITH_WEBHOOK)
    name = installation.webhook_name(NODE)
    home.runs(name)
    label = {"metadata": {"labels": {offload_admission_patch.LABEL_OFFLOAD: "burst"}}}
    home.two.home.update(NAMESPACES, "default", label)
    home.two.home.clear_log()
    leaving = asyncio.create_task(left(home))
    scale = f"/apis/apps/v1/namespaces/{WHERE}/deployments/{name}/scale"
    await home.two.home.until(lambda: home.two.home.requests("PATCH", scale))
    assert not leaving.done()
    home.two.home.remove(PODS, f"{name}-1", WHERE)
    assert f"home:   MutatingWebhookConfiguration {name}" in await leaving
    assert home.there() == []
    deleted = [it.path for it in home.two.home.writes() if it.method == "DELETE"]
    assert "mutatingwebhookconfigurations" in deleted[0], "no pod waits for a deleted webhook"
    assert any("namespace(s) default are offloaded" in line for line in home.notified)


async def test_network_policy_is_removed_with_the_relay(home: Home) -> None:
    await home.apply()
    assert len(home.two.home.objects(NETWORK_POLICIES)) == 1
    await home.apply(replace(WANTED, permissions=replace(WANTED.permissions, network="flat")))
    assert home.two.home.objects(NETWORK_POLICIES) == []


async def test_manual_bindings_are_removed_and_others_stay(home: Home) -> None:
    from bridge.rbac import rbac_manifests

    await home.apply()
    for account in (WANTED.account, rbac_manifests.Account(WHERE, "another")):
        for made in rbac_manifests.namespace_bindings(account, ["default"]):
            home.two.home.put(made)
    await left(home)
    assert [it["subjects"][0]["name"] for it in home.two.home.objects(ROLE_BINDINGS)] == ["another"]


async def test_bridges_are_stopped_before_any_deletion(home: Home) -> None:
    await home.apply()
    home.two.home.clear_log()
    await left(home)
    deployment = f"/apis/apps/v1/namespaces/{WHERE}/deployments/{WANTED.name}"
    writes = [(it.method, it.path) for it in home.two.home.writes()]
    stopped = writes.index(("PATCH", f"{deployment}/scale"))
    assert all(method != "DELETE" for method, _ in writes[:stopped])
    assert ("DELETE", deployment) in writes[stopped:]


async def test_namespace_with_unmanaged_objects_stays(home: Home) -> None:
    await home.apply()
    theirs: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "theirs", "namespace": WHERE},
    }
    home.two.home.put(theirs)
    await left(home)
    assert f"home: namespace {WHERE} stays: it holds ConfigMap theirs" in home.notified
    assert home.there() == [f"Namespace {WHERE}"]


async def test_leave_without_list_permissions_ignores_installations(home: Home) -> None:
    """The account may not list Deployments, so no installation is searched."""
    home.two.home.api.authorize = lambda spec: (
        spec["resourceAttributes"]["resource"] != "deployments"
    )
    home.node_is("False")
    with pytest.raises(PreflightError):
        await left(home)
    assert not any("deployments" in it.path for it in home.two.home.log)
    assert home.two.home.objects(SECRETS) == []
    assert home.two.home.objects(PODS) == []
    assert home.two.home.objects(NODES) != []
