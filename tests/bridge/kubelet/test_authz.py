"""Authentication and authorization of requests to the kubelet API."""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from bridge.kubelet.authn import (
    AUTHENTICATED,
    MAX_REVIEWS,
    TOKEN_LIFETIME,
    TOKEN_PROTOCOL,
    Authenticator,
    InvalidCredentialError,
    ReviewClient,
    User,
)
from bridge.kubelet.authz import ALLOWED_LIFETIME, DENIED_LIFETIME, Authorizer
from bridge.kubelet.error_responses import HttpError
from bridge.net import single_flight_cache
from sync.kube.client import KubeClient
from tests.bridge.kubelet.conftest import KubeletHarness
from tests.bridge.kubelet.fake_api_servers import EXEC, FakeHome, access_for, echo, wait_until


async def test_client_certificate_authenticates_user_and_groups(harness: KubeletHarness) -> None:
    session = harness.session(token=None, cert="apiserver")
    async with session, session.get("/healthz/ping") as response:
        assert response.status == 200
        assert await response.text() == "ok"
    assert not harness.home.token_reviews
    (review,) = harness.home.access_reviews
    assert review["spec"]["user"] == "kube-apiserver"
    assert review["spec"]["groups"] == ["masters", "watchers", AUTHENTICATED]
    assert review["spec"]["resourceAttributes"] == {
        "verb": "get",
        "version": "v1",
        "resource": "nodes",
        "subresource": "healthz",
        "name": "virtual",
    }


async def test_token_is_reviewed_once(harness: KubeletHarness) -> None:
    async with harness.session() as session:
        for _ in range(3):
            async with session.get("/pods") as response:
                assert response.status == 200
    (review,) = harness.home.token_reviews
    assert review["spec"] == {"token": "good"}
    (access,) = harness.home.access_reviews
    assert access["spec"]["user"] == "alice"
    assert access["spec"]["groups"] == ["people", AUTHENTICATED]
    assert access["spec"]["uid"] == "7"
    assert access["spec"]["extra"] == {"x": ["1", "2"]}


async def test_certificate_takes_precedence_over_token(harness: KubeletHarness) -> None:
    session = harness.session(token="bad", cert="apiserver")
    async with session, session.get("/healthz") as response:
        assert response.status == 200
    assert not harness.home.token_reviews


@pytest.mark.parametrize("target", ["/healthz", "/exec/default/web/app?output=1", "/none"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "TRACE"])
async def test_anonymous_requests_get_401_whatever_the_path(
    harness: KubeletHarness, target: str, method: str
) -> None:
    session = harness.session(token=None)
    async with session, session.request(method, target) as response:
        assert response.status == 401
        assert "Allow" not in response.headers
    assert not harness.home.access_reviews
    assert not harness.remote.requests


async def test_certificate_without_user_name_gets_401(harness: KubeletHarness) -> None:
    session = harness.session(token=None, cert="nameless")
    async with session, session.get("/healthz") as response:
        assert response.status == 401


async def test_certificate_of_another_ca_is_rejected(harness: KubeletHarness) -> None:
    async with harness.session(token=None, cert="stranger") as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get("/healthz")
    assert not harness.home.access_reviews


