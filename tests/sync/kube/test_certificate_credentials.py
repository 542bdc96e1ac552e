"""Two credentials for one endpoint: a kubeconfig's and a client certificate."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sync.kube import credentials as access_module
from sync.kube.api_errors import ClientConfigError, KubeError
from sync.kube.api_resources import NAMESPACES, SERVICES, Object
from sync.kube.client import KubeClient
from sync.kube.credentials import CertificateCredentials, load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.tls import Pair


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at after each failure."""
    monkeypatch.setattr(access_module, "RECHECK_INTERVAL", 0.0)


@dataclass
class Two:
    """A server, and a client with each credential."""

    api: FakeApi
    authority: Authority
    path: Path
    account: KubeClient
    node: KubeClient
    credentials: CertificateCredentials

    def write_kubeconfig(self) -> None:
        """Writes the address of the server."""
        write(self.path, _kubeconfig(self.api, self.authority))


def _kubeconfig(api: FakeApi, authority: Authority) -> Object:
    data = base64.b64encode(authority.cert.read_bytes()).decode()
    user = {"token": "the account's", "as": "someone"}
    return kubeconfig(api.url, user=user, cluster={"certificate-authority-data": data})


def content(pair: Pair) -> tuple[bytes, bytes]:
    return pair.cert.read_bytes(), pair.key.read_bytes()


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[Two]:
    authority = Authority(folder)
    server = authority.issue("server", address="127.0.0.1")
    async with FakeApi(tls=authority.server_context(server)) as api:
        path = write(folder / "config", _kubeconfig(api, authority))
        access = await load(KubeconfigRef(path), side="home")
        async with KubeClient(access) as account:
            pair = content(authority.issue("system:node:n"))
            credentials = CertificateCredentials(access, *pair)
            async with KubeClient(credentials, beside=account) as node:
                yield Two(api, authority, path, account, node, credentials)


async def test_each_client_sends_its_own_credential(tmp_path: Path) -> None:
    async with both(tmp_path) as two:
        await two.account.list(SERVICES)
        await two.node.list(SERVICES)
        of_account, of_node = two.api.requests("GET")
    assert (of_account.authorization, of_account.subject) == ("Bearer the account's", "")
    assert of_account.impersonation == [("Impersonate-User", "someone")]
    assert (of_node.authorization, of_node.subject) == ("", "system:node:n")
    assert of_node.impersonation == []


async def test_requests_of_both_are_limited_and_counted_together(tmp_path: Path) -> None:
    async with both(tmp_path) as two:
        assert two.node.limiter is two.account.limiter
        assert two.node.metrics is two.account.metrics


async def test_replaced_certificate_is_used_by_the_next_request(tmp_path: Path) -> None:
    async with both(tmp_path) as two:
        renewed: list[str] = []
        two.credentials.renewed.add(lambda: renewed.append("yes"))
        two.credentials.replace_certificate(*content(two.authority.issue("system:node:renewed")))
        await two.node.list(SERVICES)
        assert two.api.requests("GET")[-1].subject == "system:node:renewed"
        assert renewed == ["yes"]


async def test_unusable_certificate_leaves_the_previous_one(tmp_path: Path) -> None:
    async with both(tmp_path) as two:
        with pytest.raises(ClientConfigError, match="not valid PEM"):
            two.credentials.replace_certificate(b"nothing", b"of use")
        await two.node.list(SERVICES)
        assert two.api.requests("GET")[-1].subject == "system:node:n"


async def test_moved_server_is_confirmed_with_the_accounts_credential(tmp_path: Path) -> None:
    """A node may not read the UID of the cluster."""
    async with both(tmp_path) as two:
        uid = two.api.get(NAMESPACES, "kube-system")["metadata"]["uid"]
        two.account.expect_cluster(uid, namespace="kube-system")
        await two.api.stop()
        two.api.port = 0
        await two.api.start()
        two.write_kubeconfig()
        async with asyncio.timeout(10):
            while True:
                try:
                    await two.node.list(SERVICES)
                    break
                except KubeError:
                    await asyncio.sleep(0.01)
        (request,) = two.api.requests("GET", NAMESPACES.path("kube-system"))
        assert request.subject == ""
        assert request.authorization


async def test_no_key_in_repr(tmp_path: Path) -> None:
    async with both(tmp_path) as two:
        assert "PRIVATE" not in repr(two.credentials) + repr(two.node)
