"""Replicas behind a Service: they share a certificate, which home trusts before they serve it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from bridge.certificates import x509_builder
from bridge.certificates.tls_key_pair import LIFETIME
from bridge.clusters.connection import connect
from bridge.install import installation_manifests
from bridge.install.installation import Installation, webhook_name
from bridge.offload import in_cluster_webhook, webhook_certificate, webhook_configuration
from bridge.offload.in_cluster_webhook import CertificateKeeper, InClusterWebhookSettings
from bridge.offload.webhook_certificate import RotatedCertificate
from bridge.rbac.rbac_manifests import HomePermissions
from sync.base.background_task import background_task
from sync.kube.api_resources import MUTATING_WEBHOOKS, NAMESPACES, SECRETS, Object, Resource
from sync.kube.client import KubeClient
from tests.bridge.running_join import SOON
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from translators import offload_admission_patch

pytestmark = pytest.mark.usefixtures("soon")

NODE = "far"
NAME = webhook_name(NODE)
WHERE = "cluster-bridge"
HOST = f"{NAME}.{WHERE}.svc"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def served(keeper: CertificateKeeper) -> bytes:
    """The certificate that a server shows, by a handshake in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    client = trusting.wrap_bio(to_client, to_server)
    server = (await keeper.context()).wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def _made(at: datetime, host: str = HOST) -> RotatedCertificate:
    pair = x509_builder.self_signed(f"a-{at:%s}", [host], now=at)
    return RotatedCertificate(pair, at, at + LIFETIME)


def _read(data: Object) -> list[RotatedCertificate]:
    return webhook_certificate.read_secret({"data": data}, HOST)


def test_secret_data_round_trips() -> None:
    first, second = _made(NOW), _made(NOW + timedelta(days=300))
    assert _read({}) == []
    assert _read(webhook_certificate.secret_data(first.pair, [], NOW)) == [first]
    assert _read(webhook_certificate.secret_data(second.pair, [first], NOW)) == [second, first]
    data = webhook_certificate.secret_data(second.pair, [first], NOW + timedelta(days=370))
    assert _read(data) == [second], "what has ended is kept no longer"
    assert data["previous.crt"] is None


def test_invalid_pairs_and_other_host_names_are_ignored() -> None:
    good = webhook_certificate.secret_data(_made(NOW).pair, [], NOW)
    other = webhook_certificate.secret_data(_made(NOW).pair, [], NOW)
    assert _read({**good, "tls.key": other["tls.key"]}) == []
    assert _read({**good, "tls.crt": "%"}) == []
    assert _read(webhook_certificate.secret_data(_made(NOW, "other.svc").pair, [], NOW)) == []


def test_successor_is_trusted_before_it_is_served() -> None:
    old = _made(NOW)
    due = old.renewal_time()
    assert not webhook_certificate.needs_renewal([old], due - timedelta(seconds=1))
    assert webhook_certificate.needs_renewal([old], due)
    new = _made(due)
    known = [new, old]
    both = webhook_certificate.ca_bundle(known)
    assert webhook_certificate.certificate_to_serve([old], b"", NOW) == old.pair, (
        "the only one there is"
    )
    assert webhook_certificate.certificate_to_serve(known, both, due) == old.pair
    later = due + webhook_certificate.SETTLED
    assert (
        webhook_certificate.certificate_to_serve(known, old.pair.certificate, later) == old.pair
    ), "home was not notified of it"
    assert webhook_certificate.certificate_to_serve(known, both, later) == new.pair
    assert webhook_certificate.certificate_to_serve(known, b"", old.expires) == new.pair, (
        "the old one is of no use"
    )
    assert webhook_certificate.certificate_to_serve([], both, NOW) is None


def test_next_change_is_at_renewal_settling_or_expiry() -> None:
    old = _made(NOW)
    due = old.renewal_time()
    assert (
        webhook_certificate.seconds_until_change([old], NOW)
        == webhook_certificate.SETTLED.total_seconds()
    )
    assert webhook_certificate.seconds_until_change(
        [old], NOW + timedelta(days=1)
    ) == pytest.approx((due - NOW - timedelta(days=1)).total_seconds())
    assert (
        webhook_certificate.seconds_until_change([_made(due), old], due)
        == webhook_certificate.SETTLED.total_seconds()
    )


