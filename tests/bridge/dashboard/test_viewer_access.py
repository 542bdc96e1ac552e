"""Home decides which viewers may read the dashboard: reviews, their cache, and sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from bridge.dashboard import viewer_access
from bridge.dashboard.viewer_access import (
    COOKIE,
    MAX_OWN_SESSIONS,
    MAX_SESSIONS,
    SESSION_SECONDS,
    Viewer,
    ViewerAccess,
    ViewerSessions,
)
from bridge.kubelet.authn import User
from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.token_access import LIFETIME, MAX_TOKEN
from sync.kube.api_resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault, client_config_for
from translators.object_accessors import Object

SERVICE = ("bridges", "dashboard")


class Home:
    """Home's users and permissions, and the time."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.users: dict[str, str] = {"token-of-ann": "ann", "token-of-bob": "bob"}
        self.permitted = {"ann"}
        self.now = 0.0
        self.reviewed: list[Object] = []
        api.api.authenticate = self._user
        api.api.authorize = self._permits

    def _user(self, token: str) -> Object | None:
        name = self.users.get(token)
        return {"username": name, "groups": ["team"], "uid": "u1"} if name else None

    def _permits(self, spec: Object) -> bool:
        self.reviewed.append(spec)
        return spec["user"] in self.permitted

    def reviews(self) -> tuple[int, int]:
        """The TokenReviews and SubjectAccessReviews so far."""
        paths = (TOKEN_REVIEWS.path(), SUBJECT_ACCESS_REVIEWS.path())
        tokens, accesses = (len(self.api.requests("POST", it)) for it in paths)
        return tokens, accesses


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with FakeApi() as api:
        yield Home(api)


@pytest.fixture
async def access(home: Home) -> AsyncIterator[ViewerAccess]:
    async with KubeClient(client_config_for(home.api, "home")) as client:
        found = ViewerAccess(client, *SERVICE, clock=lambda: home.now)
        try:
            yield found
        finally:
            await found.close()


def request(**headers: str) -> web.BaseRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return make_mocked_request("GET", "/", headers=named)


async def code(access: ViewerAccess, **headers: str) -> int:
    """The status of a request with these headers; 200 for a permitted viewer."""
    try:
        await access.viewer_of(request(**headers))
    except HttpError as error:
        return error.status
    return 200


async def test_permitted_viewer_is_known_by_home(access: ViewerAccess, home: Home) -> None:
    viewer = await access.viewer_of(request(Authorization="Bearer token-of-ann"))
    assert viewer.user.name == "ann"
    assert "token-of-ann" not in repr(viewer)
    assert home.reviewed == [
        {
            "user": "ann",
            "groups": ["team", "system:authenticated"],
            "uid": "u1",
            "extra": {},
            "resourceAttributes": {
                "verb": "get",
                "version": "v1",
                "resource": "services",
                "subresource": "proxy",
                "namespace": "bridges",
                "name": "dashboard",
            },
        }
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer caf\u00e9"},
        {"Authorization": "token-of-ann"},
        {"Cookie": f"{COOKIE}=guess"},
        {"Cookie": f"{COOKIE}=token-of-ann"},
        {"X-Remote-User": "ann"},
        {"X-Forwarded-User": "ann", "X-Remote-Group": "system:masters"},
    ],
)
async def test_request_without_a_token_is_rejected_without_a_review(
    access: ViewerAccess, home: Home, headers: dict[str, str]
) -> None:
    assert await code(access, **headers) == 401
    assert home.reviews() == (0, 0)


async def test_unknown_token_is_rejected(access: ViewerAccess) -> None:
    with pytest.raises(HttpError) as raised:
        await access.viewer_of(request(Authorization="Bearer secret-4711"))
    assert raised.value.status == 401
    assert "4711" not in raised.value.message


async def test_user_without_the_permission_is_forbidden(access: ViewerAccess) -> None:
    with pytest.raises(HttpError, match="may not get services/proxy of Service bridges/dashboard"):
        await access.viewer_of(request(Authorization="Bearer token-of-bob"))
    assert await code(access, Authorization="Bearer token-of-bob") == 403


@pytest.mark.parametrize("path", [TOKEN_REVIEWS.path(), SUBJECT_ACCESS_REVIEWS.path()])
async def test_failed_review_permits_nobody(access: ViewerAccess, home: Home, path: str) -> None:
    home.api.faults.add(Fault("POST", path, code=403, times=None))
    assert await code(access, Authorization="Bearer token-of-ann") == 500
    home.api.faults.lift()
    assert await code(access, Authorization="Bearer token-of-ann") == 200, "a failure is not cached"


