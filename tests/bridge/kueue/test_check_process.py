"""The process part of the admission check: it follows the installation of Kueue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bridge.kueue import check_process
from bridge.kueue.check_process import KueueChoice
from bridge.placement.process import run_placer
from sync.kube.api_resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    KUEUE_ADMISSION_CHECKS,
    KUEUE_RESOURCE_FLAVORS,
    KUEUE_WORKLOADS,
    LEASES,
    NAMESPACES,
    PLACEMENT_POLICIES,
    Object,
)
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.placement import placer_lease
from tests import kueue_objects
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write
from translators.fit import published_room

RESOURCES = (KUEUE_WORKLOADS, KUEUE_ADMISSION_CHECKS, KUEUE_RESOURCE_FLAVORS)


def definition(*versions: str) -> Object:
    """The CustomResourceDefinition of Workloads."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": check_process.DEFINITION},
        "spec": {"versions": [{"name": it, "served": True} for it in versions]},
    }


@asynccontextmanager
async def serving(home: KubeClient, choice: KueueChoice) -> AsyncIterator[list[str]]:
    """A process that decides; yields its lines of progress."""
    lines: list[str] = []
    task = asyncio.create_task(check_process.serve(home, choice, notify=lines.append))
    try:
        yield lines
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def is_active(api: FakeApi) -> bool:
    """Whether the check is marked as active."""
    check = api.find(KUEUE_ADMISSION_CHECKS, kueue_objects.CHECK) or {}
    return bool((check.get("status") or {}).get("conditions"))


async def test_auto_starts_with_kueue_and_stops_without(
    api: FakeApi, client_for: ClientFor
) -> None:
    api.register(CUSTOM_RESOURCE_DEFINITIONS)
    async with serving(await client_for(api, "home"), "auto") as lines:
        await api.until(lambda: api.open_watches(CUSTOM_RESOURCE_DEFINITIONS))
        # A release that is too old.
        api.put(definition("v1beta1"))
        for resource in RESOURCES:
            api.register(resource)
        api.put(kueue_objects.admission_check())
        api.put(definition("v1beta1", "v1beta2"))
        await api.until(lambda: is_active(api))
        assert len(lines) == 1
        api.remove(CUSTOM_RESOURCE_DEFINITIONS, check_process.DEFINITION)
        await api.until(lambda: not api.open_watches(KUEUE_WORKLOADS))
        assert "removed" in lines[-1]
        assert not api.open_watches(KUEUE_ADMISSION_CHECKS)


async def test_off_asks_nothing_and_on_does_not_read_the_definition(
    api: FakeApi, client_for: ClientFor
) -> None:
    home = await client_for(api, "home")
    await check_process.serve(home, "off", notify=lambda _: None)
    assert api.requests() == []
    for resource in RESOURCES:
        api.register(resource)
    api.put(kueue_objects.admission_check())
    async with serving(home, "on"):
        await api.until(lambda: is_active(api))
    assert api.requests("*", "*customresourcedefinitions*") == []


async def test_placer_decides_while_it_holds_the_lease(api: FakeApi, tmp_path: Path) -> None:
    """`bridge placement run --kueue on`, with its Lease, beside PlacementPolicies."""
    for resource in (PLACEMENT_POLICIES, *RESOURCES):
        api.register(resource)
    api.put(NAMESPACES.manifest({"name": published_room.NAMESPACE}))
    api.put(kueue_objects.admission_check())
    ref = KubeconfigRef(write(tmp_path / "home.yaml", kubeconfig(api.url)))
    stop, lines = asyncio.Event(), list[str]()
    running = asyncio.create_task(run_placer(ref, "on", notify=lines.append, stop=stop))
    await api.until(lambda: running.done() or is_active(api))
    assert api.find(LEASES, placer_lease.NAME, published_room.NAMESPACE)
    stop.set()
    await running
    assert any("deciding" in it for it in lines)
