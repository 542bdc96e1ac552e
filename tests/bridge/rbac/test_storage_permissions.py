"""The permissions to provision volumes are those that the bridge uses."""

from __future__ import annotations

import asyncio

from bridge.rbac import permissions
from bridge.rbac.permissions import Permission
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from sync.storage.capacity_controller import SETTLE
from tests.fakeapi import FakeApi
from tests.sync.conftest import harness as harness  # noqa: PLC0414  # a fixture
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from tests.sync.storage.storage_harness import CLASS, Storage

#: Resource, subresource, verb.
Use = tuple[str, str, str]
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


def _uses(api: FakeApi) -> set[Use]:
    """The requests for objects of storage."""
    found = set()
    for entry in api.log:
        target = api.store.registry.resolve(entry.path)
        verb = _VERBS.get(entry.method) or ("get" if target.name else "list")
        use = target.kind.resource.plural, target.subresource, "watch" if entry.watch else verb
        if "persistentvolume" in entry.path or "storage.k8s.io" in entry.path:
            found.add(use)
    return found


def _granted(*table: Permission) -> set[Use]:
    return {(it.resource.plural, it.subresource, verb) for it in table for verb in it.verbs}


async def test_tables_match_requests(harness: EngineHarness) -> None:
    storage = Storage(harness)
    storage.home_class()
    storage.home_class("brief")
    storage.remote_class()
    await harness.start()
    storage.home.delete(STORAGE_CLASSES, "brief")
    home = await storage.bound(size="1Gi")
    grow = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", grow, "default")
    await storage.settle()
    storage.remote_class(default=False)
    await asyncio.sleep(SETTLE)
    await harness.settle()
    assert storage.remote_claim(home)
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    assert not storage.home.objects(PERSISTENT_VOLUMES)
    assert storage.remote.objects(PERSISTENT_VOLUME_CLAIMS, REMOTE_NAMESPACE) == []
    assert storage.home.find(STORAGE_CLASSES, CLASS)
    assert not any("snapshot" in entry.path for entry in (*storage.home.log, *storage.remote.log))
    at_home = _granted(*permissions.HOME_STORAGE, *permissions.HOME_NAMESPACE_STORAGE)
    assert _uses(storage.home) == at_home
    assert _uses(storage.remote) == _granted(*permissions.for_remote_storage())
