"""Tokens of home's service accounts: created before the pod, renewed, and deleted after it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import replace

import pytest
from aiohttp import web

from sync.base.background_task import background_task
from sync.kube.api_resources import CONFIG_MAPS, PODS, SECRETS
from sync.pods.service_account_tokens import TokenController
from tests.fakeapi import Fault
from tests.fakeapi.tokens import PREFIX
from tests.objects import config_map, secret, service_account
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import Object
from translators.ownership_labels import origin_of
from translators.pods import service_accounts

REQUESTS = "*/serviceaccounts/default/token"
CA = "home's CA"


@pytest.fixture
def with_tokens(harness: EngineHarness) -> EngineHarness:
    """A harness whose pods have tokens of home's default service account."""
    harness.policy = replace(harness.policy, service_accounts="home")
    harness.home.put(service_account("default"))
    harness.home.put(config_map("kube-root-ca.crt", data={"ca.crt": CA}))
    return harness


def tokens(harness: EngineHarness) -> Object:
    """The one Secret with tokens."""
    [found] = _all(harness)
    return found


def _all(harness: EngineHarness) -> list[Object]:
    found = harness.remote.objects(SECRETS, REMOTE_NAMESPACE)
    return [it for it in found if service_accounts.pod_of_token_secret(it)]


def texts(harness: EngineHarness) -> list[str]:
    data = tokens(harness)["data"]
    return sorted(base64.b64decode(text).decode() for text in data.values())


async def test_secret_exists_before_the_pod(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    home = with_tokens.pod()
    await with_tokens.settle()
    [made, pod] = [it.path for it in with_tokens.remote.writes(f"*/{REMOTE_NAMESPACE}/*")]
    assert (made.rpartition("/")[2], pod.rpartition("/")[2]) == ("secrets", "pods")
    [request] = with_tokens.home.requests("POST", REQUESTS)
    uid = home["metadata"]["uid"]
    assert request.body["spec"] == {
        "audiences": [],
        "expirationSeconds": 3607,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid},
    }
    ca, token = texts(with_tokens)
    assert ca == CA
    assert token.startswith(PREFIX)
    there = with_tokens.remote_pod()
    assert there is not None
    [volume] = there["spec"]["volumes"]
    data = tokens(with_tokens)["data"]
    for source in volume["projected"]["sources"][:2]:
        assert source["secret"]["name"] == tokens(with_tokens)["metadata"]["name"]
        assert {item["key"] for item in source["secret"]["items"]} <= data.keys()
    assert origin_of(tokens(with_tokens)) is None


async def test_one_request_for_each_audience_and_lifetime(with_tokens: EngineHarness) -> None:
    def volume(name: str, **source: object) -> Object:
        token = {"path": "token", **source}
        return {"name": name, "projected": {"sources": [{"serviceAccountToken": token}]}}

    await with_tokens.start()
    vault = {"audience": "vault", "expirationSeconds": 600}
    with_tokens.pod(
        automountServiceAccountToken=False,
        volumes=[volume("v", **vault), volume("w", **vault), volume("x", audience="vault")],
    )
    await with_tokens.settle()
    specs = [it.body["spec"] for it in with_tokens.home.requests("POST", REQUESTS)]
    assert sorted(it["expirationSeconds"] for it in specs) == [600, 3600]
    assert {tuple(it["audiences"]) for it in specs} == {("vault",)}
    assert len(texts(with_tokens)) == 2


