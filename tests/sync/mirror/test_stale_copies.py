"""A pod never starts with a copy that may be stale."""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.api_resources import CONFIG_MAPS, SECRETS, Resource
from sync.namespaces import per_namespace_informers as watches_module
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import EngineHarness
from translators.object_accessors import Object


@pytest.fixture(autouse=True)
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the delay before a forbidden watch is reported."""
    monkeypatch.setattr(watches_module, "SETTLE", 0.05)


def original(resource: Resource, value: str) -> Object:
    if resource is CONFIG_MAPS:
        return config_map("conf", data={"k": value})
    return secret("conf", data={"k": value})


@pytest.mark.parametrize("resource", [CONFIG_MAPS, SECRETS], ids=str)
async def test_rollout_during_one_failed_watch_gets_the_edit(
    harness: EngineHarness, resource: Resource
) -> None:
    """The object is edited and the next pod comes while the namespace's watch is in back-off."""
    use = f"{'cm' if resource is CONFIG_MAPS else 'secret'}/conf"
    harness.home.put(original(resource, "b2xk"))
    await harness.start_running(uses=[use])
    path = f"*/namespaces/default/{resource.plural}"
    fault = harness.home.fail(Fault("GET", path, code=500, times=None))
    harness.home.break_watches(resource)
    await harness.home.until(lambda: fault.hits)
    harness.home.put(original(resource, "bmV3"))
    harness.pod("next", uses=[use])
    await asyncio.sleep(0.2)
    assert harness.remote_pod("next") is None

    harness.home.heal(fault)
    harness.clear_logs()
    await harness.remote.until(lambda: harness.remote_pod("next"))
    methods = [it.method for it in harness.remote.writes(f"*/{resource.plural}/conf")]
    assert methods == ["PATCH"]
    paths = [it.path.rpartition("/")[2] for it in harness.remote.writes()]
    assert paths.index("conf") < paths.index("pods"), "the copy is updated before the pod is made"


async def test_pod_that_does_not_refer_to_the_kind_starts_meanwhile(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    await harness.start_running(uses=["cm/conf"])
    fault = harness.home.fail(Fault("GET", "*/namespaces/default/configmaps", code=500, times=None))
    harness.home.break_watches(CONFIG_MAPS)
    await harness.home.until(lambda: fault.hits)
    harness.pod("other")
    await harness.remote.until(lambda: harness.remote_pod("other"))


async def test_watch_forbidden_during_creation_blocks_the_pod(harness: EngineHarness) -> None:
    """An optional reference would be left out silently."""
    slow = harness.remote.fail(Fault("POST", "/api/v1/namespaces", delay=0.3))
    harness.home.put(config_map("conf", data={"k": "v"}))
    await harness.start()
    reference = {"name": "conf", "optional": True}
    container = {"name": "main", "image": "i", "envFrom": [{"configMapRef": reference}]}
    harness.pod("a", containers=[container])
    await harness.remote.until(lambda: slow.hits)
    message = 'configmaps is forbidden: User "u" cannot list resource "configmaps" in API group ""'
    fault = harness.home.fail(
        Fault("GET", "*/namespaces/default/configmaps", code=403, message=message, times=None)
    )
    harness.home.break_watches(CONFIG_MAPS)
    await harness.home.until(lambda: fault.hits)
    await asyncio.sleep(0.5)
    assert harness.remote_pod() is None
    await harness.home.until(lambda: harness.status().get("reason") == "HomeForbidden")
    harness.home.heal(fault)
    await harness.remote.until(harness.remote_pod)
    assert harness.config_map() is not None
