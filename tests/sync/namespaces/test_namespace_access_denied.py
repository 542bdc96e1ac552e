"""Namespaces that the bridge may not read: their pods wait with a reason until access is
granted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sync.base.backoff import Backoff
from sync.cache import informer_health
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, SECRETS, SERVICES, Object
from sync.namespaces import per_namespace_informers as watches_module
from sync.namespaces.per_namespace_informers import home_forbids
from tests.fakeapi import Fault
from tests.objects import config_map, secret, service_account
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import HomeNamespace

ROLE = "--clusterrole=cluster-bridge:home-namespace"
OURS = "system:serviceaccount:cluster-bridge:cluster-bridge"


@pytest.fixture(autouse=True)
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the delay before a forbidden watch is reported."""
    monkeypatch.setattr(watches_module, "SETTLE", 0.05)
    monkeypatch.setattr(watches_module, "SETTLE_SHRUNK", 1.0)


def forbidden_message(plural: str, *, verb: str = "list", user: str = OURS) -> str:
    """The message of a rejection by RBAC."""
    return f'{plural} is forbidden: User "{user}" cannot {verb} resource "{plural}" in API group ""'


@contextmanager
def forbid(
    harness: EngineHarness, *plurals: str, namespace: str = "default", watch: bool | None = None
) -> Iterator[None]:
    """Makes home reject requests for these resources in the namespace."""
    faults = [
        harness.home.fail(
            Fault(
                "GET",
                f"*/namespaces/{namespace}/{plural}",
                watch=watch,
                code=403,
                message=forbidden_message(plural),
                times=None,
            )
        )
        for plural in plurals
    ]
    try:
        yield
    finally:
        for fault in faults:
            harness.home.heal(fault)


def add_namespace(harness: EngineHarness, name: str) -> None:
    meta: Object = {"name": name}
    harness.home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def reported_messages(harness: EngineHarness) -> list[Object]:
    return [it for it in harness.home.objects(EVENTS) if it["reason"] == "HomeForbidden"]