async def test_results_are_cached_for_their_lifetime(access: ViewerAccess, home: Home) -> None:
    for _ in range(3):
        assert await code(access, Authorization="Bearer token-of-ann") == 200
        assert await code(access, Authorization="Bearer token-of-bob") == 403
        assert await code(access, Authorization="Bearer nonsense") == 401
    assert home.reviews() == (3, 2)
    home.now = LIFETIME + 1
    assert await code(access, Authorization="Bearer token-of-ann") == 200
    assert home.reviews() == (4, 3)


async def test_expired_token_ends_access_after_the_lifetime(
    access: ViewerAccess, home: Home
) -> None:
    assert await code(access, Authorization="Bearer token-of-ann") == 200
    del home.users["token-of-ann"]
    home.now = LIFETIME - 1
    assert await code(access, Authorization="Bearer token-of-ann") == 200
    home.now = LIFETIME + 1
    assert await code(access, Authorization="Bearer token-of-ann") == 401


async def test_withdrawn_permission_ends_access_and_a_new_one_begins_it(
    access: ViewerAccess, home: Home
) -> None:
    assert await code(access, Authorization="Bearer token-of-ann") == 200
    assert await code(access, Authorization="Bearer token-of-bob") == 403
    home.permitted = {"bob"}
    home.now = LIFETIME + 1
    assert await code(access, Authorization="Bearer token-of-ann") == 403
    assert await code(access, Authorization="Bearer token-of-bob") == 200


def viewer(name: str, token: str = "") -> Viewer:
    return Viewer(User(name, ()), token or f"token-of-{name}")


async def test_session_stands_for_its_token(access: ViewerAccess, home: Home) -> None:
    session = access.sessions.begin(viewer("ann"))
    cookie = {"Cookie": f"{COOKIE}={session}"}
    assert await code(access, **cookie) == 200
    # A token decides before the session.
    assert await code(access, **cookie, Authorization="Bearer token-of-bob") == 403
    del home.users["token-of-ann"]
    home.now = LIFETIME + 1
    assert await code(access, **cookie) == 401, "a session lives no longer than its token"
    assert access.sessions.token(session) is None, "nor is the token kept"


async def test_session_outlives_a_failed_review_and_a_withdrawn_permission(
    access: ViewerAccess, home: Home
) -> None:
    session = access.sessions.begin(viewer("ann"))
    cookie = {"Cookie": f"{COOKIE}={session}"}
    home.api.faults.add(Fault("POST", TOKEN_REVIEWS.path(), code=403, times=None))
    assert await code(access, **cookie) == 500
    home.api.faults.lift()
    home.permitted = set()
    assert await code(access, **cookie) == 403
    home.permitted, home.now = {"ann"}, LIFETIME + 1
    assert await code(access, **cookie) == 200


def test_sessions_end_and_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sessions = ViewerSessions(clock=lambda: now[0])
    first, second = (sessions.begin(viewer(it, it)) for it in ("a", "b"))
    assert first != second
    sessions.end(second)
    sessions.end("unknown")
    assert (sessions.token(first), sessions.token(second)) == ("a", None)
    monkeypatch.setattr(viewer_access, "MAX_SESSIONS", 2)
    third, fourth = (sessions.begin(viewer(it, it)) for it in ("c", "d"))
    assert [sessions.token(it) for it in (first, third, fourth)] == [None, "c", "d"]
    now[0] = SESSION_SECONDS
    assert sessions.token(fourth) is None


def test_no_viewer_signs_another_out() -> None:
    sessions = ViewerSessions()
    ann = sessions.begin(viewer("ann"))
    many = [sessions.begin(viewer("bob", f"t{it}")) for it in range(MAX_SESSIONS + 1)]
    assert sessions.token(ann) == "token-of-ann"
    assert [it for it in many if sessions.token(it)] == many[-MAX_OWN_SESSIONS:]
    assert "token-of" not in repr(vars(sessions))


async def test_token_of_excessive_length_is_rejected(access: ViewerAccess, home: Home) -> None:
    for token in ("", "x" * (MAX_TOKEN + 1), "two words\n", "caf\u00e9"):
        with pytest.raises(HttpError) as raised:
            await access.check(token)
        assert raised.value.status == 401
    assert home.reviews() == (0, 0)
