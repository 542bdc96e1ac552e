"""A CA that is rotated and a server that moves, followed without a restart."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sync.cache import informer_health, watcher
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube import credentials as access_module
from sync.kube import in_cluster
from sync.kube.api_errors import ApiServerCertificateError, ClientConfigError, Unreachable
from sync.kube.api_resources import CONFIG_MAPS, NAMESPACES, SERVICES, Object
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials, load
from sync.kube.http_upgrade import open_upgrade
from sync.kube.kubeconfig import Sources
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.kubeconfig import credential, kubeconfig, plugin, write
from tests.objects import config_map
from tests.sync.informer_harness import caught_up, running_informer
from translators.object_accessors import uid_of


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at after each failure, and what failed is tried soon."""
    monkeypatch.setattr(access_module, "RECHECK_INTERVAL", 0.0)
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    monkeypatch.setattr(watcher, "SHORT_WATCH", 0.02)
    monkeypatch.setattr(informer_health, "UNREACHABLE_CAP", 0.05)


def authority_of(folder: Path, name: str) -> Authority:
    (folder / name).mkdir()
    return Authority(folder / name, "ca")


class Cluster:
    """An API server with TLS, and the kubeconfig that leads to it."""

    def __init__(self, folder: Path, api: FakeApi, authority: Authority) -> None:
        self.api, self.authority, self.folder = api, authority, folder
        self.path = folder / "config"

    def tell(self, user: Object | None = None, **more: Object) -> KubeconfigRef:
        """Writes the kubeconfig."""
        data = base64.b64encode(self.authority.cert.read_bytes()).decode()
        cluster = {"certificate-authority-data": data}
        write(self.path, kubeconfig(self.api.url, user=user, cluster=cluster) | more)
        return KubeconfigRef(self.path)

    async def rotate(self, name: str = "next") -> None:
        """Restarts the server with a certificate of another authority."""
        await self.api.stop()
        self.authority = authority_of(self.folder, name)
        pair = self.authority.issue("server", address="127.0.0.1")
        self.api.tls = self.authority.server_context(pair)
        await self.api.start()

    async def move(self) -> None:
        """Restarts the server at another port."""
        await self.api.stop()
        before, self.api.port = self.api.port, 0
        await self.api.start()
        assert self.api.port != before

    def uid(self) -> str:
        return uid_of(self.api.get(NAMESPACES, "kube-system"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    authority = authority_of(tmp_path, "first")
    pair = authority.issue("server", address="127.0.0.1")
    async with FakeApi(tls=authority.server_context(pair)) as api:
        yield Cluster(tmp_path, api, authority)


@asynccontextmanager
async def informed(access: Credentials) -> AsyncIterator[Informer]:
    async with KubeClient(access) as client:
        informer = Informer(client, CONFIG_MAPS)
        async with running_informer(informer):
            yield informer


async def test_rotated_authority_is_followed_when_the_kubeconfig_is_rewritten(
    cluster: Cluster,
) -> None:
    api = cluster.api
    async with informed(await load(cluster.tell(), side="remote")) as informer:
        await caught_up(api, informer)
        await cluster.rotate()
        await api.until(lambda: isinstance(informer.error, ApiServerCertificateError))
        cluster.tell()
        informer.retry_now()
        await api.until(lambda: informer.error is None)
        api.put(config_map("a"))
        await caught_up(api, informer)
        assert informer.store.get(Key("default", "a"))


async def test_rotated_authority_file_is_followed(cluster: Cluster) -> None:
    ca = cluster.folder / "ca.crt"
    ca.write_bytes(cluster.authority.cert.read_bytes())
    config = kubeconfig(cluster.api.url, cluster={"certificate-authority": "ca.crt"})
    access = await load(KubeconfigRef(write(cluster.path, config)), side="remote")
    async with informed(access) as informer:
        await cluster.rotate()
        await cluster.api.until(lambda: isinstance(informer.error, ApiServerCertificateError))
        ca.write_bytes(cluster.authority.cert.read_bytes())
        informer.retry_now()
        await cluster.api.until(lambda: informer.error is None)


async def test_moved_server_is_followed_without_a_new_list(cluster: Cluster) -> None:
    api = cluster.api
    access = await load(cluster.tell(), side="remote")
    api.put(config_map("a"))
    async with informed(access) as informer:
        informer.client.expect_cluster(cluster.uid(), namespace="kube-system")
        await caught_up(api, informer)
        await cluster.move()
        cluster.tell()
        api.clear_log()
        await api.until(lambda: api.open_watches() and informer.error is None)
        assert api.log[0].path == "/api/v1/namespaces/kube-system", "first: which cluster is it?"
        assert not api.requests("GET", "/api/v1/configmaps") or all(
            it.watch for it in api.requests("GET", "/api/v1/configmaps")
        )


async def test_other_cluster_at_the_new_address_receives_no_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    api = cluster.api
    access = await load(cluster.tell(), side="remote")
    authority = authority_of(tmp_path, "other")
    pair = authority.issue("server", address="127.0.0.1")
    api.put(config_map("a"))
    async with FakeApi(tls=authority.server_context(pair)) as other, informed(access) as informer:
        stranger = Cluster(tmp_path, other, authority)
        informer.client.expect_cluster(cluster.uid(), namespace="kube-system")
        await caught_up(api, informer)
        await api.stop()
        stranger.tell()
        await other.until(lambda: isinstance(informer.error, ClientConfigError))
        assert "another cluster" in str(informer.error)
        with pytest.raises(ClientConfigError, match="another cluster"):
            await informer.client.create(CONFIG_MAPS, config_map("b"), namespace="default")
        path = "/api/v1/namespaces/default/pods/a/exec"
        with pytest.raises(ClientConfigError, match="another cluster"):
            await open_upgrade(informer.client, "POST", path, [], [])
        assert {it.path for it in other.log} == {"/api/v1/namespaces/kube-system"}
        assert informer.store.get(Key("default", "a")), "what is known stays"

        await api.start()
        cluster.tell()
        informer.retry_now()
        await api.until(lambda: informer.error is None)


async def test_switched_current_context_is_ignored(cluster: Cluster) -> None:
    access = await load(cluster.tell(), side="remote")
    elsewhere = kubeconfig("https://elsewhere.test", context="elsewhere")
    config = kubeconfig(cluster.api.url)
    for part in ("clusters", "users", "contexts"):
        config[part] += elsewhere[part]
    write(cluster.path, config | {"current-context": "elsewhere"})
    assert await access.renew(access.generation)
    assert (access.context, access.endpoint.server) == ("fake", cluster.api.url)


async def fail_again(informer: Informer, api: FakeApi) -> None:
    """Retries now, and waits until that has failed too."""
    failures = informer.client.metrics.watch_failures
    before = failures.total()
    informer.retry_now()
    await api.until(lambda: failures.total() > before)
    await asyncio.sleep(0.02)


async def test_half_written_kubeconfig_keeps_the_last_credential(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    api = cluster.api
    async with informed(await load(cluster.tell(), side="remote")) as informer:
        await cluster.rotate()
        cluster.path.write_text("clusters: [canary-4711")
        for _ in range(3):
            await fail_again(informer, api)
        cluster.tell()
        informer.retry_now()
        await api.until(lambda: informer.error is None)
    warned = [
        it.getMessage() for it in caplog.records if "cannot read the changed" in it.getMessage()
    ]
    assert len([it for it in caplog.records if it.levelname == "WARNING"]) < 8
    assert warned
    assert not any("canary" in it for it in warned)


async def test_failed_connection_without_a_change_runs_no_plugin(cluster: Cluster) -> None:
    runs = cluster.folder / "runs"
    user = plugin(cluster.folder / "plugin", f"echo >>{runs}\n" + credential({"token": "t"}))
    access = await load(cluster.tell(user), side="remote")
    async with KubeClient(access) as client:
        await cluster.api.stop()
        for _ in range(3):
            with pytest.raises(Unreachable):
                await client.list(SERVICES)
            await asyncio.sleep(0.01)
    assert runs.read_text() == "\n"
    assert access.generation == 1


async def test_files_are_checked_at_most_once_per_interval(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "RECHECK_INTERVAL", 60.0)
    looks: list[object] = []

    def look(sources: object) -> bool:
        looks.append(sources)
        return False

    monkeypatch.setattr(Sources, "have_changed", look)
    access = await load(cluster.tell(), side="remote")
    async with KubeClient(access) as client:
        await cluster.api.stop()
        for _ in range(5):
            with pytest.raises(Unreachable):
                await client.list(SERVICES)
    assert len(looks) == 1


async def test_upgrade_follows_a_rotated_authority(cluster: Cluster) -> None:
    access = await load(cluster.tell(), side="remote")
    client = KubeClient(access)
    path = "/api/v1/namespaces/default/pods/absent/exec"
    assert (await open_upgrade(client, "POST", path, [], [])).status >= 400
    await cluster.rotate()
    cluster.tell()
    with pytest.raises(ApiServerCertificateError):
        await open_upgrade(client, "POST", path, [], [])
    await cluster.api.until(lambda: access.generation == 2)
    assert (await open_upgrade(client, "POST", path, [], [])).status >= 400


async def test_service_account_follows_the_rotated_ca(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = cluster.folder / "account"
    account.mkdir()
    (account / "token").write_text("t")
    (account / "ca.crt").write_bytes(cluster.authority.cert.read_bytes())
    monkeypatch.setattr(in_cluster, "FOLDER", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.api.port))
    monkeypatch.setenv("KUBECONFIG", str(cluster.folder / "absent"))
    async with informed(await load(KubeconfigRef(), side="home")) as informer:
        await cluster.rotate()
        await cluster.api.until(lambda: isinstance(informer.error, ApiServerCertificateError))
        (account / "ca.crt").write_bytes(cluster.authority.cert.read_bytes())
        informer.retry_now()
        await cluster.api.until(lambda: informer.error is None)


async def test_missing_kubeconfig_does_not_switch_to_the_service_account(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.path))
    cluster.tell()
    access = await load(KubeconfigRef(), side="remote")
    monkeypatch.setattr(in_cluster, "available", lambda: True)
    cluster.path.unlink()
    with pytest.raises(ClientConfigError, match="no such file"):
        await access.renew(access.generation)
    assert not access.in_cluster
    assert access.endpoint.server == cluster.api.url


async def test_renewed_is_called_only_for_changed_credentials(cluster: Cluster) -> None:
    """A refused credential is read again every few seconds, and all watches would try at once."""
    access = await load(cluster.tell({"token": "a"}), side="remote")
    heard: list[str] = []
    access.renewed.add(lambda: heard.append("renewed"))
    assert await access.renew(access.generation)
    assert heard == []
    cluster.tell({"token": "b"})
    assert await access.renew(access.generation)
    assert heard == ["renewed"]
