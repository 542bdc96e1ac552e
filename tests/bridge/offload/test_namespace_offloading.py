"""`bridge offload`, `unoffload` and `webhook`: written and removed objects, and webhook answers."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import connect
from bridge.install import installation
from bridge.net import accepted_connections
from bridge.offload import (
    mutating_admission_policy,
    namespace_offloading,
    pod_mutator_setup,
    standalone_webhook,
    webhook_configuration,
)
from bridge.offload.namespace_offloading import (
    OffloadSettings,
    offload_namespace,
    unoffload_namespace,
)
from bridge.offload.standalone_webhook import StandaloneWebhookSettings
from sync.kube.api_resources import MUTATING_WEBHOOKS, NAMESPACES, PODS, Object, Resource
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import FakeApi
from tests.fakeapi.faults import Fault
from tests.translators.test_offload_admission_patch import applied
from translators import offload_admission_patch
from translators.offload_admission_patch import Offloading

pytestmark = pytest.mark.usefixtures("soon")

BETA = mutating_admission_policy.policy_resources("v1beta1")
#: Timeout of all steps, for a busy machine.
SOON = 15.0


class World:
    """A home with the namespace ``shop``, whose API server may enforce policies."""

    def __init__(self, two: Clusters) -> None:
        self.home = two.home
        self.settings = OffloadSettings(two.settings.home, "shop", mechanism="auto")
        self.notified: list[str] = []
        self.namespace("shop")
        two.home.register(MUTATING_WEBHOOKS, status=False)

    def namespace(self, name: str) -> None:
        self.home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def serves_policies(self, *, obeys: bool = True) -> None:
        for resource in BETA:
            self.home.register(resource, status=False)
        if obeys:
            self.admits()

    def admits(self) -> None:
        """The API server mutates pods by the installed objects."""
        self.home.route("POST", "/api/v1/namespaces/shop/pods", self._admit)

    async def _admit(self, request: web.Request) -> web.Response:
        """Mutates the pod by the namespace's policy, as an API server does."""
        assert request.query["dryRun"] == "All"
        pod: Object = await request.json()
        offloading = offload_admission_patch.offloading_of(self.shop)
        served = _served(self.home, BETA[1]) and self.home.find(
            BETA[1], mutating_admission_policy.NAME
        )
        if offloading is not None and (served or self.home.objects(MUTATING_WEBHOOKS)):
            pod = applied(pod, offload_admission_patch.admission_patch(pod, offloading))
        return web.json_response(pod, status=201)

    @property
    def shop(self) -> Object:
        return self.home.get(NAMESPACES, "shop")

    def ours(self) -> list[str]:
        """The kinds of the bridge's existing objects."""
        kinds = (*BETA, MUTATING_WEBHOOKS)
        known = [it for it in kinds if it.api_version in self.home.store.registry.groups()]
        return [it.kind for it in known if _served(self.home, it) and self.home.objects(it)]

    async def offload(self, **changes: Any) -> Object:
        settings = replace(self.settings, **changes)
        async with asyncio.timeout(SOON):
            return await offload_namespace(settings, notify=self.notified.append)

    async def unoffload(self, namespace: str = "shop", **changes: Any) -> Object:
        settings = replace(self.settings, namespace=namespace, **changes)
        async with asyncio.timeout(SOON):
            return await unoffload_namespace(settings, notify=self.notified.append)


def offload(world: World, namespace: str = "shop", policy: str = "burst") -> None:
    """Labels the namespace as `bridge offload` does."""
    labels = {offload_admission_patch.LABEL_OFFLOAD: policy}
    world.home.update(NAMESPACES, namespace, {"metadata": {"labels": labels}})


def _served(api: FakeApi, resource: Resource) -> bool:
    try:
        api.objects(resource)
    except KeyError:
        return False
    return True


