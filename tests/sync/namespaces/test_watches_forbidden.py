"""Home lets the bridge read some namespaces and not others: who waits, for what, and until when."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from sync.kube.resources import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)
from sync.namespaces import namespace_watches as watches_module
from sync.namespaces.namespace_watches import home_forbids
from tests.fakeapi import Fault
from tests.objects import config_map, secret, service_account
from tests.sync.world import THERE, World
from translators.objects import HomeNamespace

ROLE = "--clusterrole=cluster-bridge:home-namespace"
OURS = "system:serviceaccount:cluster-bridge:cluster-bridge"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What home refuses is told soon."""
    monkeypatch.setattr(watches_module, "SETTLE", 0.05)
    monkeypatch.setattr(watches_module, "SETTLE_SHRUNK", 1.0)


def refusal(plural: str, *, verb: str = "list", user: str = OURS) -> str:
    """As RBAC words it."""
    return f'{plural} is forbidden: User "{user}" cannot {verb} resource "{plural}" in API group ""'


@contextmanager
def refused(
    world: World, *plurals: str, namespace: str = "default", watch: bool | None = None
) -> Iterator[None]:
    """Home refuses these kinds in the namespace."""
    faults = [
        world.home.fail(
            Fault(
                "GET",
                f"*/namespaces/{namespace}/{plural}",
                watch=watch,
                code=403,
                message=refusal(plural),
                times=None,
            )
        )
        for plural in plurals
    ]
    try:
        yield
    finally:
        for fault in faults:
            world.home.heal(fault)


def add_namespace(world: World, name: str) -> None:
    meta: Object = {"name": name}
    world.home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def tellings(world: World) -> list[Object]:
    return [it for it in world.home.objects(EVENTS) if it["reason"] == "HomeForbidden"]


async def test_pod_reports_the_missing_permission_and_the_command(world: World) -> None:
    world.home.put(config_map("conf"))
    await world.start()
    with refused(world, "configmaps", "secrets"):
        world.pod(uses=["cm/conf"])
        await world.events_with_reason("HomeForbidden")
        await world.home.until(lambda: world.status().get("reason"))
        assert world.status()["reason"] == "HomeForbidden"
        assert world.status()["message"] == (
            "home: the bridge may not list and watch configmaps, secrets in namespace default; "
            "an administrator of home grants it: bridge rbac namespace default | kubectl apply -f -"
        )
        assert world.remote.objects(PODS) == []
        assert world.remote.find(NAMESPACES, THERE) is None
    await world.remote.until(world.remote_pod)
    assert world.config_map()
    assert len(tellings(world)) == 1
    world.runs()
    await world.settle()
    assert world.status()["phase"] == "Running"
    assert "reason" not in world.status()


