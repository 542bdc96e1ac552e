"""Who calls, and whether they may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest

from bridge.kubelet.auth import (
    ALLOWED_LIFETIME,
    DENIED_LIFETIME,
    TOKEN_LIFETIME,
    Gate,
)
from bridge.kubelet.callers import AUTHENTICATED, User
from bridge.kubelet.refusals import Refusal
from sync.kube.client import KubeClient
from tests.bridge.kubelet.conftest import World
from tests.bridge.kubelet.fakes import FakeHome, access_for


async def test_a_client_certificate_names_user_and_groups(world: World) -> None:
    session = world.session(token=None, cert="apiserver")
    async with session, session.get("/healthz/ping") as response:
        assert response.status == 200
        assert await response.text() == "ok"
    assert not world.home.token_reviews
    (review,) = world.home.access_reviews
    assert review["spec"]["user"] == "kube-apiserver"
    assert review["spec"]["groups"] == ["masters", "watchers", AUTHENTICATED]
    assert review["spec"]["resourceAttributes"] == {
        "verb": "get",
        "version": "v1",
        "resource": "nodes",
        "subresource": "healthz",
        "name": "virtual",
    }


async def test_a_token_is_reviewed_once(world: World) -> None:
    async with world.session() as session:
        for _ in range(3):
            async with session.get("/pods") as response:
                assert response.status == 200
    (review,) = world.home.token_reviews
    assert review["spec"] == {"token": "good"}
    (access,) = world.home.access_reviews
    assert access["spec"]["user"] == "alice"
    assert access["spec"]["groups"] == ["people", AUTHENTICATED]
    assert access["spec"]["uid"] == "7"
    assert access["spec"]["extra"] == {"x": ["1", "2"]}


async def test_a_certificate_comes_before_a_token(world: World) -> None:
    session = world.session(token="bad", cert="apiserver")
    async with session, session.get("/healthz") as response:
        assert response.status == 200
    assert not world.home.token_reviews


@pytest.mark.parametrize("target", ["/healthz", "/exec/default/web/app?output=1", "/none"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "TRACE"])
async def test_anonymous_callers_learn_nothing(world: World, target: str, method: str) -> None:
    session = world.session(token=None)
    async with session, session.request(method, target) as response:
        assert response.status == 401
        assert "Allow" not in response.headers
    assert not world.home.access_reviews
    assert not world.remote.asked


async def test_a_certificate_without_a_name_is_nobodys(world: World) -> None:
    session = world.session(token=None, cert="nameless")
    async with session, session.get("/healthz") as response:
        assert response.status == 401


async def test_a_certificate_of_another_authority_is_not_let_in(world: World) -> None:
    async with world.session(token=None, cert="stranger") as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get("/healthz")
    assert not world.home.access_reviews


async def test_a_bad_token_is_401_and_in_no_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with world.session(token="s3cret-and-bad") as session:
        for _ in range(2):
            async with session.get("/pods") as response:
                assert response.status == 401
                assert "s3cret" not in await response.text()
    assert len(world.home.token_reviews) == 1
    assert "s3cret" not in caplog.text


async def test_a_request_that_cannot_be_read_is_in_no_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", world.server.port, ssl=world.pki.client_context(None)
    )
    writer.write(b"GET /pods HTTP/1.1\r\nAuthorization: Bearer s3cret\x00\r\n\r\n")
    assert (await reader.read(100)).startswith(b"HTTP/1.0 400 ")
    assert "s3cret" not in caplog.text
    writer.close()


async def test_denied_is_403_and_says_what_is_missing(world: World) -> None:
    world.home.denied = {("alice", "get", "pods"), ("alice", "get", "proxy")}
    async with world.session() as session, session.get("/pods") as response:
        assert response.status == 403
        text = await response.text()
    assert "'alice' may not get nodes/pods or nodes/proxy of node 'virtual'" in text
    subresources = [
        review["spec"]["resourceAttributes"]["subresource"] for review in world.home.access_reviews
    ]
    assert subresources == ["pods", "proxy"]


async def test_proxy_is_enough_for_the_finer_ones(world: World) -> None:
    world.home.denied = {("alice", "get", "pods")}
    async with world.session() as session, session.get("/pods") as response:
        assert response.status == 200


async def test_creating_is_asked_for_a_post(world: World) -> None:
    world.home.denied = {("alice", "create", "proxy")}
    async with world.session() as session:
        async with session.post("/exec/default/web/app?output=1") as response:
            assert response.status == 403
        async with session.get("/exec/default/web/app?output=1") as response:
            assert response.status == 400


@pytest.mark.parametrize("kind", ["TokenReview", "SubjectAccessReview"])
async def test_a_failing_review_is_500_and_not_remembered(world: World, kind: str) -> None:
    world.home.failing = {kind}
    async with world.session() as session:
        async with session.get("/pods") as response:
            assert response.status == 500
            assert kind in await response.text()
        world.home.failing = set()
        async with session.get("/pods") as response:
            assert response.status == 200


async def test_methods_that_are_no_verb_are_405_for_who_is_known(world: World) -> None:
    async with world.session() as session:
        for method in ("HEAD", "OPTIONS", "TRACE"):
            async with session.request(method, "/healthz") as response:
                assert response.status == 405
                assert response.headers["Allow"] == "GET, POST"


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def home() -> AsyncIterator[FakeHome]:
    """A home alone."""
    async with FakeHome() as fake:
        yield fake


ALICE = User("alice", ("people",))


async def test_accesses_are_remembered_for_their_time(home: FakeHome) -> None:
    clock = Clock()
    async with KubeClient(access_for(home.url, "home")) as client:
        gate = Gate(client, "virtual", clock=clock)
        home.denied = {("alice", "get", "proxy")}

        async def ask(subresource: str) -> int:
            try:
                await gate.authorize(ALICE, "get", (subresource,))
            except Refusal as refusal:
                assert refusal.status == 403  # noqa: PT017
            return len(home.access_reviews)

        assert [await ask("pods"), await ask("proxy")] == [1, 2]
        clock.now += DENIED_LIFETIME - 1
        assert [await ask("pods"), await ask("proxy")] == [2, 2]
        clock.now += 2
        assert [await ask("pods"), await ask("proxy")] == [2, 3]
        clock.now += ALLOWED_LIFETIME
        assert await ask("pods") == 4
        await gate.close()


async def test_tokens_are_remembered_for_their_time(world: World) -> None:
    clock = Clock()
    gate = world.server._gate
    gate._tokens._known = type(gate._tokens._known)(
        maxsize=9, ttu=lambda _, __, now: now + TOKEN_LIFETIME, timer=clock
    )
    async with world.session() as session:
        for later, reviews in ((0, 1), (TOKEN_LIFETIME - 1, 1), (2, 2)):
            clock.now += later
            async with session.get("/pods") as response:
                assert response.status == 200
            assert len(world.home.token_reviews) == reviews


async def test_the_same_question_is_asked_once_at_a_time(home: FakeHome) -> None:
    home.delay = 0.05
    async with KubeClient(access_for(home.url, "home")) as client:
        gate = Gate(client, "virtual")
        impatient = asyncio.create_task(gate.authorize(ALICE, "get", ("pods",)))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(gate.authorize(ALICE, "get", ("pods",))) for _ in range(9)]
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(*others)
        assert len(home.access_reviews) == 1
        await gate.close()


async def test_closing_ends_what_is_asked(home: FakeHome) -> None:
    home.delay = 0.5
    async with KubeClient(access_for(home.url, "home")) as client:
        gate = Gate(client, "virtual")
        asking = asyncio.create_task(gate.authorize(ALICE, "get", ("pods",)))
        await asyncio.sleep(0.05)
        await gate.close()
        with pytest.raises(asyncio.CancelledError):
            await asking
        home.delay = 0
