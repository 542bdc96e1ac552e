"""Requests and their outcomes: objects, credentials, and the server's flow control."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import aiohttp
import pytest

from sync.base import clock
from sync.kube import api_errors
from sync.kube import credentials as access_module
from sync.kube.api_resources import CONFIG_MAPS, NODES, PODS
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.transport import MAX_ATTEMPTS
from tests.fakeapi import FakeApi, Fault, credentials_for
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.objects import config_map, pod


async def test_objects_are_returned_as_stored(api: FakeApi, client: KubeClient) -> None:
    body = {**config_map("a", data={"k": "v"}), "futureField": {"kept": [1, None]}}
    created = await client.create(CONFIG_MAPS, body, namespace="default")
    assert created["futureField"] == {"kept": [1, None]}
    assert created == await client.get(CONFIG_MAPS, "a", namespace="default")
    assert created == api.get(CONFIG_MAPS, "a", "default")


async def test_list_pages_have_one_state(api: FakeApi, client: KubeClient) -> None:
    for i in range(7):
        api.put(config_map(f"c{i}"))
    version = (await client.list(CONFIG_MAPS)).resource_version
    api.clear_log()
    page = await client.list(CONFIG_MAPS, page_size=3)
    assert [item["metadata"]["name"] for item in page.items] == [f"c{i}" for i in range(7)]
    assert page.resource_version == version
    assert len(api.requests("GET")) == 3


async def test_list_contains_slimmed_items(api: FakeApi, client: KubeClient) -> None:
    for i in range(5):
        api.put(config_map(f"c{i}", data={"k": "v"}))
    page = await client.list(
        CONFIG_MAPS, page_size=2, slim=lambda item: {"name": item["metadata"]["name"]}
    )
    assert page.items == [{"name": f"c{i}"} for i in range(5)]


async def test_list_items_have_their_kind(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a"))
    (item,) = (await client.list(CONFIG_MAPS)).items
    assert item == api.get(CONFIG_MAPS, "a", "default")


async def test_list_with_selectors(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a", labels={"app": "x"}))
    api.put(config_map("b", labels={"app": "y"}))
    api.put(config_map("c", "other", labels={"app": "x"}))
    page = await client.list(CONFIG_MAPS, namespace="default", labels="app=x")
    assert [item["metadata"]["name"] for item in page.items] == ["a"]
    page = await client.list(CONFIG_MAPS, fields="metadata.name=c")
    assert [item["metadata"]["namespace"] for item in page.items] == ["other"]


async def test_list_that_expires_between_pages_raises_gone(
    api: FakeApi, client: KubeClient
) -> None:
    for i in range(3):
        api.put(config_map(f"c{i}"))
    _, token = await client.list_page(CONFIG_MAPS, query={"limit": "2"})
    api.compact()
    with pytest.raises(api_errors.Gone):
        await client.list_page(CONFIG_MAPS, query={"limit": "2", "continue": token})


async def test_names_are_quoted(api: FakeApi, client: KubeClient) -> None:
    with pytest.raises(api_errors.NotFound):
        await client.get(CONFIG_MAPS, "a/../b?c", namespace="default")
    assert api.log[-1].path == "/api/v1/namespaces/default/configmaps/a%2F..%2Fb%3Fc"


async def test_second_create_raises_already_exists(client: KubeClient) -> None:
    await client.create(CONFIG_MAPS, config_map("a"), namespace="default")
    with pytest.raises(api_errors.AlreadyExists):
        await client.create(CONFIG_MAPS, config_map("a"), namespace="default")


async def test_create_in_a_missing_namespace_raises_not_found(client: KubeClient) -> None:
    with pytest.raises(api_errors.NotFound, match='namespaces "nope" not found'):
        await client.create(CONFIG_MAPS, config_map("a", "nope"), namespace="nope")


async def test_merge_and_strategic_patches(api: FakeApi, client: KubeClient) -> None:
    api.put(pod("a", node="n"))
    patch = {"metadata": {"labels": {"x": "y"}}}
    assert (await client.patch(PODS, "a", patch, namespace="default"))["metadata"]["labels"]
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for kind in ("True", "False"):
        status["status"]["conditions"][0]["status"] = kind
        await client.patch(
            PODS, "a", status, namespace="default", subresource="status", kind="strategic"
        )
    conditions = api.get(PODS, "a", "default")["status"]["conditions"]
    assert [c["status"] for c in conditions if c["type"] == "Ready"] == ["False"]


async def test_patch_of_another_uid_or_version_is_a_conflict(
    api: FakeApi, client: KubeClient
) -> None:
    api.put(pod("a"))
    for guard in ({"uid": "another"}, {"resourceVersion": "1"}):
        patch = {"metadata": {**guard, "labels": {"x": "y"}}}
        with pytest.raises(api_errors.Conflict):
            await client.patch(PODS, "a", patch, namespace="default")
    assert "labels" not in api.get(PODS, "a", "default")["metadata"]


async def test_invalid_names_the_field(api: FakeApi, client: KubeClient) -> None:
    api.put(pod("a"))
    with pytest.raises(api_errors.Invalid, match="spec: Forbidden"):
        await client.patch(PODS, "a", {"spec": {"hostNetwork": True}}, namespace="default")


async def test_delete_with_stale_uid_is_ignored(api: FakeApi, client: KubeClient) -> None:
    first = api.put(config_map("a"))
    api.remove(CONFIG_MAPS, "a", "default")
    second = api.put(config_map("a"))
    await client.delete(CONFIG_MAPS, "a", uid=first["metadata"]["uid"], namespace="default")
    assert api.get(CONFIG_MAPS, "a", "default") == second
    for _ in range(2):
        await client.delete(CONFIG_MAPS, "a", uid=second["metadata"]["uid"], namespace="default")
    assert api.find(CONFIG_MAPS, "a", "default") is None


async def test_delete_returns_an_object_that_finalizers_keep(
    api: FakeApi, client: KubeClient
) -> None:
    uid = api.put(config_map("a"))["metadata"]["uid"]
    api.update(CONFIG_MAPS, "a", {"metadata": {"finalizers": ["example.com/x"]}}, "default")
    kept = await client.delete(CONFIG_MAPS, "a", uid=uid, namespace="default", decode=True)
    assert kept == api.get(CONFIG_MAPS, "a", "default")
    assert kept is not None
    assert kept["metadata"]["deletionTimestamp"]
    api.remove(CONFIG_MAPS, "a", "default")
    uid = api.put(config_map("a"))["metadata"]["uid"]
    for _ in range(2):
        found = await client.delete(CONFIG_MAPS, "a", uid=uid, namespace="default", decode=True)
        assert found is None


async def test_delete_with_a_grace_period(api: FakeApi, client: KubeClient) -> None:
    uid = api.put(pod("a", node="n"))["metadata"]["uid"]
    await client.delete(PODS, "a", uid=uid, namespace="default", grace_seconds=5)
    assert api.get(PODS, "a", "default")["metadata"]["deletionGracePeriodSeconds"] == 5
    await client.delete(PODS, "a", uid=uid, namespace="default", grace_seconds=0)
    assert api.find(PODS, "a", "default") is None


UID_MISMATCH = [
    # registry/rest/delete.go and storage/interfaces.go of k8s.io/apiserver.
    (
        "the UID in the precondition (u) does not match the UID in record (v). The object might "
        "have been deleted and then recreated"
    ),
    (
        "StorageError: invalid object, Code: 4, Key: /registry/pods/default/a, ResourceVersion: 0, "
        "AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: v"
    ),
    (
        "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record "
        "(2). The object might have been modified"
    ),
]


@pytest.mark.parametrize("message", UID_MISMATCH)
async def test_delete_with_failed_precondition_does_nothing(
    api: FakeApi, client: KubeClient, message: str
) -> None:
    found = f'Operation cannot be fulfilled on pods "a": {message}'
    api.fail(Fault("DELETE", code=409, message=found))
    await client.delete(PODS, "a", uid="u", namespace="default")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (409, 'admission webhook "guard.test" denied the request: in use'),
        (409, 'admission webhook "guard.test" denied the request: the UID in the precondition'),
        (409, 'Operation cannot be fulfilled on pods "a": the object has been modified'),
        (409, ""),
        (404, 'admission webhook "guard.test" denied the request: not found'),
    ],
)
async def test_delete_rejected_by_admission_raises(
    api: FakeApi, client: KubeClient, code: int, message: str
) -> None:
    """The object is still there, and still to be deleted."""
    uid = api.put(config_map("a"))["metadata"]["uid"]
    api.fail(Fault("DELETE", code=code, message=message))
    with pytest.raises(api_errors.ApiError) as caught:
        await client.delete(CONFIG_MAPS, "a", uid=uid, namespace="default")
    assert caught.value.code == code
    await client.delete(CONFIG_MAPS, "a", uid=uid, namespace="default")
    assert api.find(CONFIG_MAPS, "a", "default") is None


async def test_404_page_of_a_proxy_is_not_not_found(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a"))
    api.fail(Fault(code=404, raw=b"404 page not found\n", times=None))
    for request in (
        client.get(CONFIG_MAPS, "a", namespace="default"),
        client.patch(CONFIG_MAPS, "a", {}, namespace="default"),
        client.delete(CONFIG_MAPS, "a", uid="u", namespace="default"),
    ):
        with pytest.raises(api_errors.ApiError) as caught:
            await request
        assert not isinstance(caught.value, api_errors.NotFound)


async def test_delete_raises_other_failures(api: FakeApi, client: KubeClient) -> None:
    uid = api.put(config_map("a"))["metadata"]["uid"]
    api.fail(Fault(code=403))
    with pytest.raises(api_errors.Forbidden):
        await client.delete(CONFIG_MAPS, "a", uid=uid, namespace="default")


async def test_user_agent(api: FakeApi) -> None:
    async with KubeClient(credentials_for(api), user_agent="bridge/1") as client:
        await client.list(NODES)
    assert api.log[0].user_agent == "bridge/1"


async def test_request_outside_of_async_with_raises() -> None:
    client = KubeClient(access_module.Credentials(KubeconfigRef(), side="home"))
    with pytest.raises(RuntimeError, match="async with"):
        await client.list(NODES)


@pytest.fixture
async def rotating(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, tls_api: FakeApi) -> Any:
    """A server that takes another token than the one in the kubeconfig's token file."""
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    token = tmp_path / "token"
    token.write_text("old\n")
    tls_api.token = "new"
    cluster = {"insecure-skip-tls-verify": True}
    config = kubeconfig(tls_api.url, user={"tokenFile": "token"}, cluster=cluster)
    access = await load(KubeconfigRef(write(tmp_path / "config", config)), side="home")
    async with KubeClient(access) as client:
        yield tls_api, client, token


