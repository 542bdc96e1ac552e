"""Tokens of home's service accounts: made before the pod, renewed, and removed after it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import replace

import pytest
from aiohttp import web

from sync.kube.resources import CONFIG_MAPS, PODS, SECRETS
from sync.pods.service_account_tokens import TokenController
from tests.fakeapi import Fault
from tests.fakeapi.tokens import PREFIX
from tests.objects import config_map, secret, service_account
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.objects import Object
from translators.ownership_labels import origin_of
from translators.pods import service_accounts

REQUESTS = "*/serviceaccounts/default/token"
CA = "home's CA"


@pytest.fixture
def asking(harness: EngineHarness) -> EngineHarness:
    """A world whose pods have tokens of home's default account."""
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


async def test_secret_exists_before_the_pod(asking: EngineHarness) -> None:
    await asking.start()
    home = asking.pod()
    await asking.settle()
    [made, pod] = [it.path for it in asking.remote.writes(f"*/{REMOTE_NAMESPACE}/*")]
    assert (made.rpartition("/")[2], pod.rpartition("/")[2]) == ("secrets", "pods")
    [request] = asking.home.requests("POST", REQUESTS)
    uid = home["metadata"]["uid"]
    assert request.body["spec"] == {
        "audiences": [],
        "expirationSeconds": 3607,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": uid},
    }
    ca, token = texts(asking)
    assert ca == CA
    assert token.startswith(PREFIX)
    there = asking.remote_pod()
    assert there is not None
    [volume] = there["spec"]["volumes"]
    data = tokens(asking)["data"]
    for source in volume["projected"]["sources"][:2]:
        assert source["secret"]["name"] == tokens(asking)["metadata"]["name"]
        assert {item["key"] for item in source["secret"]["items"]} <= data.keys()
    assert origin_of(tokens(asking)) is None


async def test_one_request_for_each_audience_and_lifetime(asking: EngineHarness) -> None:
    def volume(name: str, **source: object) -> Object:
        token = {"path": "token", **source}
        return {"name": name, "projected": {"sources": [{"serviceAccountToken": token}]}}

    await asking.start()
    vault = {"audience": "vault", "expirationSeconds": 600}
    asking.pod(
        automountServiceAccountToken=False,
        volumes=[volume("v", **vault), volume("w", **vault), volume("x", audience="vault")],
    )
    await asking.settle()
    asked = [it.body["spec"] for it in asking.home.requests("POST", REQUESTS)]
    assert sorted(it["expirationSeconds"] for it in asked) == [600, 3600]
    assert {tuple(it["audiences"]) for it in asked} == {("vault",)}
    assert len(texts(asking)) == 2


async def test_a_pod_without_a_token_costs_nothing(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod(automountServiceAccountToken=False)
    await asking.settle()
    assert asking.remote_pod() is not None
    assert asking.home.requests("POST", "*/token") == []
    assert _all(asking) == []


async def test_a_restart_writes_nothing_until_a_token_is_due(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    before = texts(asking)
    asking.now = "2030-01-01T00:40:00Z"  # two thirds of its life
    await asking.restart()
    assert asking.writes() == []
    asking.now = "2030-01-01T00:49:00Z"  # more than four fifths
    await asking.restart()
    assert len(asking.home.requests("POST", REQUESTS)) == 1
    [patch] = asking.remote.writes()
    assert (patch.method, patch.path.rpartition("/")[2]) == (
        "PATCH",
        tokens(asking)["metadata"]["name"],
    )
    assert texts(asking)[0] == CA
    assert texts(asking) != before
    asking.now = "2030-01-03T00:00:00Z"  # expired long ago
    await asking.restart()
    assert len(asking.home.requests("POST", REQUESTS)) == 1


async def test_a_renewal_is_planned_within_the_last_fifth_or_a_little_before(
    asking: EngineHarness,
) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    [[renew, expires]] = json.loads(
        tokens(asking)["metadata"]["annotations"][service_accounts.ANNOTATION_TOKEN_TIMES]
    ).values()
    assert expires == "2030-01-01T01:00:07Z"
    assert "2030-01-01T00:42:00Z" <= renew <= "2030-01-01T00:48:06Z"
    assert asking.engine.find(TokenController).controller.queue.delayed == 1


@pytest.mark.parametrize("now", ["2030-01-01T05:00:00Z", "2029-12-31T19:00:00Z"])
async def test_clock_of_the_bridge_that_is_wrong_by_hours_costs_nothing(
    asking: EngineHarness, now: str
) -> None:
    asking.home.api.clock = lambda: "2030-01-01T00:00:00Z"
    asking.now = now
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    assert len(asking.home.requests("POST", REQUESTS)) == 1
    [[renew, expires]] = json.loads(
        tokens(asking)["metadata"]["annotations"][service_accounts.ANNOTATION_TOKEN_TIMES]
    ).values()
    assert expires == "2030-01-01T01:00:07Z"
    assert "2030-01-01T00:42:00Z" <= renew <= "2030-01-01T00:48:06Z", "by home's clock"
    queue = asking.engine.find(TokenController).controller.queue
    [timer] = queue._later.values()
    assert 2500 < timer.when() - asyncio.get_running_loop().time() < 2900

    asking.now = "2030-01-01T00:10:00Z"  # another bridge, whose clock is right
    await asking.restart()
    assert asking.writes() == []


async def test_token_is_requested_once_a_minute_at_most(asking: EngineHarness) -> None:
    """A home whose tokens have ended before they come, by its own clock."""
    asking.home.api.clock = lambda: "2030-01-01T00:00:00Z"

    async def issued(_: object) -> web.Response:
        token = {"token": f"{PREFIX}x", "expirationTimestamp": "2029-01-01T00:00:00Z"}
        return web.json_response({"spec": {"expirationSeconds": 3607}, "status": token}, status=201)

    asking.home.route("POST", REQUESTS, issued)
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    asking.home.update(CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "another"}}, "default")
    await asking.settle()
    assert "another" in texts(asking)
    assert len(asking.home.requests("POST", REQUESTS)) == 1
    [timer] = asking.engine.find(TokenController).controller.queue._later.values()
    assert timer.when() - asyncio.get_running_loop().time() > 50


