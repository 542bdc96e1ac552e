"""OIDC users of kubeconfigs: refresh tokens that the issuer accepts once."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from sync.kube import credentials as access_module
from sync.kube import oidc
from sync.kube.api_errors import ClientConfigError
from sync.kube.credentials import Credentials, load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi.kubeconfig import kubeconfig, write

SERVER = "https://127.0.0.1:6443"
CANARY = "canary-4711"


def token(ends: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": ends}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


def expired() -> str:
    return token(time.time() - 60)


class Issuer:
    """Accepts each refresh token once, and gives the next with the answer."""

    def __init__(self) -> None:
        self.url = ""
        self.valid = "refresh-0"
        self.given = 0
        self.rotates = True
        self.basic = True
        self.lives = 3600.0
        self.auth: list[str] = []
        self.changes: dict[str, Any] = {}
        """Fields of the answers that differ."""
        self.nesting = 0
        """The depth of lists of the discovery document, if it is one."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._known)
        app.router.add_post("/token", self._token)
        return app

    async def _known(self, _: web.Request) -> web.Response:
        if self.nesting:
            return web.Response(text="[" * self.nesting)
        return web.json_response({"token_endpoint": f"{self.url}/token"} | self.changes)

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.auth.append(request.headers.get("Authorization", ""))
        if self.basic != ("Authorization" in request.headers):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["refresh_token"] != self.valid or form["grant_type"] != "refresh_token":
            answer = {"error": "invalid_grant", "error_description": CANARY}
            return web.json_response(answer, status=400)
        await asyncio.sleep(0.01)
        self.given += 1
        value = {"id_token": token(time.time() + self.lives)}
        if self.rotates:
            self.valid = value["refresh_token"] = f"refresh-{self.given}"
        return web.json_response(value | self.changes)