class World:
    """Home with the installed objects, and a clock."""

    def __init__(self, two: Clusters) -> None:
        self.home = two.home
        self.access = two.settings.home
        self.now = datetime.now(UTC)
        wanted = Installation(NODE, "i", HomePermissions(nodes=[NODE]), offload_webhook=True)
        for it in installation_manifests.render(wanted, ""):
            self.home.put(it)

    def settings(self, port: int = 0) -> InClusterWebhookSettings:
        return InClusterWebhookSettings(self.access, WHERE, NAME, "127.0.0.1", port)

    def data(self) -> Object:
        found: Object = self.home.get(SECRETS, NAME, WHERE).get("data") or {}
        return found

    def bundle(self) -> bytes:
        return webhook_configuration.ca_bundle(self.home.get(MUTATING_WEBHOOKS, NAME))

    def certificates(self) -> list[bytes]:
        return [b64decode(text) for key, text in self.data().items() if key.endswith(".crt")]

    def agrees(self) -> bool:
        """Whether the CA bundle equals the Secret's certificates."""
        return bool(self.data()) and self.bundle() == b"".join(self.certificates())

    @asynccontextmanager
    async def keeping(self, home: KubeClient) -> AsyncIterator[CertificateKeeper]:
        keeper = CertificateKeeper(home, self.settings(), now=lambda: self.now)
        task = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def world(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(in_cluster_webhook, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(in_cluster_webhook, "MAX_SLEEP_SECONDS", 0.02)
    return World(two)


@pytest.fixture
async def home(world: World) -> AsyncIterator[KubeClient]:
    async with connect(world.access, side="home", notify=lambda _: None) as client:
        yield client


async def test_replicas_share_one_certificate(world: World, home: KubeClient) -> None:
    async with world.keeping(home) as one, world.keeping(home) as other:
        await asyncio.gather(one.context(), other.context())
        await world.home.until(world.agrees)
        await world.home.until(lambda: not one.untrusted_reason() and not other.untrusted_reason())
        assert len(world.certificates()) == 1
    before = world.data()
    async with world.keeping(home) as third:
        await third.context()
        await world.home.until(lambda: not third.untrusted_reason())
    assert world.data() == before


async def test_changed_ca_bundle_is_restored(world: World, home: KubeClient) -> None:
    async with world.keeping(home):
        await world.home.until(world.agrees)
        patch = webhook_configuration.ca_bundle_patch(b"other")
        await home.patch(MUTATING_WEBHOOKS, NAME, patch, kind="strategic")
        await world.home.until(world.agrees)


async def test_emptied_secret_is_filled_again(world: World, home: KubeClient) -> None:
    async with world.keeping(home) as keeper:
        await world.home.until(world.agrees)
        await home.patch(SECRETS, NAME, {"data": None}, namespace=WHERE)
        await world.home.until(lambda: world.agrees() and not keeper.untrusted_reason())


@pytest.mark.parametrize("kind", [SECRETS, MUTATING_WEBHOOKS], ids=str)
async def test_write_that_another_client_sets_back_is_repeated_at_growing_intervals(
    world: World,
    home: KubeClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: Resource,
) -> None:
    monkeypatch.setattr(in_cluster_webhook, "MAX_SLEEP_SECONDS", 60.0)

    def is_written() -> bool:
        return bool(world.data()) if kind is SECRETS else world.bundle() != b"other"

    async def set_back() -> None:
        while True:
            await asyncio.sleep(0.1)
            if is_written() and kind is SECRETS:
                world.home.update(SECRETS, NAME, {"data": None}, WHERE)
            elif is_written():
                patch = webhook_configuration.ca_bundle_patch(b"other")
                await home.patch(MUTATING_WEBHOOKS, NAME, patch, kind="strategic")

    def writes() -> int:
        return sum(
            kind.plural in write.path and b64encode(b"other").decode() not in str(write.body)
            for write in world.home.writes()
        )

    async with world.keeping(home):
        await world.home.until(world.agrees)
        async with background_task(set_back(), name="set-back"):
            await asyncio.sleep(30)
        assert 3 <= writes() <= 10
        assert sum("another client sets" in record.message for record in caplog.records) <= writes()
        await asyncio.sleep(30)
        assert world.agrees()


async def test_certificate_is_renewed_in_time(world: World, home: KubeClient) -> None:
    async with world.keeping(home) as one, world.keeping(home) as other:
        await world.home.until(world.agrees)
        [first] = world.certificates()
        world.now += LIFETIME * webhook_certificate.RENEW
        await world.home.until(lambda: len(world.certificates()) == 2 and world.agrees())
        assert await served(one) == first, "every API server is given the time to know it"
        world.now += webhook_certificate.SETTLED
        [new] = [it for it in world.certificates() if it != first]
        async with asyncio.timeout(SOON):
            while {await served(one), await served(other)} != {new}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_forbidden_write_is_logged_once_and_retried(
    world: World, home: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    fault = world.home.fail(Fault("PATCH", f"*/secrets/{NAME}", code=403, times=None))
    async with world.keeping(home):
        await world.home.until(lambda: fault.hits > 2)
        assert sum("cannot maintain" in it.message for it in caplog.records) == 1
        world.home.heal()
        await world.home.until(world.agrees)


@pytest.mark.parametrize("kind", [SECRETS, MUTATING_WEBHOOKS], ids=str)
async def test_missing_objects_are_logged(
    world: World, home: KubeClient, caplog: pytest.LogCaptureFixture, kind: object
) -> None:
    if kind is SECRETS:
        world.home.remove(SECRETS, NAME, WHERE)
    else:
        world.home.remove(MUTATING_WEBHOOKS, NAME)
    async with world.keeping(home):
        await world.home.until(lambda: any("join again" in it.message for it in caplog.records))


async def test_replica_answers_and_shuts_down_gracefully(
    world: World, unused_tcp_port: int
) -> None:
    labels = {offload_admission_patch.LABEL_OFFLOAD: "remote-only"}
    namespace: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    world.home.put({**namespace, "metadata": {"name": "shop", "labels": labels}})
    assert world.home.get(NAMESPACES, "shop")
    stop = asyncio.Event()
    notified: list[str] = []
    serving = asyncio.create_task(
        in_cluster_webhook.serve(world.settings(unused_tcp_port), notify=notified.append, stop=stop)
    )
    await world.home.until(lambda: any("listens" in it for it in notified))
    await world.home.until(world.agrees)
    trust = ssl.create_default_context(cadata=world.bundle().decode())
    url = f"https://127.0.0.1:{unused_tcp_port}"
    pod: Object = {"metadata": {}, "spec": {"containers": []}}
    review = {"request": {"uid": "7", "namespace": "shop", "object": pod}}
    async with aiohttp.ClientSession() as session:

        async def request(path: str) -> tuple[int, aiohttp.ClientResponse]:
            async with session.get(url + path, ssl=trust, server_hostname=HOST) as answer:
                return answer.status, answer

        async with asyncio.timeout(30):
            while (await request("/readyz"))[0] != 200:  # noqa: ASYNC110  # of another task
                await asyncio.sleep(0.01)
        assert (await request("/livez"))[0] == 200
        async with session.post(
            url + webhook_configuration.MUTATE_PATH, json=review, ssl=trust, server_hostname=HOST
        ) as answer:
            patch = json.loads(b64decode((await answer.json())["response"]["patch"]))
        assert patch == offload_admission_patch.admission_patch(
            pod, offload_admission_patch.Offloading("remote-only")
        )
        stop.set()
        async with asyncio.timeout(30):
            while (await request("/readyz"))[0] != 503:  # noqa: ASYNC110
                await asyncio.sleep(0)
        async with session.post(
            url + webhook_configuration.MUTATE_PATH, json=review, ssl=trust, server_hostname=HOST
        ) as answer:
            assert answer.headers["Connection"] == "close", "the next one is asked elsewhere"
            assert "patch" in (await answer.json())["response"]
        assert not serving.done()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert world.agrees(), "nothing is taken back: the others go on"
