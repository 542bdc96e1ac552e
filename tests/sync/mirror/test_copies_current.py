"""A pod starts with what home has now: never with a copy that the bridge cannot vouch for."""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.resources import CONFIG_MAPS, SECRETS, Resource
from sync.namespaces import namespace_watches as watches_module
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.world import World
from translators.objects import Object


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What home refuses is reported soon."""
    monkeypatch.setattr(watches_module, "SETTLE", 0.05)


def original(resource: Resource, value: str) -> Object:
    if resource is CONFIG_MAPS:
        return config_map("conf", data={"k": value})
    return secret("conf", data={"k": value})


@pytest.mark.parametrize("resource", [CONFIG_MAPS, SECRETS], ids=str)
async def test_rollout_during_one_failed_watch_gets_the_edit(
    world: World, resource: Resource
) -> None:
    """The object is edited and the next pod comes while the namespace's watch is in back-off."""
    use = f"{'cm' if resource is CONFIG_MAPS else 'secret'}/conf"
    world.home.put(original(resource, "b2xk"))
    await world.start_running(uses=[use])
    path = f"*/namespaces/default/{resource.plural}"
    fault = world.home.fail(Fault("GET", path, code=500, times=None))
    world.home.break_watches(resource)
    await world.home.until(lambda: fault.hits)
    world.home.put(original(resource, "bmV3"))
    world.pod("next", uses=[use])
    await asyncio.sleep(0.2)
    assert world.remote_pod("next") is None

    world.home.heal(fault)
    world.clear_logs()
    await world.remote.until(lambda: world.remote_pod("next"))
    methods = [it.method for it in world.remote.writes(f"*/{resource.plural}/conf")]
    assert methods == ["PATCH"]
    paths = [it.path.rpartition("/")[2] for it in world.remote.writes()]
    assert paths.index("conf") < paths.index("pods"), "the copy is updated before the pod is made"


async def test_pod_that_does_not_refer_to_the_kind_starts_meanwhile(world: World) -> None:
    world.home.put(config_map("conf"))
    await world.start_running(uses=["cm/conf"])
    fault = world.home.fail(Fault("GET", "*/namespaces/default/configmaps", code=500, times=None))
    world.home.break_watches(CONFIG_MAPS)
    await world.home.until(lambda: fault.hits)
    world.pod("other")
    await world.remote.until(lambda: world.remote_pod("other"))


async def test_watch_forbidden_during_creation_blocks_the_pod(
    world: World,
) -> None:
    """An optional reference would be left out silently."""
    slow = world.remote.fail(Fault("POST", "/api/v1/namespaces", delay=0.3))
    world.home.put(config_map("conf", data={"k": "v"}))
    await world.start()
    reference = {"name": "conf", "optional": True}
    container = {"name": "main", "image": "i", "envFrom": [{"configMapRef": reference}]}
    world.pod("a", containers=[container])
    await world.remote.until(lambda: slow.hits)
    message = 'configmaps is forbidden: User "u" cannot list resource "configmaps" in API group ""'
    fault = world.home.fail(
        Fault("GET", "*/namespaces/default/configmaps", code=403, message=message, times=None)
    )
    world.home.break_watches(CONFIG_MAPS)
    await world.home.until(lambda: fault.hits)
    await asyncio.sleep(0.5)
    assert world.remote_pod() is None
    await world.home.until(lambda: world.status().get("reason") == "HomeForbidden")
    world.home.heal(fault)
    await world.remote.until(world.remote_pod)
    assert world.config_map() is not None
