"""Whether an API server serves a resource."""

from __future__ import annotations

import orjson
import pytest

from sync.kube.api_errors import ApiError
from sync.kube.api_resources import STORAGE_CLASSES, VOLUME_SNAPSHOTS
from sync.kube.client import KubeClient
from sync.kube.discovery import serves_resource
from tests.fakeapi import FakeApi, Fault

SNAPSHOTS = f"/apis/{VOLUME_SNAPSHOTS.api_version}"
PAGE = b"404 page not found"


def _lists(api: FakeApi, *group_versions: str) -> None:
    """Has the server list these group versions."""
    groups = [
        {"name": version.partition("/")[0], "versions": [{"groupVersion": version}]}
        for version in group_versions
    ]
    body = orjson.dumps({"kind": "APIGroupList", "groups": groups})
    api.fail(Fault("GET", "/apis", code=200, raw=body, times=None))


async def test_served_resource(api: FakeApi, client: KubeClient) -> None:
    assert await serves_resource(client, STORAGE_CLASSES)


async def test_group_version_that_is_not_listed_is_not_served(
    api: FakeApi, client: KubeClient
) -> None:
    api.fail(Fault("GET", SNAPSHOTS, code=404, raw=PAGE, times=None))
    _lists(api, "discovery.k8s.io/v1", "storage.k8s.io/v1")
    assert not await serves_resource(client, VOLUME_SNAPSHOTS)


@pytest.mark.parametrize("what", ["version", "all", "starting"])
async def test_404_that_is_not_the_servers_is_an_error(
    api: FakeApi, client: KubeClient, what: str
) -> None:
    """A proxy's 404; and that of a server that has just started and lists few groups."""
    api.fail(Fault("GET", SNAPSHOTS, code=404, raw=PAGE, times=None))
    if what == "version":
        _lists(api, "discovery.k8s.io/v1", VOLUME_SNAPSHOTS.api_version)
    elif what == "all":
        api.fail(Fault("GET", "/apis", code=404, raw=PAGE, times=None))
    else:
        _lists(api, "storage.k8s.io/v1")
    with pytest.raises(ApiError):
        await serves_resource(client, VOLUME_SNAPSHOTS)
