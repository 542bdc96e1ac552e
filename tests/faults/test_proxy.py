"""The fault-injecting proxy: it injects the configured faults, and forwards all other data."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from e2e.faults.faulty_proxy import Harm, Proxy, Rule
from sync.kube.api_errors import Conflict, KubeError, Unreachable
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.tls import Authority

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The CA of the server and the client."""
    return Authority(tmp_path)


@pytest.fixture
async def api(authority: Authority) -> AsyncIterator[FakeApi]:
    """An API server behind TLS."""
    served = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with FakeApi(tls=served) as api:
        yield api


@pytest.fixture
async def proxy(api: FakeApi, authority: Authority, tmp_path: Path) -> AsyncIterator[Proxy]:
    """A proxy before it."""
    pair = authority.issue("client")

    def text(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    user = {"client-certificate-data": text(pair.cert), "client-key-data": text(pair.key)}
    cluster = {"certificate-authority-data": text(authority.cert)}
    config = kubeconfig(api.url, user=user, cluster=cluster)
    file = write(tmp_path / "kubeconfig", config)
    proxy = Proxy(file, tmp_path / "proxy", address="127.0.0.1", seed=1)
    with proxy:
        yield proxy
        # The API server answers in this thread, also to the proxy's goodbyes.
        await asyncio.to_thread(proxy.stop)


@asynccontextmanager
async def client(proxy: Proxy) -> AsyncIterator[KubeClient]:
    access = await load(KubeconfigRef(proxy.kubeconfig), side="remote")
    async with KubeClient(access) as made:
        yield made


async def test_it_answers_in_the_servers_place(api: FakeApi, proxy: Proxy) -> None:
    proxy.rules = (Rule(Harm.ANSWER, 1.0, frozenset({"POST"}), code=409),)
    async with client(proxy) as kube:
        with pytest.raises(Conflict):
            await kube.create(CONFIG_MAPS, CONFIG, namespace="default")
        assert (await kube.list(CONFIG_MAPS, namespace="default")).items == []
    assert proxy.hits == 1
    assert not [entry for entry in api.log if entry.method == "POST"]


async def test_what_is_lost_was_done(api: FakeApi, proxy: Proxy) -> None:
    proxy.rules = (Rule(Harm.LOSE, 1.0),)
    async with client(proxy) as kube:
        with pytest.raises(Unreachable):
            await kube.create(CONFIG_MAPS, CONFIG, namespace="default")
    assert api.find(CONFIG_MAPS, "a", "default") is not None


@pytest.mark.parametrize("harm", [Harm.REFUSE, Harm.TRUNCATE])
async def test_connections_die(api: FakeApi, proxy: Proxy, harm: Harm) -> None:
    proxy.rules = (Rule(harm, 1.0),)
    async with client(proxy) as kube:
        with pytest.raises(Unreachable):
            await kube.list(CONFIG_MAPS, namespace="default")
        proxy.rules = ()
        await kube.list(CONFIG_MAPS, namespace="default")


async def lines(kube: KubeClient, *, count: int) -> list[bytes]:
    """So many lines of a watch, or fewer where it ends, and what is left of one."""
    found = b""
    query = {"watch": "1", "resourceVersion": "0"}
    path = CONFIG_MAPS.path(namespace="default")
    with contextlib.suppress(KubeError):
        async with kube.stream(path, query=query) as answer:
            with kube.map_read_errors(path):
                while found.count(b"\n") < count and (chunk := await answer.content.readany()):
                    found += chunk
    return found.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (Harm.CUT, lambda got, whole: not got or (whole.startswith(got[0]) and got[0] != whole)),
        (Harm.END, lambda got, whole: not got or (whole.startswith(got[0]) and got[0] != whole)),
        (Harm.GARBLE, lambda got, whole: got[0] != whole),
        (Harm.GONE, lambda got, whole: b'"code": 410' in got[0]),
        (Harm.STALL, lambda got, whole: got == [whole]),
    ],
)
async def test_watches(api: FakeApi, proxy: Proxy, harm: Harm, expected: object) -> None:
    assert callable(expected)
    api.put({**CONFIG, "metadata": {"name": "a", "namespace": "default"}})
    async with client(proxy) as kube:
        async with asyncio.timeout(30):
            [whole] = await lines(kube, count=1)
            proxy.rules = (Rule(harm, 1.0),)
            got = await lines(kube, count=1)
    assert proxy.hits == 1
    assert expected(got, whole), got