async def test_401_is_retried_with_the_new_token(rotating: Any) -> None:
    server, client, token = rotating
    token.write_text("new\n")
    await client.list(NODES)
    assert [entry.code for entry in server.log] == [[401], [200]]


async def test_second_401_raises(rotating: Any) -> None:
    server, client, _ = rotating
    with pytest.raises(api_errors.Unauthorized):
        await client.list(NODES)
    assert len(server.log) == 2


async def test_stream_401_is_retried_with_the_new_token(rotating: Any) -> None:
    server, client, token = rotating
    token.write_text("new\n")
    async with client.stream(NODES.path(), query={"watch": "1"}) as response:
        assert response.status == 200
    assert len(server.log) == 2


async def test_401_is_not_retried_without_a_new_credential(
    rotating: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client, _ = rotating
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 60.0)
    with pytest.raises(api_errors.Unauthorized):
        await client.list(NODES)
    assert len(server.log) == 1


async def test_many_401_at_once_read_the_credential_once(
    rotating: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, token = rotating
    token.write_text("new\n")
    before = client.credentials.generation
    await asyncio.gather(*(client.list(NODES) for _ in range(20)))
    assert client.credentials.generation == before + 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(code=429, retry_after=0), 0.5),
        (Fault(code=429, retry_after=1), 1.0),
        (Fault(code=503, retry_after=2), 2.0),
        (Fault(code=429, retry_after=999), 30.0),
        (Fault(code=429), 1.0),
    ],
)
async def test_throttled_request_honors_retry_after(
    api: FakeApi, client: KubeClient, fault: Fault, expected: float
) -> None:
    api.fail(dataclasses.replace(fault))
    started = clock.now()
    await client.list(NODES)
    assert clock.now() - started == pytest.approx(expected)