async def test_forbidden_namespace_is_one_warning_with_the_command(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Not one for each kind before it."""
    await world.start()
    with refused(world, "configmaps", "secrets", "services", "endpointslices"):
        world.pod()
        await world.events_with_reason("HomeForbidden")
    await world.remote.until(world.remote_pod)
    warnings = [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]
    [line] = [it for it in warnings if "in namespace default" in it]
    assert line.startswith("HomeForbidden: home: the bridge may not list and watch")
    assert line.endswith("bridge rbac namespace default | kubectl apply -f -")
    assert not [it for it in warnings if it.startswith("cannot watch")]


async def test_remaining_missing_permission_is_reported_again(world: World) -> None:
    await world.start()
    with refused(world, "secrets"):
        with refused(world, "configmaps"):
            world.pod()
            await world.home.until(
                lambda: "watch configmaps, secrets in" in world.status().get("message", "")
            )
        await world.home.until(
            lambda: "watch secrets in" in world.status().get("message", ""), timeout=10
        )
        assert world.remote_pod() is None
    await world.remote.until(world.remote_pod)


async def test_other_namespaces_are_not_affected(world: World) -> None:
    add_namespace(world, "shop")
    await world.start()
    with refused(world, "secrets"):
        world.pod("waits")
        await world.events_with_reason("HomeForbidden")
        world.pod("goes", "shop")
        await world.remote.until(lambda: world.remote_pod("goes", "shop-h"))
        world.runs("goes", "shop-h")
        await world.home.until(lambda: world.status("goes", "shop").get("phase") == "Running")
        assert world.remote_pod("waits") is None


async def test_a_pod_that_waits_can_be_deleted(world: World) -> None:
    await world.start()
    with refused(world, "secrets"):
        world.pod()
        await world.events_with_reason("HomeForbidden")
        world.home.delete(PODS, "a", "default")
        await world.home.until(lambda: world.home.find(PODS, "a", "default") is None)
    assert world.remote.writes() == []


async def test_running_pods_continue_and_new_ones_wait_without_permission(world: World) -> None:
    world.home.put(secret("key"))
    await world.start_running(uses=["secret/key"])
    world.clear_logs()
    with refused(world, "secrets"):
        world.home.expire_watches(SECRETS)
        await world.home.until(
            lambda: (
                world.engine._home_watches.missing_permission(HomeNamespace("default")) is not None
            )
        )
        world.pod("b", uses=["secret/key"])
        await world.events_with_reason("HomeForbidden")
        assert world.status()["phase"] == "Running"
        assert world.secret()
        assert world.remote_pod("b") is None
        assert world.remote.writes() == []
        world.runs(podIP="10.9.0.9")
        await world.home.until(lambda: world.status().get("podIP") == "10.9.0.9")
    await world.remote.until(lambda: world.remote_pod("b"))
    assert len(tellings(world)) == 1


async def test_forbidden_token_request_is_a_missing_permission(world: World) -> None:
    world.policy = replace(world.policy, service_accounts="home")
    world.home.put(service_account("default"))
    world.home.put(config_map("kube-root-ca.crt", data={"ca.crt": "home's CA"}))
    said = refusal("serviceaccounts/token", verb="create")
    fault = world.home.fail(Fault("POST", "*/token", code=403, message=said, times=None))
    await world.start()
    world.pod()
    await world.events_with_reason("HomeForbidden")
    assert "create serviceaccounts/token of default in namespace default" in str(world.status())
    world.home.heal(fault)
    await world.remote.until(world.remote_pod)


async def test_forbidden_events_block_no_pod(world: World) -> None:
    await world.start()
    with refused(world, "events"):
        world.pod()
        await world.remote.until(world.remote_pod)
        world.runs()
        await world.home.until(lambda: world.status().get("phase") == "Running")


async def test_all_resources_are_retried_when_one_is_allowed(world: World) -> None:
    """A binding grants all of them: the pod does not wait for the slowest."""
    await world.start()
    with refused(world, "configmaps", "secrets", "services"):
        world.pod()
        await world.events_with_reason("HomeForbidden")
        watch = world.engine._home_watches._watches[HomeNamespace("default")]
        resting: set[Resource] = set()

        def long(kind: Resource) -> float:
            resting.add(kind)
            return 60.0

        for kind in (SECRETS, SERVICES):
            watch.informers[kind]._health._backoff.next = partial(long, kind)  # type: ignore[method-assign]
        await world.home.until(lambda: resting == {SECRETS, SERVICES})
    await world.remote.until(world.remote_pod)
    assert CONFIG_MAPS in watch.informers


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("", "bridge rbac namespace shop | kubectl apply -f -"),
        (refusal("secrets"), "bridge rbac namespace shop | kubectl apply -f -"),
        (
            refusal("secrets", user="system:serviceaccount:team:burst"),
            "bridge rbac namespace shop --account team/burst | kubectl apply -f -",
        ),
        (
            refusal("secrets", user="jane doe"),
            f"kubectl create rolebinding cluster-bridge -n shop --user='jane doe' {ROLE}",
        ),
    ],
)
def test_the_command_is_for_the_user_that_home_names(said: str, command: str) -> None:
    waiting = home_forbids("list secrets", HomeNamespace("shop"), server_message=said)
    assert waiting.message.endswith(f"grants it: {command}")
