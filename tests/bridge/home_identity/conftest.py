"""Fixtures of the tests of the identity at home."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.certificates import signed_certificate
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.home_identity.signing_home import World
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come soon."""
    for name in ("RETRY_FIRST", "RETRY_CAP", "RECREATE_FIRST", "RECREATE_CAP"):
        monkeypatch.setattr(signed_certificate, name, 0.02)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    authority = Authority(tmp_path)
    server = authority.issue("server", address="127.0.0.1")
    async with FakeApi(tls=authority.server_context(server)) as api:
        data = base64.b64encode(authority.cert.read_bytes()).decode()
        cluster = {"certificate-authority-data": data}
        content = kubeconfig(api.url, user={"token": "the account's"}, cluster=cluster)
        config = await load(KubeconfigRef(write(tmp_path / "config", content)), side="home")
        async with KubeClient(config) as account:
            yield World(api, authority, account, tmp_path)