async def test_pod_reports_the_missing_permission_and_the_command(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await harness.start()
    with forbid(harness, "configmaps", "secrets"):
        harness.pod(uses=["cm/conf", "secret/key"])
        await harness.events_with_reason("HomeForbidden")
        await harness.home.until(
            lambda: "configmaps, secrets" in harness.status().get("message", "")
        )
        assert harness.status()["reason"] == "HomeForbidden"
        assert harness.status()["message"] == (
            "home: the bridge may not list and watch configmaps, secrets in namespace default; "
            "an administrator of home grants it: bridge rbac namespace default | kubectl apply -f -"
        )
        assert harness.remote.objects(PODS) == []
        assert harness.remote.find(NAMESPACES, REMOTE_NAMESPACE) is None
    await harness.remote.until(harness.remote_pod)
    assert harness.config_map()
    assert len(reported_messages(harness)) == 1
    harness.report_running()
    await harness.settle()
    assert harness.status()["phase"] == "Running"
    assert "reason" not in harness.status()


async def test_permissions_are_reported_when_home_has_answered_for_each_resource(
    harness: EngineHarness,
) -> None:
    """The answer for Services is late; until then nothing is reported."""
    harness.home.put(config_map("conf"))
    await harness.start()
    late = Fault(
        *("GET", "*/namespaces/default/services"),
        code=403,
        message=forbidden_message("services"),
        delay=0.3,
        times=None,
    )
    harness.home.fail(late)
    with forbid(harness, "configmaps"):
        harness.pod(uses=["cm/conf"])
        await harness.events_with_reason("HomeForbidden")
    [reported] = reported_messages(harness)
    assert "list and watch configmaps, services in namespace default" in reported["message"]


async def test_forbidden_namespace_is_one_warning_with_the_command(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """There is not one warning for each resource."""
    await harness.start()
    with forbid(harness, "configmaps", "secrets", "services", "endpointslices"):
        harness.pod()
        await harness.events_with_reason("HomeForbidden")
    await harness.remote.until(harness.remote_pod)
    warnings = [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]
    [line] = [it for it in warnings if "in namespace default" in it]
    assert line.startswith("HomeForbidden: home: the bridge may not list and watch")
    assert line.endswith("bridge rbac namespace default | kubectl apply -f -")
    assert not [it for it in warnings if it.startswith("cannot watch")]


async def test_remaining_missing_permission_is_reported_again(harness: EngineHarness) -> None:
    await harness.start()
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    with forbid(harness, "secrets"):
        with forbid(harness, "configmaps"):
            harness.pod(uses=["cm/conf", "secret/key"])
            await harness.home.until(
                lambda: "watch configmaps, secrets in" in harness.status().get("message", "")
            )
        await harness.home.until(
            lambda: "watch secrets in" in harness.status().get("message", ""), timeout=10
        )
        assert harness.remote_pod() is None
    await harness.remote.until(harness.remote_pod)


async def test_other_namespaces_are_not_affected(harness: EngineHarness) -> None:
    add_namespace(harness, "shop")
    await harness.start()
    with forbid(harness, "secrets"):
        harness.pod("waits", uses=["secret/key"])
        await harness.events_with_reason("HomeForbidden")
        harness.pod("goes", "shop")
        await harness.remote.until(lambda: harness.remote_pod("goes", "shop-h"))
        harness.report_running("goes", "shop-h")
        await harness.home.until(lambda: harness.status("goes", "shop").get("phase") == "Running")
        assert harness.remote_pod("waits") is None


async def test_a_pod_that_waits_can_be_deleted(harness: EngineHarness) -> None:
    await harness.start()
    with forbid(harness, "secrets"):
        harness.pod(uses=["secret/key"])
        await harness.events_with_reason("HomeForbidden")
        harness.home.delete(PODS, "a", "default")
        await harness.home.until(lambda: harness.home.find(PODS, "a", "default") is None)
    assert harness.remote.writes() == []


async def test_running_pods_continue_and_new_ones_wait_without_permission(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.home.put(secret("key"))
    await harness.start_running(uses=["secret/key"])
    harness.clear_logs()
    with forbid(harness, "secrets"):
        harness.home.expire_watches(SECRETS)
        await harness.home.until(
            lambda: "HomeForbidden: home: the bridge may not list and watch secrets" in caplog.text
        )
        harness.pod("b", uses=["secret/key"])
        await harness.events_with_reason("HomeForbidden")
        assert harness.status()["phase"] == "Running"
        assert harness.secret()
        assert harness.remote_pod("b") is None
        assert harness.remote.writes() == []
        harness.report_running(podIP="10.9.0.9")
        await harness.home.until(lambda: harness.status().get("podIP") == "10.9.0.9")
    await harness.remote.until(lambda: harness.remote_pod("b"))
    assert len(reported_messages(harness)) == 1


async def test_forbidden_token_request_is_a_missing_permission(harness: EngineHarness) -> None:
    harness.policy = replace(harness.policy, service_accounts="home")
    harness.home.put(service_account("default"))
    harness.home.put(config_map("kube-root-ca.crt", data={"ca.crt": "home's CA"}))
    message = forbidden_message("serviceaccounts/token", verb="create")
    fault = harness.home.fail(Fault("POST", "*/token", code=403, message=message, times=None))
    await harness.start()
    harness.pod()
    await harness.events_with_reason("HomeForbidden")
    assert "create serviceaccounts/token of default in namespace default" in str(harness.status())
    harness.home.heal(fault)
    await harness.remote.until(harness.remote_pod)


async def test_forbidden_events_block_no_pod(harness: EngineHarness) -> None:
    await harness.start()
    with forbid(harness, "events"):
        harness.pod()
        await harness.remote.until(harness.remote_pod)
        harness.report_running()
        await harness.home.until(lambda: harness.status().get("phase") == "Running")


async def test_all_resources_are_retried_when_one_is_allowed(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RoleBinding grants all resources: the pod does not wait for the longest back-off."""

    class EndlessBackoff(Backoff):
        def next(self) -> float:
            return 3600.0

    monkeypatch.setattr(informer_health, "Backoff", EndlessBackoff)
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await harness.start()
    with forbid(harness, "configmaps", "secrets", "services"):
        harness.pod(uses=["cm/conf", "secret/key"])
        await harness.events_with_reason("HomeForbidden")
        home = {it.resource: it for it in harness.engine.watches if it.client.side == "home"}
        forbidden = {kind for kind, it in home.items() if isinstance(it.error, Forbidden)}
        assert forbidden == {CONFIG_MAPS, SECRETS, SERVICES}
    home[SERVICES].retry_now()
    await harness.remote.until(harness.remote_pod)


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("", "bridge rbac namespace shop | kubectl apply -f -"),
        (forbidden_message("secrets"), "bridge rbac namespace shop | kubectl apply -f -"),
        (
            forbidden_message("secrets", user="system:serviceaccount:team:burst"),
            "bridge rbac namespace shop --account team/burst | kubectl apply -f -",
        ),
        (
            forbidden_message("secrets", user="jane doe"),
            f"kubectl create rolebinding cluster-bridge -n shop --user='jane doe' {ROLE}",
        ),
    ],
)
def test_command_names_the_user_of_the_rejection(message: str, command: str) -> None:
    waiting = home_forbids("list secrets", HomeNamespace("shop"), server_message=message)
    assert waiting.message.endswith(f"grants it: {command}")