async def test_ca_follows_home(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.clear_logs()
    asking.home.update(CONFIG_MAPS, "kube-root-ca.crt", {"data": {"ca.crt": "another"}}, "default")
    await asking.settle()
    assert "another" in texts(asking)
    assert asking.home.requests("POST", REQUESTS) == []


async def test_secret_is_deleted_after_the_pod(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    asking.home.delete(PODS, "a", "default")
    await asking.settle()
    assert _all(asking)
    asking.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await asking.settle()
    assert _all(asking) == []


async def test_pod_lost_while_unwatched_leaves_no_secret(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    await asking.stop()
    asking.home.remove(PODS, "a", "default")
    asking.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await asking.start()
    assert _all(asking) == []


async def test_recreated_pod_keeps_its_secret(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    before = tokens(asking)
    asking.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await asking.settle()
    assert asking.remote_pod() is not None
    assert tokens(asking)["metadata"]["uid"] == before["metadata"]["uid"]


async def test_deleted_secret_is_recreated(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.remote.remove(SECRETS, tokens(asking)["metadata"]["name"], REMOTE_NAMESPACE)
    await asking.settle()
    assert len(texts(asking)) == 2


async def test_pod_waits_with_a_reason_for_a_missing_service_account(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod(serviceAccountName="clerk")
    await asking.events_with_reason("TokenRefused")
    await asking.settle(waiting=True)
    assert asking.remote_pod() is None
    assert asking.status()["reason"] == "TokenRefused"
    assert 'serviceaccounts "clerk" not found' in asking.status()["message"]
    asking.home.put(service_account("clerk"))
    await asking.remote.until(asking.remote_pod)


async def test_failed_renewal_is_an_event_of_the_running_pod(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    asking.home.fail(Fault("POST", REQUESTS, code=403, times=100))
    await asking.stop()
    asking.now = "2030-01-01T01:00:00Z"
    await asking.start(settle=False)
    await asking.events_with_reason("TokenRefused")


async def test_a_home_secret_of_that_name_is_not_copied(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    name = tokens(asking)["metadata"]["name"]
    before = tokens(asking)
    asking.home.put(secret(name, data={"a": "MQ=="}))
    asking.pod("b", uses=[f"secret/{name}"], automountServiceAccountToken=False)
    await asking.settle()
    assert tokens(asking) == before


async def test_under_another_policy_secrets_go_with_their_pods(asking: EngineHarness) -> None:
    await asking.start()
    asking.pod()
    await asking.settle()
    asking.report_running()
    await asking.settle()
    asking.policy = replace(asking.policy, service_accounts="none")
    asking.now = "2030-01-02T00:00:00Z"
    await asking.restart()
    assert asking.writes() == []
    asking.home.delete(PODS, "a", "default")
    await asking.settle()
    asking.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await asking.settle()
    assert _all(asking) == []


async def test_no_token_is_in_a_log_an_event_or_a_repr(
    asking: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    refused = asking.remote.fail(Fault("POST", "*/secrets", code=422, times=100))
    await asking.start()
    asking.pod()
    await asking.events_with_reason("RemoteInvalid")
    await asking.stop()
    asking.remote.heal(refused)
    await asking.start()
    assert texts(asking)
    engine = asking.engine
    shown = [
        caplog.text,
        repr(engine.find(TokenController)),
        repr(engine.find(TokenController).controller),
        repr(engine.pods),
    ]
    assert not any(PREFIX in text for text in shown)
    entries = [*asking.home.writes(), *asking.remote.writes("*/pods*")]
    assert not any(PREFIX in repr(entry.body) for entry in entries)
