"""The Secret that keeps a certificate for all replicas."""

from __future__ import annotations

import asyncio
import base64

import pytest

from bridge.certificates.secret_store import ATTEMPTS, SecretStore
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair
from sync.kube.api_errors import Conflict
from sync.kube.api_resources import SECRETS
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.objects import secret

KEY = b"-----BEGIN PRIVATE KEY-----\nabc\n"
PAIR, OTHER = TlsKeyPair(b"one", KEY), TlsKeyPair(b"other", KEY + b"\n")


@pytest.fixture
async def two(home_api: FakeApi, client_for: ClientFor) -> tuple[SecretStore, SecretStore]:
    """The stores of two replicas."""
    home_api.put(secret("state", namespace="ns", data={"renewed-token": "eA=="}))
    client = await client_for(home_api, "home")
    return SecretStore(client, "ns", "state"), SecretStore(client, "ns", "state")


async def test_first_key_of_a_request_counts(two: tuple[SecretStore, SecretStore]) -> None:
    one, other = two
    assert await one.pending() is None
    assert await other.pending() is None
    assert await one.keep_pending(b"key of one")
    assert not await other.keep_pending(b"key of the other")
    assert await other.pending() == b"key of one"
    assert await other.keep_pending(b"key of one")


async def test_key_is_forgotten_unless_it_was_replaced(
    two: tuple[SecretStore, SecretStore],
) -> None:
    one, other = two
    await one.pending()
    await one.keep_pending(b"second")
    await other.forget_pending(b"first")
    assert await one.pending() == b"second"
    await other.forget_pending(b"second")
    assert await one.pending() is None


async def test_certificate_removes_the_key_of_its_request_and_nothing_else(
    two: tuple[SecretStore, SecretStore], home_api: FakeApi
) -> None:
    one, other = two
    await one.pending()
    await one.keep_pending(KEY)
    home_api.fail(Fault("PATCH", code=409, times=1))
    await one.keep(PAIR)
    await other.keep(PAIR)
    assert await other.current() == PAIR
    assert set(home_api.get(SECRETS, "state", "ns")["data"]) == {"client.pem", "renewed-token"}
    assert len(home_api.requests("PATCH")) == 3


async def test_conflicts_without_end_are_raised(
    two: tuple[SecretStore, SecretStore], home_api: FakeApi
) -> None:
    one, _ = two
    await one.pending()
    await one.keep_pending(KEY)
    home_api.fail(Fault("PATCH", code=409, times=None))
    home_api.clear_log()
    with pytest.raises(Conflict):
        await one.keep(PAIR)
    with pytest.raises(Conflict):
        await one.forget_pending(KEY)
    assert len(home_api.requests("PATCH")) == 2 * ATTEMPTS


async def test_late_replica_does_not_store_an_earlier_certificate(
    two: tuple[SecretStore, SecretStore],
) -> None:
    one, other = two
    await one.keep(OTHER)
    await other.keep(PAIR)
    assert await one.current() == OTHER


async def test_content_that_cannot_be_decoded_counts_as_absent(
    two: tuple[SecretStore, SecretStore], home_api: FakeApi
) -> None:
    one, _ = two
    data = {"client.pem": "?", "client-pending.key": "?"}
    home_api.update(SECRETS, "state", {"data": data}, "ns")
    assert await one.current() is None
    assert await one.pending() is None
    await one.keep(PAIR)
    assert await one.current() == PAIR


async def test_another_certificate_and_its_loss_end_the_wait(
    two: tuple[SecretStore, SecretStore], home_api: FakeApi
) -> None:
    one, _ = two
    await one.keep(PAIR)
    for changed in ({"client.pem": base64.b64encode(OTHER.pem).decode()}, {"client.pem": None}):
        known = await one.current()
        waiting = asyncio.create_task(one.wait_until_other(known))
        await home_api.until(lambda: home_api.open_watches(SECRETS))
        home_api.update(SECRETS, "state", {"data": {"renewed-token": "eQ=="}}, "ns")
        await asyncio.sleep(0.05)
        assert not waiting.done()
        home_api.update(SECRETS, "state", {"data": changed}, "ns")
        async with asyncio.timeout(10):
            await waiting
        await home_api.until(lambda: not home_api.open_watches(SECRETS))


async def test_missing_secret_is_named(
    two: tuple[SecretStore, SecretStore], home_api: FakeApi
) -> None:
    home_api.remove(SECRETS, "state", "ns")
    with pytest.raises(CertificateError, match="home: Secret ns/state does not exist"):
        await two[0].prepare()