async def test_a_pod_without_a_token_costs_nothing(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod(automountServiceAccountToken=False)
    await with_tokens.settle()
    assert with_tokens.remote_pod() is not None
    assert with_tokens.home.requests("POST", "*/token") == []
    assert _all(with_tokens) == []


async def test_a_restart_writes_nothing_until_a_token_is_due(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    before = texts(with_tokens)
    with_tokens.now = "2030-01-01T00:40:00Z"  # two thirds of its life
    await with_tokens.restart()
    assert with_tokens.writes() == []
    with_tokens.now = "2030-01-01T00:49:00Z"  # more than four fifths
    await with_tokens.restart()
    assert len(with_tokens.home.requests("POST", REQUESTS)) == 1
    [patch] = with_tokens.remote.writes()
    assert (patch.method, patch.path.rpartition("/")[2]) == (
        "PATCH",
        tokens(with_tokens)["metadata"]["name"],
    )
    assert texts(with_tokens)[0] == CA
    assert texts(with_tokens) != before
    with_tokens.now = "2030-01-03T00:00:00Z"  # expired long ago
    await with_tokens.restart()
    assert len(with_tokens.home.requests("POST", REQUESTS)) == 1


async def test_a_renewal_is_planned_within_the_last_fifth_or_a_little_before(
    with_tokens: EngineHarness,
) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    [[renew, expires]] = json.loads(
        tokens(with_tokens)["metadata"]["annotations"][service_accounts.ANNOTATION_TOKEN_TIMES]
    ).values()
    assert expires == "2030-01-01T01:00:07Z"
    assert "2030-01-01T00:42:00Z" <= renew <= "2030-01-01T00:48:06Z"
    assert with_tokens.engine.find(TokenController).controller.queue.delayed == 1


@pytest.mark.parametrize("now", ["2030-01-01T05:00:00Z", "2029-12-31T19:00:00Z"])
async def test_clock_of_the_bridge_that_is_wrong_by_hours_costs_nothing(
    with_tokens: EngineHarness, now: str
) -> None:
    with_tokens.home.api.clock = lambda: "2030-01-01T00:00:00Z"
    with_tokens.now = now
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    assert len(with_tokens.home.requests("POST", REQUESTS)) == 1
    [[renew, expires]] = json.loads(
        tokens(with_tokens)["metadata"]["annotations"][service_accounts.ANNOTATION_TOKEN_TIMES]
    ).values()
    assert expires == "2030-01-01T01:00:07Z"
    assert "2030-01-01T00:42:00Z" <= renew <= "2030-01-01T00:48:06Z", "by home's clock"
    queue = with_tokens.engine.find(TokenController).controller.queue
    assert queue.delayed == 1
    assert 2500 < (queue.seconds_until_next_delayed or 0) < 2900

    with_tokens.now = "2030-01-01T00:10:00Z"  # another bridge, whose clock is right
    await with_tokens.restart()
    assert with_tokens.writes() == []


async def test_token_is_requested_once_a_minute_at_most(with_tokens: EngineHarness) -> None:
    """Home's tokens have already expired by its own clock when the bridge receives them."""
    with_tokens.home.api.clock = lambda: "2030-01-01T00:00:00Z"

    async def issued(_: object) -> web.Response:
        token = {"token": f"{PREFIX}x", "expirationTimestamp": "2029-01-01T00:00:00Z"}
        return web.json_response({"spec": {"expirationSeconds": 3607}, "status": token}, status=201)

    with_tokens.home.route("POST", REQUESTS, issued)
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    with_tokens.home.update(
        CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "another"}}, "default"
    )
    await with_tokens.settle()
    assert "another" in texts(with_tokens)
    assert len(with_tokens.home.requests("POST", REQUESTS)) == 1
    queue = with_tokens.engine.find(TokenController).controller.queue
    assert queue.delayed == 1
    assert (queue.seconds_until_next_delayed or 0) > 50


async def test_ca_follows_home(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.clear_logs()
    with_tokens.home.update(
        CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "another"}}, "default"
    )
    await with_tokens.settle()
    assert "another" in texts(with_tokens)
    assert with_tokens.home.requests("POST", REQUESTS) == []