async def test_throttled_is_raised_after_the_last_attempt(api: FakeApi, client: KubeClient) -> None:
    api.fail(Fault(code=429, retry_after=1, times=None))
    started = clock.now()
    with pytest.raises(api_errors.Throttled) as caught:
        await client.list(NODES)
    assert caught.value.retry_after == 1.0
    assert clock.now() - started == pytest.approx(MAX_ATTEMPTS - 1)
    assert len(api.log) == MAX_ATTEMPTS


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_server_errors_are_not_retried(api: FakeApi, client: KubeClient, code: int) -> None:
    api.fail(Fault(code=code))
    with pytest.raises(api_errors.ServerError) as caught:
        await client.list(NODES)
    assert caught.value.code == code
    assert len(api.log) == 1


async def test_retry_after_with_a_date_uses_the_default_wait(
    api: FakeApi, client: KubeClient
) -> None:
    api.fail(Fault(code=429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"))
    started = clock.now()
    await client.list(NODES)
    assert clock.now() - started == pytest.approx(1.0)


async def test_cancellation_while_a_client_closes_leaves_no_session_open(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[aiohttp.ClientSession] = []
    close = aiohttp.ClientSession.close

    async def interrupted(session: aiohttp.ClientSession) -> None:
        closed.append(session)
        await close(session)
        if len(closed) == 1:
            raise asyncio.CancelledError

    monkeypatch.setattr(aiohttp.ClientSession, "close", interrupted)
    with pytest.raises(asyncio.CancelledError):
        async with KubeClient(credentials_for(api)):
            pass
    assert len(closed) == 2
