"""Objects of the remote with wrong types: each is skipped, counted and logged once, and everything
else proceeds."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from typing import Any

import orjson
import pytest
from aiohttp import web

from sync.cache import cache_share
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import MalformedResponse
from sync.kube.api_resources import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_QUOTAS,
    Object,
    Resource,
)
from sync.kube.client import KubeClient
from sync.kube.response_limits import DECODED_LIMIT
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, event, node, pod
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from tests.sync.informer_harness import caught_up, running_informer
from tests.sync.loop_steps import LoopSteps
from tests.translators.test_remote_shapes import WRONG, places, replaced
from translators.pods.status_limits import TEXT_LIMIT

#: Malicious objects of each resource in one run.
EACH = 12


def put_raw(api: FakeApi, resource: Resource, obj: Object, name: str, namespace: str) -> None:
    """Stores the object without validation, and notifies watches."""
    kind = api.store.registry.of(resource)
    old = api.store.find(kind, namespace, name)
    meta = obj["metadata"]
    meta = {"uid": f"uid of {name}", **meta} if isinstance(meta, dict) else meta
    api.store.commit(kind, old, {**obj, "metadata": meta})


def poisoned(rng: random.Random, whole: Object) -> Object:
    """The object with some replaced parts, except for those that the fake server selects by."""
    kept: set[tuple[Any, ...]] = {("metadata", it) for it in ("name", "namespace", "uid", "labels")}
    kept |= {("metadata",), ("involvedObject",), ("involvedObject", "kind")}
    for _ in range(rng.randint(1, 3)):
        path = rng.choice([it for it in places(whole) if it not in kept])
        whole = replaced(whole, path, rng.choice(WRONG))
    return whole


@pytest.mark.parametrize("seed", range(6))
async def test_malformed_objects_hold_up_no_other(harness: EngineHarness, seed: int) -> None:
    rng = random.Random(seed)
    await harness.start_running()
    template = harness.remote_pod() or {}
    bad_event = event(template, "Started")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": REMOTE_NAMESPACE},
        "spec": {"hard": {"requests.cpu": "1"}},
        "status": {"used": {"requests.cpu": "1"}},
    }
    space = harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)
    for number in range(EACH):
        for resource, whole, namespace in (
            (PODS, template, REMOTE_NAMESPACE),
            (NODES, node("worker"), ""),
            (EVENTS, bad_event, REMOTE_NAMESPACE),
            (RESOURCE_QUOTAS, quota, REMOTE_NAMESPACE),
            (NAMESPACES, space, ""),
            (CONFIG_MAPS, config_map("c", REMOTE_NAMESPACE), REMOTE_NAMESPACE),
        ):
            name = f"bad-{number}"
            made: Object = copy.deepcopy(whole)
            made["metadata"] |= {"name": name, "uid": f"uid of {name}"}
            put_raw(harness.remote, resource, poisoned(rng, made), name, namespace)
    # The same to the pod that runs, and then a valid state of it.
    for _ in range(EACH):
        put_raw(harness.remote, PODS, poisoned(rng, template), "a", REMOTE_NAMESPACE)
    harness.pod("good")
    await harness.remote.until(lambda: harness.remote_pod("good"))
    harness.report_running("good")
    await harness.home.until(lambda: harness.status("good").get("phase") == "Running")
    harness.assert_running()
    [pods] = [it for it in harness.engine.watches if it is harness.engine.remote_pods]
    assert pods.error is None
    assert not any(pods.client.metrics.defects.values()), pods.client.metrics.defects
    assert all(it.results["defect"] == 0 for it in harness.engine.controllers)
    assert pods.client.limits.rejected["malformed"] > 0


async def test_malformed_object_keeps_its_previous_state_and_is_logged_once(
    api: FakeApi, client_for: ClientFor, caplog: pytest.LogCaptureFixture
) -> None:
    client = await client_for(api, "remote")
    informer = Informer(client, PODS)
    api.put(pod("a", labels={"v": "1"}))
    async with running_informer(informer):
        for number in range(3):
            wrong: Any = {**api.get(PODS, "a", "default"), "status": f"x{number}"}
            put_raw(api, PODS, wrong, "a", "default")
        api.put(pod("b"))
        await caught_up(api, informer)
        known = informer.store.get(Key("default", "a")) or {}
        assert known["metadata"]["labels"] == {"v": "1"}
        assert informer.store.get(Key("default", "b")) is not None
        # A list does not remove it either.
        await informer.refresh()
        assert informer.store.get(Key("default", "a")) is known
    assert client.limits.rejected["malformed"] == 4
    messages = [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]
    [message] = messages
    assert message.startswith("remote: pods: an object has a part of the wrong type: status; ")


async def test_malformed_deletion_removes_the_known_state(
    api: FakeApi, client_for: ClientFor
) -> None:
    informer = Informer(await client_for(api, "remote"), PODS)
    api.put(pod("a"))
    gone: list[Object | None] = []
    informer.on_change(lambda old, new: gone.append(old) if new is None else None)
    async with running_informer(informer):
        wrong: Any = {**api.get(PODS, "a", "default"), "status": []}
        put_raw(api, PODS, wrong, "a", "default")
        api.remove(PODS, "a", "default")
        await caught_up(api, informer)
        assert len(informer.store) == 0
    assert [it["status"] for it in gone if it] != [[]]


async def test_status_of_a_deleted_pod_is_limited(api: FakeApi, client_for: ClientFor) -> None:
    informer = Informer(await client_for(api, "remote"), PODS)
    last: list[Any] = []
    informer.on_change(lambda old, new: last.append(old) if new is None else None)
    async with running_informer(informer):
        api.put({**pod("a"), "status": {"phase": "Failed", "message": "x" * 2**18}})
        await caught_up(api, informer)
        api.remove(PODS, "a", "default")
        await caught_up(api, informer)
    assert [len(pod["status"]["message"]) for pod in last] == [TEXT_LIMIT]


async def test_malformed_responses_to_requests_are_errors(api: FakeApi, client: KubeClient) -> None:
    wrong = orjson.dumps({"metadata": {"name": "a", "labels": 5}})

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=wrong)

    api.route("*", PODS.path("a", namespace="default"), answer)
    api.route("POST", PODS.path(namespace="default"), answer)
    with pytest.raises(MalformedResponse, match=r"metadata\.labels"):
        await client.get(PODS, "a", namespace="default")
    with pytest.raises(MalformedResponse, match=r"metadata\.labels"):
        await client.create(PODS, pod("a"), namespace="default")
    with pytest.raises(MalformedResponse, match=r"metadata\.labels"):
        await client.patch(PODS, "a", {}, namespace="default")


async def test_objects_beyond_the_memory_are_skipped(
    api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No store takes all of it, deletions make room, and a closed informer gives its part back."""
    monkeypatch.setattr(cache_share, "CACHE_LIMIT", 2**20)
    client = await client_for(api, "remote")
    events, pods = Informer(client, CONFIG_MAPS), Informer(client, PODS)
    async with running_informer(pods):
        async with running_informer(events):
            for number in range(100):
                api.put({**config_map(f"c{number}"), "data": {"a": "x" * 20_000}})
            api.put(pod("a"))
            await caught_up(api, events, pods)
            assert 30 <= len(events.store) <= 40  # three quarters of seven eighths of a megabyte
            assert len(pods.store) == 1
            assert client.limits.rejected["memory"] == 100 - len(events.store)
            for number in range(100):
                api.remove(CONFIG_MAPS, f"c{number}", "default")
            api.put({**config_map("later"), "data": {"a": "x" * 20_000}})
            await caught_up(api, events)
            assert len(events.store) == 1
        assert 0 < client.limits.cached < 10_000