@pytest.fixture
async def issuer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Issuer]:
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    monkeypatch.setattr(access_module, "OIDC_TOKENS", oidc.RenewedTokens())
    made = Issuer()
    runner = web.AppRunner(made.app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def config(issuer: Issuer, **more: str) -> dict[str, Any]:
    settings = {
        "client-id": "bridge",
        "client-secret": CANARY,
        "idp-issuer-url": issuer.url,
        "refresh-token": "refresh-0",
        "id-token": expired(),
        **more,
    }
    return kubeconfig(SERVER, user={"auth-provider": {"name": "oidc", "config": settings}})


def quote(path: Path, text: str) -> Path:
    """Quotes a plain scalar, which PyYAML writes without quotes, in the file."""
    path.write_text(path.read_text().replace(f": {text}\n", f": '{text}'\n"))
    return path


async def read(path: Path) -> Credentials:
    return await load(KubeconfigRef(path), side="remote")


def written(path: Path) -> dict[str, str]:
    found = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    return dict(found)


def names(folder: Path) -> list[str]:
    return [it.name for it in folder.iterdir()]


async def test_valid_token_is_used_without_a_request(issuer: Issuer, tmp_path: Path) -> None:
    valid = token(time.time() + 600)
    access = await read(write(tmp_path / "c", config(issuer, **{"id-token": valid})))
    assert access.credential.authorization == f"Bearer {valid}"
    assert issuer.auth == []


async def test_rotated_refresh_token_is_written_back(issuer: Issuer, tmp_path: Path) -> None:
    path = write(tmp_path / "c", config(issuer))
    path.chmod(0o640)
    before = yaml.safe_load(path.read_text())
    access = await read(path)
    found = written(path)
    assert found["refresh-token"] == "refresh-1"
    assert access.credential.authorization == f"Bearer {found['id-token']}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    after = yaml.safe_load(path.read_text())
    for part in ("clusters", "contexts", "current-context"):
        assert after[part] == before[part]
    assert names(tmp_path) == ["c"], "neither a lock nor a temporary file stays"
    await read(path)
    assert issuer.given == 1, "another program finds the valid token"


async def test_refresh_token_rotates_repeatedly(issuer: Issuer, tmp_path: Path) -> None:
    issuer.lives = 1.0  # ends before it is used
    path = write(tmp_path / "c", config(issuer))
    access = await read(path)
    for _ in range(3):
        assert await access.renew(access.generation)
    assert issuer.given == 4
    assert written(path)["refresh-token"] == "refresh-4"


async def test_tokens_stay_in_memory_if_the_file_is_read_only(
    issuer: Issuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.lives = 1.0
    path = write(tmp_path / "c", config(issuer))
    (tmp_path / "c.lock").touch()  # as where kubectl holds it
    access = await read(path)
    for _ in range(2):
        assert await access.renew(access.generation)
    assert issuer.given == 3
    assert written(path)["refresh-token"] == "refresh-0"
    assert "kept in memory" in caplog.text
    assert not any(it in caplog.text for it in (CANARY, "refresh-0", "refresh-1", "e30."))


async def test_two_clusters_with_one_user_use_a_refresh_token_once(
    issuer: Issuer, tmp_path: Path
) -> None:
    path = write(tmp_path / "c", config(issuer))
    first, second = await asyncio.gather(read(path), read(path))
    assert first.credential.authorization == second.credential.authorization
    assert issuer.given == 1


async def test_issuer_that_hangs_delays_no_other_user(issuer: Issuer, tmp_path: Path) -> None:
    connected, ended = asyncio.Event(), asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await ended.wait()
        writer.transport.abort()

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        slow = config(issuer, **{"idp-issuer-url": url, "refresh-token": "another"})
        reading = asyncio.create_task(read(write(tmp_path / "slow", slow)))
        await connected.wait()
        began = asyncio.get_running_loop().time()
        await read(write(tmp_path / "config", config(issuer)))
        assert asyncio.get_running_loop().time() - began < 1
        ended.set()
        with pytest.raises(ClientConfigError):
            await reading


async def test_symlinked_kubeconfig_is_written_at_its_target(
    issuer: Issuer, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    path = write(tmp_path / "real" / "c", config(issuer))
    link = tmp_path / "link"
    link.symlink_to(path)
    await read(link)
    assert link.is_symlink()
    assert written(path)["refresh-token"] == "refresh-1"


async def test_refresh_token_stays_if_the_issuer_does_not_rotate(
    issuer: Issuer, tmp_path: Path
) -> None:
    issuer.rotates = False
    path = write(tmp_path / "c", config(issuer))
    await read(path)
    assert written(path)["refresh-token"] == "refresh-0"


async def test_client_secret_is_sent_in_the_form_if_the_header_is_rejected(
    issuer: Issuer, tmp_path: Path
) -> None:
    issuer.basic = False
    await read(write(tmp_path / "c", config(issuer)))
    assert [bool(it) for it in issuer.auth] == [True, False]


async def test_strings_of_a_written_kubeconfig_stay_strings(issuer: Issuer, tmp_path: Path) -> None:
    """PyYAML reads these plain scalars as strings, and kubectl does not."""
    path = write(tmp_path / "c", config(issuer, **{"client-secret": "1e3", "extra": "y"}))
    quote(quote(path, "1e3"), "y")
    first = await read(path)
    assert written(path)["refresh-token"] == "refresh-1"
    assert (await read(path)).credential.headers() == first.credential.headers()


async def test_id_token_with_white_space_is_rejected(issuer: Issuer, tmp_path: Path) -> None:
    content = config(issuer, **{"id-token": f"{token(time.time() + 600)} "})
    with pytest.raises(ClientConfigError, match="id-token has white space"):
        await read(write(tmp_path / "c", content))


@pytest.mark.parametrize("value", [5, ["a"], {"a": "b"}, "\ud800", False, " "])
@pytest.mark.parametrize("name", ["token_endpoint", "id_token", "refresh_token"])
async def test_answer_of_a_wrong_type_is_named_and_not_written(
    issuer: Issuer, tmp_path: Path, name: str, value: Any
) -> None:
    issuer.changes = {name: value}
    path = write(tmp_path / "c", config(issuer))
    with pytest.raises(
        ClientConfigError, match=f"the {name} in the issuer's response is not a valid string"
    ):
        await read(path)
    assert written(path)["refresh-token"] == "refresh-0"


@pytest.mark.parametrize("url", [f"https://{'a' * 300}.test/", "https://[::1"])
async def test_token_endpoint_that_is_no_url_is_named(
    issuer: Issuer, tmp_path: Path, url: str
) -> None:
    issuer.changes = {"token_endpoint": url}
    with pytest.raises(ClientConfigError, match="idp-issuer-url or its token_endpoint"):
        await read(write(tmp_path / "c", config(issuer)))


async def test_deeply_nested_answer_is_an_error(issuer: Issuer, tmp_path: Path) -> None:
    issuer.nesting = 100_000
    with pytest.raises(ClientConfigError, match="the issuer answered 200"):
        await read(write(tmp_path / "c", config(issuer)))


@pytest.mark.parametrize("more", [{"refresh-token": "used-up"}, {"client-id": ""}])
async def test_rejection_is_one_sentence_without_secrets(
    issuer: Issuer, tmp_path: Path, more: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ClientConfigError, match="log in again") as caught:
        await read(write(tmp_path / "c", config(issuer, **more)))
    assert ("invalid_grant" in str(caught.value)) == ("refresh-token" in more)
    for secret in (CANARY, "used-up", "e30."):
        assert secret not in str(caught.value)
        assert secret not in caplog.text


async def test_issuers_certificate_is_verified(
    issuer: Issuer, tmp_path: Path, authority: Any
) -> None:
    """Also where the kubeconfig names no authority for it."""
    pair = authority.issue("issuer", address="127.0.0.1")
    runner = web.AppRunner(issuer.app(), access_log=None)
    await runner.setup()
    context = authority.server_context(pair)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    issuer.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        with pytest.raises(ClientConfigError, match="oidc: the issuer did not renew"):
            await read(write(tmp_path / "c", config(issuer)))
        assert issuer.auth == []
        trusting = {"idp-certificate-authority": str(authority.cert)}
        await read(write(tmp_path / "c", config(issuer, **trusting)))
    finally:
        await runner.cleanup()
