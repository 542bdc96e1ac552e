"""A request in the name of a caller: the endpoint of a configuration, the token of the caller."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sync.kube.api_errors import Unauthorized, Unreachable
from sync.kube.api_resources import SERVICES
from sync.kube.client import KubeClient
from sync.kube.credentials import ClientConfig, KubeconfigRef, load
from sync.kube.token_config import TokenConfig
from tests.fakeapi import Authority, FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write


@dataclass
class Base:
    """A server, and a configuration with a client certificate and impersonation."""

    api: FakeApi
    config: ClientConfig


@pytest.fixture
async def base(tmp_path: Path) -> AsyncIterator[Base]:
    authority = Authority(tmp_path)
    server, client = authority.issue("server", address="127.0.0.1"), authority.issue("dashboard")
    async with FakeApi(tls=authority.server_context(server)) as api:
        user = {
            "client-certificate": str(client.cert),
            "client-key": str(client.key),
            "token": "the dashboard's",
            "as": "someone",
        }
        data = base64.b64encode(authority.cert.read_bytes()).decode()
        cluster = {"certificate-authority-data": data}
        path = write(tmp_path / "config", kubeconfig(api.url, user=user, cluster=cluster))
        yield Base(api, await load(KubeconfigRef(path), side="home"))


async def test_request_has_the_token_alone(base: Base) -> None:
    async with KubeClient(TokenConfig(base.config, "the viewer's")) as client:
        await client.list(SERVICES)
    (request,) = base.api.requests("GET")
    assert request.authorization == "Bearer the viewer's"
    assert (request.subject, request.impersonation) == ("", []), "neither certificate nor user"


async def test_rejected_token_is_not_replaced_by_another(base: Base) -> None:
    base.api.fail(Fault("GET", SERVICES.path(), code=401, times=None))
    async with KubeClient(TokenConfig(base.config, "the viewer's")) as client:
        with pytest.raises(Unauthorized):
            await client.list(SERVICES)
    assert {it.authorization for it in base.api.requests("GET")} == {"Bearer the viewer's"}


async def test_token_is_sent_to_no_server_that_the_ca_does_not_verify(
    base: Base, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    context = other.server_context(other.issue("server", address="127.0.0.1"))
    async with FakeApi(tls=context) as impostor:
        base.config.server = impostor.url
        async with KubeClient(TokenConfig(base.config, "the viewer's")) as client:
            with pytest.raises(Unreachable):
                await client.list(SERVICES)
        assert impostor.log == []


def test_no_token_in_repr_or_error(base: Base) -> None:
    config = TokenConfig(base.config, "the viewer's")
    assert "the viewer's" not in repr(config)
