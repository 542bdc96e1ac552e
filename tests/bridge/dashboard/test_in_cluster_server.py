"""The dashboard in a cluster serves only viewers whom home permits, and writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.base.command_error import PreflightError
from bridge.certificates import x509_builder
from bridge.dashboard import in_cluster_server as server
from bridge.dashboard import live_stream
from bridge.dashboard.in_cluster_server import InClusterSettings
from bridge.dashboard.page_responses import read_files
from bridge.dashboard.viewer_access import COOKIE
from sync.kube.api_resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.dashboard import example_fleet
from tests.fakeapi import FakeApi, Fault, client_config_for
from tests.fakeapi.kubeconfig import kubeconfig, write

SOON = 15.0
USERS = {"token-of-ann": "ann", "token-of-bob": "bob"}
REVIEWS = {TOKEN_REVIEWS.path(), SUBJECT_ACCESS_REVIEWS.path()}


@dataclass
class Page:
    """A served dashboard, and a client without a credential."""

    api: FakeApi
    url: str
    session: aiohttp.ClientSession
    permitted: set[str] = field(default_factory=lambda: {"ann"})

    async def send(
        self, path: str, method: str = "GET", *, token: str = "", **options: Any
    ) -> tuple[int, str, aiohttp.ClientResponse]:
        """Status, text and response; redirects are not followed."""
        headers = {**({"Authorization": f"Bearer {token}"} if token else {})}
        headers |= options.pop("headers", {})
        request = self.session.request(
            method, f"{self.url}{path}", headers=headers, allow_redirects=False, **options
        )
        async with request as answer:
            return answer.status, await answer.text(), answer

    async def until(self, path: str, **options: Any) -> None:
        """Waits until the path is served."""
        async with asyncio.timeout(SOON):
            # There is no event for what another process sees of the server.
            while (await self.send(path, **options))[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def sign_in(self, token: str, **headers: str) -> tuple[int, str, aiohttp.ClientResponse]:
        """Sends the form of the sign-in page."""
        return await self.send("/sign-in", "POST", data={"token": token}, headers=headers)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """Home with three remotes and 30 pods, and its dashboard."""
    pair = x509_builder.self_signed("dashboard", ["127.0.0.1", "localhost"])
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    files[0].write_bytes(pair.certificate)
    files[1].write_bytes(pair.key)
    settings = InClusterSettings(KubeconfigRef(), "bridges", "dashboard", 0, files)
    context = ssl.create_default_context(cadata=pair.certificate.decode())
    async with FakeApi() as api:
        example_fleet.put_fleet(api, remotes=3, pods=30)
        api.api.authenticate = lambda it: {"username": USERS[it]} if it in USERS else None
        async with (
            KubeClient(client_config_for(api, "home")) as home,
            server.in_cluster_server(home, settings) as port,
            # A browser's cookies; aiohttp keeps none of an IP address by default.
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context), cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
        ):
            found = Page(api, f"https://127.0.0.1:{port}", session)
            api.api.authorize = lambda spec: spec["user"] in found.permitted
            await found.until("/readyz")
            yield found


def cookie_of(answer: aiohttp.ClientResponse) -> str:
    return answer.cookies[COOKIE].value


async def test_no_path_is_served_without_authentication(page: Page) -> None:
    unknown: list[dict[str, Any]] = [
        {},
        {"token": "nonsense"},
        {"headers": {"Cookie": f"{COOKIE}=nonsense"}},
    ]
    paths = [*read_files(), *(f"/api/v1/{it}" for it in ("live", "fleet", "history", "pods"))]
    paths += ["/api/v1/viewer", "/api/v1/pods/shop/web/explain", "/unknown", "/sign-in.html", "//"]
    for path in {*paths} - {"/", "/style.css", "/theme.js", "/icon.svg"}:
        for options in unknown:
            status, text, answer = await page.send(path, **options)
            assert (status, "sign in" in text) == (401, True), path
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert (await page.send(path, token="token-of-bob"))[0] == 403, path
    for options in unknown:
        status, _, answer = await page.send("/", **options)
        assert (status, answer.headers["Location"]) == (303, "sign-in")
    assert (await page.send("/", token="token-of-bob"))[0] == 403


async def test_open_paths_show_nothing_of_the_clusters(page: Page) -> None:
    for path in ("/sign-in", "/style.css", "/theme.js", "/icon.svg", "/livez", "/readyz"):
        status, text, answer = await page.send(path)
        assert status == 200
        assert not [it for it in (*example_fleet.names(3), "production") if it in text], path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"


async def test_permitted_viewer_reads_the_page(page: Page) -> None:
    status, text, answer = await page.send("/", token="token-of-ann")
    assert status == 200
    assert "Sign out" not in text, "there is no session"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    status, text, _ = await page.send("/api/v1/fleet", token="token-of-ann")
    assert status == 200
    assert all(it in text for it in example_fleet.names(3))
    assert (await page.send("/unknown", token="token-of-ann"))[0] == 404


async def test_page_is_read_only(page: Page) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
        for path in ("/", "/api/v1/pods", "/livez"):
            status, _, answer = await page.send(path, method, token="token-of-ann")
            assert (status, answer.headers["Allow"]) == (405, "GET")
    await page.sign_in("token-of-ann")
    assert {it.path for it in page.api.writes()} <= REVIEWS


async def test_viewer_signs_in_and_out(page: Page, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    status, _, answer = await page.sign_in(" token-of-ann\n", Origin=page.url)
    assert (status, answer.headers["Location"]) == (303, "./")
    attributes = answer.headers["Set-Cookie"]
    for word in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/", "Max-Age="):
        assert word in attributes
    assert "Domain" not in attributes
    cookie = {"Cookie": f"{COOKIE}={cookie_of(answer)}"}
    status, text, _ = await page.send("/", headers=cookie)
    assert status == 200
    assert 'action="sign-out"' in text
    assert ">ann<" in text
    assert (await page.send("/api/v1/viewer", headers=cookie))[1] == '{"user": "ann"}'

    status, _, answer = await page.send("/sign-out", "POST", headers=cookie)
    assert (status, answer.headers["Location"]) == (303, "sign-in")
    assert (await page.send("/api/v1/pods", headers=cookie))[0] == 401
    assert "token-of-ann" not in caplog.text
    assert "'ann' signed in" in caplog.text


@pytest.mark.parametrize(
    ("token", "code", "words"),
    [
        ("nonsense", 401, "does not accept this token"),
        ("", 401, "does not accept this token"),
        ("token-of-bob", 403, "does not permit you"),
    ],
)
async def test_failed_sign_in_has_its_reason_and_no_session(
    page: Page, token: str, code: int, words: str
) -> None:
    status, text, answer = await page.sign_in(token)
    assert (status, words in text) == (code, True)
    assert 'role="alert"' in text
    assert "Set-Cookie" not in answer.headers
    assert not token or token not in text


async def test_requests_of_other_sites_are_rejected(page: Page) -> None:
    _, _, answer = await page.sign_in("token-of-ann")
    cookie = {"Cookie": f"{COOKIE}={cookie_of(answer)}"}
    for header in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": page.url.replace("https:", "http:")},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        headers = {**cookie, **header}
        assert (await page.send("/api/v1/pods", headers=headers))[0] == 403, header
        status, _, answer = await page.sign_in("token-of-ann", **header)
        assert (status, "Set-Cookie" in answer.headers) == (403, False), header
        assert (await page.send("/sign-out", "POST", headers=headers))[0] == 403, header
    assert (await page.send("/api/v1/pods", headers=cookie))[0] == 200, "the session goes on"


async def test_malformed_sign_in_is_rejected(page: Page) -> None:
    for data, kind, code in (
        (b"{}", "application/json", 400),
        (b"token=%ff\xff", "application/x-www-form-urlencoded", 400),
        (b"a&" * 50, "application/x-www-form-urlencoded", 400),
        (b"token=" + b"x" * server.MAX_FORM, "application/x-www-form-urlencoded", 413),
    ):
        status, _, _ = await page.send(
            "/sign-in", "POST", data=data, headers={"Content-Type": kind}
        )
        assert status == code, data[:20]
    assert (await page.send("/sign-in", "PUT"))[0] == 405


async def test_details_are_read_with_the_token_of_the_viewer(page: Page) -> None:
    row = example_fleet.pod(1, "")["metadata"]
    pod = f"/api/v1/pods/{row['namespace']}/{row['name']}"
    page.api.log.clear()
    status, text, _ = await page.send(f"{pod}/explain", token="token-of-ann")
    assert status == 200
    assert "the dashboard has no access to it" in text
    assert (await page.send(f"{pod}/events", token="token-of-ann"))[0] == 200
    reads = page.api.requests("GET", "/api/v1/namespaces/*")
    assert {it.authorization for it in reads} == {"Bearer token-of-ann"}
    assert [it for it in reads if it.path.endswith("/events")]
    page.api.fail(Fault("GET", "*/events*", code=403, message="you may not"))
    status, text, _ = await page.send(f"{pod}/events", token="token-of-ann")
    assert (status, "you may not" in text) == (403, True)


async def test_stream_ends_and_is_authorised_again(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_stream, "STREAM_SECONDS", 0.5)
    async with asyncio.timeout(SOON):
        status, text, _ = await page.send("/api/v1/live", token="token-of-ann")
    assert status == 200
    assert "data: {" in text


async def test_requests_in_progress_are_limited(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_REQUESTS", 1)
    headers = {"Authorization": "Bearer token-of-ann"}
    async with page.session.get(f"{page.url}/api/v1/live", headers=headers) as stream:
        assert stream.status == 200
        status, _, answer = await page.send("/api/v1/pods", token="token-of-ann")
        assert (status, answer.headers["Retry-After"]) == (503, "5")
    await page.until("/api/v1/pods", token="token-of-ann")


async def test_callers_without_a_token_end_no_stream(page: Page) -> None:
    """They can fill the waiting connections; a permitted stream does not wait."""
    headers = {"Authorization": "Bearer token-of-ann"}
    async with page.session.get(f"{page.url}/api/v1/live", headers=headers) as stream:
        await stream.content.readline()
        port = int(page.url.rpartition(":")[2])
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(140)]
        async with asyncio.timeout(SOON):
            with contextlib.suppress(ConnectionResetError):
                assert await opened[0][0].read() == b"", "one more ends the oldest"
            page.api.put(example_fleet.pod(99_999, example_fleet.names(3)[0]))
            while b"99999" not in await stream.content.readline():
                pass
        for _, writer in opened:
            writer.transport.abort()


async def test_plain_http_is_not_served(page: Page) -> None:
    with pytest.raises(aiohttp.ClientError):
        await page.session.get(page.url.replace("https:", "http:") + "/livez")


async def test_serve_announces_its_service_until_stopped(tmp_path: Path) -> None:
    async with FakeApi() as api:
        content = kubeconfig(api.url, user={"token": "none"}, context="home")
        ref = KubeconfigRef(write(tmp_path / "home.yaml", content))
        stop, lines = asyncio.Event(), []

        def notify(line: str) -> None:
            lines.append(line)
            if "listens" in line:
                stop.set()

        async with asyncio.timeout(SOON):
            settings = InClusterSettings(ref, "bridges", "dashboard", 0)
            await server.serve(settings, notify=notify, stop=stop)
        assert "the dashboard of Service bridges/dashboard listens on" in lines[-1]
        taken = await asyncio.start_server(lambda *_: None, "", 0)
        port = taken.sockets[0].getsockname()[1]
        settings = InClusterSettings(ref, "bridges", "dashboard", port)
        with pytest.raises(PreflightError, match="choose another --port"):
            await server.serve(settings, notify=notify, stop=asyncio.Event())
        taken.close()