async def test_secret_is_deleted_after_the_pod(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    with_tokens.home.delete(PODS, "a", "default")
    await with_tokens.settle()
    assert _all(with_tokens)
    with_tokens.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await with_tokens.settle()
    assert _all(with_tokens) == []


async def test_pod_lost_while_unwatched_leaves_no_secret(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    await with_tokens.stop()
    with_tokens.home.remove(PODS, "a", "default")
    with_tokens.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await with_tokens.start()
    assert _all(with_tokens) == []


async def test_recreated_pod_keeps_its_secret(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    before = tokens(with_tokens)
    with_tokens.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await with_tokens.settle()
    assert with_tokens.remote_pod() is not None
    assert tokens(with_tokens)["metadata"]["uid"] == before["metadata"]["uid"]


async def test_deleted_secret_is_recreated(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.remote.remove(SECRETS, tokens(with_tokens)["metadata"]["name"], REMOTE_NAMESPACE)
    await with_tokens.settle()
    assert len(texts(with_tokens)) == 2


async def test_secret_whose_times_the_remote_removes_is_not_renewed_again_and_again(
    with_tokens: EngineHarness,
) -> None:
    """A mutating webhook of the remote removes annotations that it does not know."""

    def without_times(obj: Object) -> None:
        (obj["metadata"].get("annotations") or {}).pop(
            service_accounts.ANNOTATION_TOKEN_TIMES, None
        )

    with_tokens.remote.store.webhook = without_times
    await with_tokens.start()
    with_tokens.pod()
    await asyncio.sleep(30)
    assert with_tokens.remote_pod() is not None
    assert len(with_tokens.home.requests("POST", REQUESTS)) == 1
    assert len(with_tokens.remote.writes("*/secrets/*")) <= 1


async def test_secret_that_another_client_deletes_is_created_at_growing_intervals(
    with_tokens: EngineHarness,
) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    name = tokens(with_tokens)["metadata"]["name"]
    with_tokens.report_running()

    async def delete() -> None:
        while True:
            await asyncio.sleep(0.1)
            if with_tokens.remote.find(SECRETS, name, REMOTE_NAMESPACE) is not None:
                with_tokens.remote.remove(SECRETS, name, REMOTE_NAMESPACE)

    async with background_task(delete(), name="delete"):
        await with_tokens.events_with_reason("RemoteOverwrites")
        await asyncio.sleep(60)
    assert len(with_tokens.home.requests("POST", REQUESTS)) <= 10


async def test_pod_waits_with_a_reason_for_a_missing_service_account(
    with_tokens: EngineHarness,
) -> None:
    await with_tokens.start()
    with_tokens.pod(serviceAccountName="clerk")
    await with_tokens.events_with_reason("TokenRefused")
    await with_tokens.settle(waiting=True)
    assert with_tokens.remote_pod() is None
    assert with_tokens.status()["reason"] == "TokenRefused"
    assert 'serviceaccounts "clerk" not found' in with_tokens.status()["message"]
    with_tokens.home.put(service_account("clerk"))
    await with_tokens.remote.until(with_tokens.remote_pod)


async def test_failed_renewal_is_an_event_of_the_running_pod(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    with_tokens.home.fail(Fault("POST", REQUESTS, code=403, times=100))
    await with_tokens.stop()
    with_tokens.now = "2030-01-01T01:00:00Z"
    await with_tokens.start(settle=False)
    await with_tokens.events_with_reason("TokenRefused")


async def test_a_home_secret_of_that_name_is_not_copied(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    name = tokens(with_tokens)["metadata"]["name"]
    before = tokens(with_tokens)
    with_tokens.home.put(secret(name, data={"a": "MQ=="}))
    with_tokens.pod("b", uses=[f"secret/{name}"], automountServiceAccountToken=False)
    await with_tokens.settle()
    assert tokens(with_tokens) == before


async def test_under_another_policy_secrets_go_with_their_pods(with_tokens: EngineHarness) -> None:
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.settle()
    with_tokens.report_running()
    await with_tokens.settle()
    with_tokens.policy = replace(with_tokens.policy, service_accounts="none")
    with_tokens.now = "2030-01-02T00:00:00Z"
    await with_tokens.restart()
    assert with_tokens.writes() == []
    with_tokens.home.delete(PODS, "a", "default")
    await with_tokens.settle()
    with_tokens.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await with_tokens.settle()
    assert _all(with_tokens) == []


async def test_no_token_is_in_a_log_an_event_or_a_repr(
    with_tokens: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = with_tokens.remote.fail(Fault("POST", "*/secrets", code=422, times=100))
    await with_tokens.start()
    with_tokens.pod()
    await with_tokens.events_with_reason("RemoteInvalid")
    await with_tokens.stop()
    with_tokens.remote.heal(refused)
    await with_tokens.start()
    assert texts(with_tokens)
    engine = with_tokens.engine
    shown = [
        caplog.text,
        repr(engine.find(TokenController)),
        repr(engine.find(TokenController).controller),
        repr(engine.pods),
    ]
    assert not any(PREFIX in text for text in shown)
    entries = [*with_tokens.home.writes(), *with_tokens.remote.writes("*/pods*")]
    assert not any(PREFIX in repr(entry.body) for entry in entries)
