"""A pod's own service account: found where no kubeconfig is, and its token followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sync.kube import in_cluster
from sync.kube.api_errors import ClientConfigError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write

OLD, NEW = "canary-old", "canary-new"


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    """The API server of the cluster that this is a pod of."""
    account = tmp_path / "serviceaccount"
    account.mkdir()
    authority = Authority(account, "ca")
    pair = authority.issue("server", address="127.0.0.1")
    (account / "token").write_text(f"{OLD}\n")
    async with FakeApi(tls=authority.server_context(pair), token=OLD) as found:
        monkeypatch.setattr(in_cluster, "FOLDER", account)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(found.port))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
        yield found


def renew(api: FakeApi) -> None:
    """The kubelet writes another token, and the old one ends."""
    (in_cluster.FOLDER / "token").write_text(NEW)
    api.token = NEW


async def test_service_account_is_used_without_a_kubeconfig(api: FakeApi) -> None:
    access = await load(KubeconfigRef(), side="home")
    assert access.in_cluster
    assert access.context == "in-cluster"
    assert access.endpoint.server == f"https://127.0.0.1:{api.port}"
    assert OLD not in repr(access)
    async with KubeClient(access) as client:
        assert (await client.list(NODES)).items == []


async def test_existing_kubeconfig_takes_precedence(api: FakeApi, tmp_path: Path) -> None:
    write(tmp_path / "absent", kubeconfig("https://other.test"))
    access = await load(KubeconfigRef(), side="home")
    assert not access.in_cluster
    assert access.endpoint.server == "https://other.test"


@pytest.mark.usefixtures("api")
async def test_named_kubeconfig_must_exist() -> None:
    with pytest.raises(ClientConfigError, match="no such file"):
        await load(KubeconfigRef(Path("/nowhere")), side="home")


@pytest.mark.usefixtures("api")
async def test_no_service_account_outside_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ClientConfigError, match="no such file"):
        await load(KubeconfigRef(), side="home")


async def test_rejected_token_is_read_again(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sync.kube.credentials.RENEW_INTERVAL", 0.0)
    async with KubeClient(await load(KubeconfigRef(), side="home")) as client:
        renew(api)
        assert (await client.list(NODES)).items == []


async def test_renewed_token_is_used_before_the_old_one_expires(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no request that is refused."""
    async with KubeClient(await load(KubeconfigRef(), side="home")) as client:
        monkeypatch.setattr(in_cluster, "RELOAD_SECONDS", 0.0)
        renew(api)
        assert (await client.list(NODES)).items == []
        assert client.credentials.credential.authorization == f"Bearer {NEW}"
    assert len(api.log) == 1


async def test_unreadable_token_is_an_error(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> str:
        raise PermissionError(13, "Permission denied", "token")

    monkeypatch.setattr(in_cluster, "token", unreadable)
    with pytest.raises(
        ClientConfigError, match="the pod's token cannot be read: Permission denied"
    ):
        await load(KubeconfigRef(), side="home")
    assert api.log == []


def test_server_url_of_both_address_families(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    assert in_cluster.server() == "https://[fd00::1]:443"