@pytest.fixture
def world(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> World:
    """Home, with short intervals."""
    monkeypatch.setattr(pod_mutator_setup, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(pod_mutator_setup, "ENFORCEMENT_SECONDS", 0.3)
    monkeypatch.setattr(standalone_webhook, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(standalone_webhook, "MIN_REGISTER_SECONDS", 0.01)
    return World(two)


async def test_offload_is_idempotent_and_unoffload_removes_everything(world: World) -> None:
    world.serves_policies()
    before = world.shop
    answer = await world.offload(offloading=Offloading("burst", {"tier": "burst", "a": "b"}))
    assert (answer["by"], len(answer["written"])) == ("policy", 3)
    meta = world.shop["metadata"]
    assert meta["labels"][offload_admission_patch.LABEL_OFFLOAD] == "burst"
    assert meta["annotations"] == {
        offload_admission_patch.ANNOTATION_NODE_SELECTOR: "a=b,tier=burst"
    }
    again = await world.offload(offloading=Offloading("burst", {"tier": "burst", "a": "b"}))
    assert again["written"] == []
    await world.unoffload()
    assert world.ours() == []
    after = world.shop["metadata"]
    assert after.get("labels") or before["metadata"].get("labels") == {} or {}
    assert not after.get("annotations")
    assert (await world.unoffload())["written"] == []


async def test_second_policy_replaces_the_first(world: World) -> None:
    world.serves_policies()
    await world.offload(offloading=Offloading("burst", {"a": "b"}))
    answer = await world.offload(offloading=Offloading("remote-only"))
    assert len(answer["written"]) == 1
    assert offload_admission_patch.offloading_of(world.shop) == Offloading("remote-only")


async def test_enforcement_stays_while_another_namespace_is_offloaded(world: World) -> None:
    world.serves_policies()
    world.namespace("blog")
    offload(world, "blog")
    await world.offload()
    assert (await world.unoffload())["others"] == ["blog"]
    assert len(world.ours()) == 2
    assert (await world.unoffload("blog"))["others"] == []
    assert world.ours() == []


async def test_unoffload_of_a_deleted_namespace_removes_enforcement(world: World) -> None:
    world.serves_policies()
    await world.offload()
    world.home.remove(NAMESPACES, "shop")
    await world.unoffload()
    assert world.ours() == []
    assert any("there is no namespace shop" in line for line in world.notified)


async def test_dry_run_of_offload_writes_nothing(world: World) -> None:
    world.serves_policies()
    answer = await world.offload(dry_run=True)
    assert len(answer["written"]) == 3
    assert world.home.writes() == []


async def test_unenforced_policy_is_an_error_that_names_the_webhook(world: World) -> None:
    world.serves_policies(obeys=False)
    with pytest.raises(PreflightError, match=r"feature gate .*--by webhook"):
        await world.offload()


async def test_missing_webhook_is_an_error_that_names_the_command(world: World) -> None:
    with pytest.raises(PreflightError, match="start `bridge webhook`"):
        await world.offload()
    assert offload_admission_patch.offloading_of(world.shop) == Offloading("burst")


async def test_in_cluster_webhook_is_used_without_the_policy_api(world: World) -> None:
    world.admits()
    world.home.put(
        webhook_configuration.service_configuration(
            {"name": "w", "labels": {}}, "cluster-bridge", "w"
        )
    )
    assert (await world.offload())["by"] == "webhook"
    await world.unoffload()
    assert world.home.find(MUTATING_WEBHOOKS, "w"), "it is its installation's"


async def test_failing_webhook_is_named(world: World) -> None:
    meta = {"name": "w", "labels": {}}
    world.home.put(webhook_configuration.service_configuration(meta, "cluster-bridge", "w"))
    with pytest.raises(PreflightError, match="webhook w does not mutate its pods"):
        await world.offload()


async def test_list_shows_namespaces_with_the_mechanism(world: World) -> None:
    assert await namespace_offloading.list_offloaded_namespaces(world.settings.home) == []
    world.serves_policies()
    await world.offload(offloading=Offloading("burst", {"a": "b"}))
    world.namespace("blog")
    offload(world, "blog", "remote-only")
    others: Object = {"tiers": [], "podSelector": {}}
    shop = {"namespace": "shop", "policy": "burst", "nodeSelector": {"a": "b"}, **others}
    blog = {"namespace": "blog", "policy": "remote-only", "nodeSelector": {}, **others}
    for by in ("policy", "", "webhook"):
        found = [{**blog, "by": by}, {**shop, "by": by}]
        assert await namespace_offloading.list_offloaded_namespaces(world.settings.home) == found
        if by == "policy":
            world.home.remove(BETA[1], mutating_admission_policy.NAME)
        else:
            world.home.put(
                webhook_configuration.service_configuration({"name": "w", "labels": {}}, "ns", "w")
            )


async def test_policy_mechanism_requires_the_policy_api(world: World) -> None:
    with pytest.raises(PreflightError, match="--by webhook"):
        await world.offload(mechanism="policy")
    assert world.home.writes() == []


async def test_unmanaged_object_with_the_same_name_is_not_changed(world: World) -> None:
    world.serves_policies()
    foreign = {
        **mutating_admission_policy.mutating_policy("v1beta1"),
        "metadata": {"name": mutating_admission_policy.NAME},
    }
    world.home.put(foreign)
    with pytest.raises(PreflightError, match="is not the bridge's"):
        await world.offload()
    with pytest.raises(PreflightError, match="is not the bridge's"):
        await world.unoffload()
    assert world.home.get(BETA[0], mutating_admission_policy.NAME)["spec"] == foreign["spec"]


async def test_namespace_with_a_bridge_cannot_be_offloaded(world: World) -> None:
    world.serves_policies()
    meta = {"name": "b", "namespace": "shop", "labels": installation.labels("b")}
    world.home.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {}})
    with pytest.raises(PreflightError, match="namespace shop has a bridge, b"):
        await world.offload()
    assert world.home.writes() == []
    world.home.fail(Fault("GET", "*/deployments", code=403, times=None))
    await world.offload()


async def test_unknown_namespace_is_an_error(world: World) -> None:
    with pytest.raises(PreflightError, match="kubectl create namespace"):
        await world.offload(namespace="nowhere")


def test_policy_and_webhook_cannot_block_a_cluster() -> None:
    """They match only the creation of pods in labelled namespaces, and fail open."""
    selector = {
        "matchExpressions": [
            {
                "key": offload_admission_patch.LABEL_OFFLOAD,
                "operator": "In",
                "values": list(offload_admission_patch.POLICIES),
            }
        ]
    }
    hook = webhook_configuration.url_configuration("https://192.0.2.1:1", b"pem", "p")["webhooks"][
        0
    ]
    spec = mutating_admission_policy.mutating_policy("v1")["spec"]
    for it, where in ((hook, hook), (spec, spec["matchConstraints"])):
        rules = where.get("rules") or where["resourceRules"]
        assert it["failurePolicy"] == "Ignore"
        assert where["namespaceSelector"] == selector
        assert [(r["operations"], r["resources"]) for r in rules] == [(["CREATE"], ["pods"])]
    assert hook["timeoutSeconds"] <= 2
    assert hook["sideEffects"] == "None"


class Running:
    """A running webhook."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stop = asyncio.Event()
        settings = StandaloneWebhookSettings(world.settings.home, "127.0.0.1", 0)
        self.task = asyncio.create_task(
            standalone_webhook.serve(settings, notify=world.notified.append, stop=self.stop)
        )

    async def registered(self) -> Object:
        home = self.world.home
        await home.until(
            lambda: home.find(MUTATING_WEBHOOKS, mutating_admission_policy.NAME), timeout=SOON
        )
        found: Object = home.get(MUTATING_WEBHOOKS, mutating_admission_policy.NAME)["webhooks"][0][
            "clientConfig"
        ]
        return found

    async def gone(self) -> None:
        home = self.world.home
        await home.until(
            lambda: not home.find(MUTATING_WEBHOOKS, mutating_admission_policy.NAME), timeout=SOON
        )


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Running]:
    run = Running(world)
    try:
        yield run
        run.stop.set()
        async with asyncio.timeout(SOON):
            await run.task
    finally:
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)


def _review(pod: Object, namespace: str = "shop") -> Object:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "7", "namespace": namespace, "object": pod},
    }


async def _post_review(config: Object, body: object) -> tuple[int, Object]:
    """Sends a review as an API server does, with the registered CA bundle."""
    trust = ssl.create_default_context(cadata=base64.b64decode(config["caBundle"]).decode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(config["url"], json=body, ssl=trust) as answer,
    ):
        text = await answer.text()
        found: Object = json.loads(text)["response"] if answer.status == 200 else {"text": text}
        return answer.status, found


async def test_webhook_is_registered_while_a_namespace_is_offloaded(world: World) -> None:
    async with running(world) as run:
        offload(world)
        await run.registered()
        await world.unoffload()
        await run.gone()
        offload(world)
        await run.registered()
    assert world.ours() == [], "a clean stop takes it back"


OTHER = "https://192.0.2.1:9443"


def register_another(world: World) -> None:
    """Another `bridge webhook` replaces the registration."""
    theirs = webhook_configuration.url_configuration(OTHER, b"theirs", "another-process")
    world.home.update(MUTATING_WEBHOOKS, mutating_admission_policy.NAME, theirs)


def registered_url(world: World) -> str:
    found = world.home.find(MUTATING_WEBHOOKS, mutating_admission_policy.NAME) or {
        "webhooks": [{"clientConfig": {}}]
    }
    return str(found["webhooks"][0]["clientConfig"].get("url", ""))


async def test_stop_keeps_the_registration_of_another_process(world: World) -> None:
    offload(world)
    async with running(world) as run:
        await run.registered()
        register_another(world)
    assert registered_url(world) == f"{OTHER}/mutate"


async def test_registration_of_another_process_is_replaced_only_after_its_removal(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    offload(world)
    async with running(world) as run:
        own = (await run.registered())["url"]
        register_another(world)
        await until(lambda: "another `bridge webhook`" in caplog.text)
        assert registered_url(world) == f"{OTHER}/mutate"
        world.home.remove(MUTATING_WEBHOOKS, mutating_admission_policy.NAME)
        await world.home.until(lambda: registered_url(world) == own, timeout=SOON)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110  # of a log
            await asyncio.sleep(0.01)


async def test_stale_registration_is_replaced_on_start(world: World) -> None:
    offload(world)
    world.home.put(webhook_configuration.url_configuration(OTHER, b"theirs", "killed"))
    async with running(world):
        await world.home.until(
            lambda: registered_url(world) not in ("", f"{OTHER}/mutate"), timeout=SOON
        )


@pytest.mark.parametrize("what", ["removed", "url", "caBundle"])
async def test_deleted_or_changed_registration_is_restored(world: World, what: str) -> None:
    offload(world)
    async with running(world) as run:
        before = await run.registered()
        if what == "removed":
            world.home.remove(MUTATING_WEBHOOKS, mutating_admission_policy.NAME)
        else:
            found = world.home.get(MUTATING_WEBHOOKS, mutating_admission_policy.NAME)["webhooks"]
            found[0]["clientConfig"][what] = {"url": f"{OTHER}/x", "caBundle": "eA=="}[what]
            world.home.update(
                MUTATING_WEBHOOKS, mutating_admission_policy.NAME, {"webhooks": found}
            )

        def is_right() -> bool:
            there = world.home.find(MUTATING_WEBHOOKS, mutating_admission_policy.NAME)
            return there is not None and there["webhooks"][0]["clientConfig"] == before

        await world.home.until(is_right, timeout=SOON)


def test_api_server_defaults_are_no_change() -> None:
    wanted = webhook_configuration.url_configuration("https://192.0.2.1:1", b"pem", "p")
    current = json.loads(json.dumps(wanted))
    current["webhooks"][0] |= {"matchPolicy": "Equivalent", "objectSelector": {}}
    assert webhook_configuration.is_up_to_date(current, wanted)
    current["webhooks"][0]["failurePolicy"] = "Fail"
    assert not webhook_configuration.is_up_to_date(current, wanted)


async def test_review_is_answered_with_the_patch_of_the_policy(world: World) -> None:
    offload(world, policy="remote-only")
    pod: Object = {"metadata": {}, "spec": {"containers": []}}
    async with running(world) as run:
        config = await run.registered()
        code, answer = await _post_review(config, _review(pod))
        assert (code, answer["uid"], answer["allowed"]) == (200, "7", True)
        patch = json.loads(base64.b64decode(answer["patch"]))
        assert patch == offload_admission_patch.admission_patch(pod, Offloading("remote-only"))
        for body in (_review(pod, "other"), _review({"spec": {"nodeName": "a"}})):
            assert await _post_review(config, body) == (200, {"uid": "7", "allowed": True})
        bad: list[object] = [{}, [], {"request": {"uid": "1", "namespace": "shop"}}, "x"]
        for nonsense in bad:
            assert (await _post_review(config, nonsense))[0] == 400


async def test_idle_connections_are_limited_and_do_not_block_reviews(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_connections, "MAX_WAITING", 8)
    offload(world)
    async with running(world) as run:
        config = await run.registered()
        port = int(config["url"].rpartition(":")[2].removesuffix("/mutate"))
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        assert (await _post_review(config, _review({"spec": {}})))[0] == 200
        async with asyncio.timeout(SOON):
            for reader, _ in opened[:12]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b"", "one more ends the oldest"
        for _, writer in opened:
            writer.transport.abort()


async def test_new_certificate_is_registered_before_it_is_served(world: World) -> None:
    offload(world)
    async with (
        connect(world.settings.home, side="home", notify=world.notified.append) as home,
        asyncio.TaskGroup() as group,
    ):
        hook = standalone_webhook.StandaloneWebhook(home, "127.0.0.1", world.notified.append)
        await hook.start(0)
        watching = group.create_task(hook.namespaces.run())
        await hook.namespaces.synced.wait()
        try:
            fault = world.home.fail(Fault("POST", "*webhookconf*", code=500, times=None))
            renewing = group.create_task(hook.renew())
            await world.home.until(lambda: fault.hits > 1, timeout=SOON)
            assert not renewing.done(), "what home does not trust is not shown"
            world.home.heal(fault)
            await renewing
            config = world.home.get(MUTATING_WEBHOOKS, mutating_admission_policy.NAME)["webhooks"][
                0
            ]["clientConfig"]
            assert base64.b64decode(config["caBundle"]).count(b"BEGIN CERTIFICATE") == 2
            assert (await _post_review(config, _review({"spec": {}})))[0] == 200
        finally:
            watching.cancel()
            await hook.stop()
    assert world.ours() == []


async def test_used_port_is_a_one_line_error(world: World) -> None:
    async with running(world) as run:
        await world.home.until(lambda: any("listens" in it for it in world.notified), timeout=SOON)
        port = int(
            next(it for it in world.notified if "listens" in it).split(";")[0].rpartition(":")[2]
        )
        settings = StandaloneWebhookSettings(world.settings.home, "127.0.0.1", port)
        with pytest.raises(PreflightError, match="--address or --port"):
            await standalone_webhook.serve(settings, notify=world.notified.append, stop=run.stop)


async def test_probe_creates_no_pod(world: World) -> None:
    world.serves_policies()
    await world.offload()
    assert world.home.objects(PODS) == []