async def test_other_work_continues_while_a_page_of_malformed_objects_is_skipped(
    api: FakeApi, client_for: ClientFor
) -> None:
    """A page in the limits has 700,000 of them, which once took seconds."""
    client = await client_for(api)
    page = orjson.dumps({"metadata": {"resourceVersion": "1"}, "items": [{"a": 0}] * 10_000})
    api.fail(Fault("GET", CONFIG_MAPS.path(), watch=False, raw=page))
    steps = LoopSteps()
    with steps.measured():
        async with running_informer(Informer(client, CONFIG_MAPS)):
            pass
    assert client.limits.rejected["malformed"] == 10_000
    assert steps.longest < 0.03, steps.what


async def test_object_that_is_too_dense_is_skipped_in_a_list(
    api: FakeApi, client_for: ClientFor
) -> None:
    """Its page is requested with fewer objects and then with their metadata alone; the store keeps
    the state that it has, and all others are stored."""
    requested: list[str] = []
    objects = [config_map(f"c{number}") for number in range(20)]
    for number, it in enumerate(objects):
        it["metadata"] |= {"uid": f"u{number}", "resourceVersion": "5"}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(60)
            return response
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        metadata_only = "as=PartialObjectMetadataList" in request.headers["Accept"]
        requested.append("metadata" if metadata_only else str(limit))
        items = []
        for it in objects[start : start + limit]:
            one = {"metadata": it["metadata"]} if metadata_only else it
            items.append(orjson.dumps(one))
        left = len(objects) > start + limit
        meta = {"resourceVersion": "9", "continue": str(start + limit) if left else ""}
        body = b'{"metadata":%s,"items":[%s]}' % (orjson.dumps(meta), b",".join(items))
        return web.Response(body=body)

    api.route("GET", CONFIG_MAPS.path(), answer)
    client = await client_for(api, "remote")
    informer = Informer(client, CONFIG_MAPS)
    async with running_informer(informer):
        assert len(informer.store) == 20
        known = informer.store.get(Key("default", "c5"))
        for name in ("c5", "c19"):
            objects[int(name[1:])]["spec"] = [[]] * (DECODED_LIMIT // 200)
        objects[19]["metadata"]["name"] = "new"
        requested.clear()
        async with asyncio.timeout(20):
            await informer.refresh()
        assert informer.store.keys() == {Key("default", f"c{number}") for number in range(19)}
        assert informer.store.get(Key("default", "c5")) is known
        assert informer.error is None
    assert client.limits.rejected["memory"] == 2
    assert requested.count("metadata") == 2
    assert len(requested) < 2 * len(objects)


async def test_memory_of_home_is_not_limited(
    api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_share, "CACHE_LIMIT", 1)
    informer = Informer(await client_for(api, "home"), CONFIG_MAPS)
    api.put(config_map("a"))
    async with running_informer(informer):
        assert len(informer.store) == 1


async def test_foreign_pod_ip_is_reported_and_not_copied(harness: EngineHarness) -> None:
    await harness.start_running()
    assert "podIP" in harness.status()
    for ip in ("169.254.169.254", "169.254.169.254", "127.0.0.1"):
        status = {"podIP": ip, "podIPs": [{"ip": ip}], "message": f"at {ip}"}
        harness.remote.update(PODS, "a", {"status": status}, REMOTE_NAMESPACE)
        await harness.settle()
        assert "podIP" not in harness.status()
        assert "podIPs" not in harness.status()
    [first, _] = await harness.events_with_reason("PodIPRejected")
    assert first["involvedObject"]["name"] == "a"
    assert harness.engine.remote_pods.client.limits.rejected["address"] == 2
