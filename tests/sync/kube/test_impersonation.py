"""A kubeconfig with ``as``: nothing is ever sent with the permissions of the credential alone."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sync.kube import credentials as access_module
from sync.kube.api_errors import ApiError, KubeError
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials, load
from sync.kube.http_upgrade import open_upgrade
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.objects import config_map

USER = {"token": "t", "as": "jane", "as-groups": ["dev", "ops"], "as-user-extra": {"a": ["b"]}}
SENT = [
    ("Impersonate-User", "jane"),
    ("Impersonate-Group", "dev"),
    ("Impersonate-Group", "ops"),
    ("Impersonate-Extra-a", "b"),
]


@pytest.fixture
async def access(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    path = write(tmp_path / "config", kubeconfig(api.url, user=USER))
    return await load(KubeconfigRef(path), side="remote")


async def everything(access: Credentials) -> None:
    """Each kind of request that the bridge makes."""
    async with KubeClient(access) as client:
        made = await client.create(CONFIG_MAPS, config_map("a"), namespace="default")
        await client.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, namespace="default")
        await client.list(CONFIG_MAPS)
        async with client.stream(CONFIG_MAPS.path(), query={"watch": "1"}):
            pass
        with contextlib.suppress(ApiError):
            await client.read("/api/v1/nodes/n/proxy/metrics", timeout=5)
        with contextlib.suppress(KubeError):
            async with client.websocket("/api/v1/ws", query={}, protocol="v5.channel.k8s.io"):
                pass
        uid = made["metadata"]["uid"]
        await client.delete(CONFIG_MAPS, "a", namespace="default", uid=uid)
    path = "/api/v1/namespaces/default/pods/a/exec"
    await open_upgrade(KubeClient(access), "POST", path, [], [("Upgrade", "SPDY/3.1")])


async def test_every_request_impersonates(api: FakeApi, access: Credentials) -> None:
    await everything(access)
    assert {it.method for it in api.log} == {"GET", "POST", "PATCH", "DELETE"}
    assert len(api.log) >= 8
    assert all(it.impersonation == SENT for it in api.log)


async def test_requests_impersonate_after_a_renewal(api: FakeApi, access: Credentials) -> None:
    api.fail(Fault("*", "*", code=401, times=1))
    await everything(access)
    assert access.generation == 2
    assert all(it.impersonation == SENT for it in api.log)


async def test_caller_of_an_upgrade_cannot_set_impersonation(
    api: FakeApi, access: Credentials
) -> None:
    """The bridge's own headers come last, and no caller's are passed on."""
    seen: list[list[str]] = []

    async def answer(request: Any) -> web.Response:
        seen.append(request.headers.getall("Impersonate-User"))
        return web.Response(status=403)

    api.route("POST", "*/exec", answer)
    path = "/api/v1/namespaces/default/pods/a/exec"
    await open_upgrade(KubeClient(access), "POST", path, [], [("Upgrade", "SPDY/3.1")])
    assert seen == [["jane"]]