async def test_invalid_token_gets_401_and_is_not_logged(
    harness: KubeletHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with harness.session(token="s3cret-and-bad") as session:
        for _ in range(2):
            async with session.get("/pods") as response:
                assert response.status == 401
                assert "s3cret" not in await response.text()
    assert len(harness.home.token_reviews) == 1
    assert "s3cret" not in caplog.text


async def test_malformed_request_is_not_logged(
    harness: KubeletHarness, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context(None)
    )
    writer.write(b"GET /pods HTTP/1.1\r\nAuthorization: Bearer s3cret\x00\r\n\r\n")
    assert (await reader.read(100)).startswith(b"HTTP/1.0 400 ")
    assert "s3cret" not in caplog.text
    writer.close()


async def test_denied_request_gets_403_with_the_missing_permission(harness: KubeletHarness) -> None:
    harness.home.denied = {("alice", "get", "pods"), ("alice", "get", "proxy")}
    async with harness.session() as session, session.get("/pods") as response:
        assert response.status == 403
        text = await response.text()
    assert "'alice' may not get nodes/pods or nodes/proxy of node 'virtual'" in text
    subresources = [
        review["spec"]["resourceAttributes"]["subresource"]
        for review in harness.home.access_reviews
    ]
    assert subresources == ["pods", "proxy"]


async def test_permission_on_proxy_suffices_for_newer_subresources(harness: KubeletHarness) -> None:
    harness.home.denied = {("alice", "get", "pods")}
    async with harness.session() as session, session.get("/pods") as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "path",
    ["exec/shop/web/main", "attach/shop/web/main", "portForward/shop/web", "run/shop/web/main"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_connecting_paths_need_create_whatever_the_method(
    harness: KubeletHarness, path: str, method: str
) -> None:
    """A WebSocket begins with a GET: permission to read must not allow to run commands."""
    harness.home.denied = {("alice", "create", "proxy")}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    async with harness.session() as session:
        async with session.request(method, f"/{path}?command=id", headers=upgrade) as response:
            assert response.status == 403
            assert "create" in await response.text()
        async with session.get("/containerLogs/shop/absent/main") as response:
            assert response.status == 404, "reading takes get alone"


@pytest.mark.parametrize("kind", ["TokenReview", "SubjectAccessReview"])
async def test_failed_review_gets_500_and_is_not_cached(harness: KubeletHarness, kind: str) -> None:
    harness.home.failing = {kind}
    async with harness.session() as session:
        async with session.get("/pods") as response:
            assert response.status == 500
            assert kind in await response.text()
        harness.home.failing = set()
        async with session.get("/pods") as response:
            assert response.status == 200


async def test_methods_without_verb_get_405(harness: KubeletHarness) -> None:
    async with harness.session() as session:
        for method in ("HEAD", "OPTIONS", "TRACE"):
            async with session.request(method, "/healthz") as response:
                assert response.status == 405
                assert response.headers["Allow"] == "GET, POST"


class Clock:
    """A clock that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def home() -> AsyncIterator[FakeHome]:
    """A fake home without a kubelet API."""
    async with FakeHome() as fake:
        yield fake


ALICE = User("alice", ("people",))


async def test_decisions_are_cached_for_their_lifetime(home: FakeHome) -> None:
    clock = Clock()
    async with KubeClient(access_for(home.url, "home")) as client:
        authorizer = Authorizer(ReviewClient(client), "virtual", clock=clock)
        home.denied = {("alice", "get", "proxy")}

        async def ask(subresource: str) -> int:
            try:
                await authorizer.authorize(ALICE, "get", (subresource,))
            except HttpError as refusal:
                assert refusal.status == 403  # noqa: PT017
            return len(home.access_reviews)

        assert [await ask("pods"), await ask("proxy")] == [1, 2]
        clock.now += DENIED_LIFETIME - 1
        assert [await ask("pods"), await ask("proxy")] == [2, 2]
        clock.now += 2
        assert [await ask("pods"), await ask("proxy")] == [2, 3]
        clock.now += ALLOWED_LIFETIME
        assert await ask("pods") == 4
        await authorizer.close()


async def test_tokens_are_cached_for_their_lifetime(home: FakeHome) -> None:
    clock = Clock()
    async with KubeClient(access_for(home.url, "home")) as client:
        authenticator = Authenticator(ReviewClient(client), clock=clock)
        for later, reviews in ((0, 1), (TOKEN_LIFETIME - 1, 1), (2, 2)):
            clock.now += later
            assert (await authenticator.token_user("good")).name == "alice"
            assert len(home.token_reviews) == reviews
        await authenticator.close()


async def test_equal_reviews_share_one_request(home: FakeHome) -> None:
    home.delay = 0.05
    async with KubeClient(access_for(home.url, "home")) as client:
        authorizer = Authorizer(ReviewClient(client), "virtual")
        impatient = asyncio.create_task(authorizer.authorize(ALICE, "get", ("pods",)))
        await asyncio.sleep(0.01)
        others = [
            asyncio.create_task(authorizer.authorize(ALICE, "get", ("pods",))) for _ in range(9)
        ]
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(*others)
        assert len(home.access_reviews) == 1
        await authorizer.close()


async def test_close_cancels_reviews_in_flight(home: FakeHome) -> None:
    home.delay = 0.5
    async with KubeClient(access_for(home.url, "home")) as client:
        authorizer = Authorizer(ReviewClient(client), "virtual")
        asking = asyncio.create_task(authorizer.authorize(ALICE, "get", ("pods",)))
        await asyncio.sleep(0.05)
        await authorizer.close()
        with pytest.raises(asyncio.CancelledError):
            await asking
        home.delay = 0


async def test_other_authorization_schemes_are_no_credential(harness: KubeletHarness) -> None:
    headers = {"Authorization": "Basic YTpi"}
    async with (
        harness.session(token=None) as session,
        session.get("/healthz", headers=headers) as response,
    ):
        assert response.status == 401


# -- certificates and tokens on the wire -------------------------------------------------


async def test_server_certificate_is_rejected(harness: KubeletHarness) -> None:
    """As in Go's x509.VerifyOptions with ExtKeyUsageClientAuth."""
    async with harness.session(token=None, cert="server-only") as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get("/healthz")
    session = harness.session(token=None, cert="client-only")
    async with session, session.get("/healthz") as response:
        assert response.status == 200
    (review,) = harness.home.access_reviews
    assert review["spec"]["user"] == "client-only"
    (identity,) = review["spec"]["extra"]["authentication.kubernetes.io/credential-id"]
    certificate = x509.load_pem_x509_certificate(harness.pki.files("client-only")[0].read_bytes())
    assert identity == "X509SHA256=" + certificate.fingerprint(hashes.SHA256()).hex()


async def test_websocket_token_authenticates_and_is_not_forwarded(harness: KubeletHarness) -> None:
    harness.remote.handler = echo
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context(None)
    )
    token = TOKEN_PROTOCOL + urlsafe_b64encode(b"good").decode().rstrip("=")
    lines = [
        f"GET {EXEC} HTTP/1.1",
        "Host: x",
        "Connection: Upgrade",
        "Upgrade: websocket",
        f"Sec-WebSocket-Protocol: v4.channel.k8s.io, {token}",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    (request,) = harness.remote.requests
    assert request.header_values("Sec-WebSocket-Protocol") == ["v4.channel.k8s.io"]
    (review,) = harness.home.token_reviews
    assert review["spec"] == {"token": "good"}
    writer.close()


# -- resources that clients can use ------------------------------------------------------


async def test_token_reviews_in_flight_are_bounded(home: FakeHome) -> None:
    home.held["TokenReview"] = asyncio.Event()
    async with KubeClient(access_for(home.url, "home")) as client:
        reviews = ReviewClient(client)
        authenticator, authorizer = Authenticator(reviews), Authorizer(reviews, "virtual")
        asking = [
            asyncio.create_task(authenticator.token_user(f"unknown-{number}"))
            for number in range(3 * MAX_REVIEWS)
        ]
        await wait_until(lambda: len(home.token_reviews) == MAX_REVIEWS)
        await asyncio.sleep(0.05)
        assert len(home.token_reviews) == MAX_REVIEWS
        # They do not delay authenticated clients.
        await authorizer.authorize(ALICE, "get", ("pods",))
        assert len(home.token_reviews) == MAX_REVIEWS
        home.held["TokenReview"].set()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(outcome, InvalidCredentialError) for outcome in outcomes)
        assert len(home.token_reviews) == 3 * MAX_REVIEWS
        await authenticator.close()
        await authorizer.close()


async def test_cached_results_are_bounded(home: FakeHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_flight_cache, "SIZE", 8)
    async with KubeClient(access_for(home.url, "home")) as client:
        authenticator = Authenticator(ReviewClient(client))
        for number in range(20):
            with pytest.raises(InvalidCredentialError):
                await authenticator.token_user(f"unknown-{number}")
        for number, misses in ((19, 20), (12, 20), (11, 21)):
            with pytest.raises(InvalidCredentialError):
                await authenticator.token_user(f"unknown-{number}")
            assert authenticator.tokens.misses == misses
        await authenticator.close()


async def test_revoked_permission_is_denied_after_the_cache_lifetime(
    home: FakeHome,
) -> None:
    clock = Clock()
    async with KubeClient(access_for(home.url, "home")) as client:
        authorizer = Authorizer(ReviewClient(client), "virtual", clock=clock)
        await authorizer.authorize(ALICE, "get", ("proxy",))
        home.denied = {("alice", "get", "proxy")}
        clock.now += ALLOWED_LIFETIME - 1
        await authorizer.authorize(ALICE, "get", ("proxy",))
        clock.now += 2
        with pytest.raises(HttpError) as refused:
            await authorizer.authorize(ALICE, "get", ("proxy",))
        assert refused.value.status == 403
        home.denied = set()
        clock.now += DENIED_LIFETIME + 1
        await authorizer.authorize(ALICE, "get", ("proxy",))
        await authorizer.close()
