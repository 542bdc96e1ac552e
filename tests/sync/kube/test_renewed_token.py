"""Renewed tokens are found by every later reader of the kubeconfig, until it has another one."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sync.kube import bearer_token, credentials
from sync.kube.bearer_token import RenewedToken, origin_of
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials, load
from sync.kube.kubeconfig_ref import RENEWED_TOKEN_FILE, KubeconfigRef
from tests.fakeapi import FakeApi
from tests.fakeapi.account_tokens import account_token
from tests.fakeapi.kubeconfig import kubeconfig, write

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
OWN = account_token(START, HOUR)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(credentials, "RENEW_INTERVAL", 0.0)
    return tmp_path / "state" / "cluster-bridge" / "renewed-tokens"


@pytest.fixture
def api(tls_api: FakeApi) -> FakeApi:
    return tls_api


def renewed(token: str = "next", *, of: str = OWN, hours: int = 2) -> RenewedToken:
    return RenewedToken(origin_of(of), token, START, START + hours * HOUR)


async def read(folder: Path, token: str = OWN, server: str = "https://127.0.0.1:1") -> Credentials:
    cluster = {"insecure-skip-tls-verify": True}
    content = kubeconfig(server, user={"token": token}, cluster=cluster)
    return await load(KubeconfigRef(write(folder / "config", content)), side="remote")


def sent(config: Credentials) -> str:
    return config.credential.bearer_token


async def test_kept_token_replaces_the_one_it_descends_from(tmp_path: Path) -> None:
    bearer_token.keep(renewed())
    config = await read(tmp_path)
    assert sent(config) == "next"
    assert config.token_expiry() == START + 2 * HOUR
    assert OWN in (tmp_path / "config").read_text(), "the kubeconfig is not written"
    other = account_token(START, 3 * HOUR)
    assert sent(await read(tmp_path, other)) == other


async def test_token_beside_the_kubeconfig_counts_too(tmp_path: Path) -> None:
    (tmp_path / RENEWED_TOKEN_FILE).write_bytes(renewed("mounted", hours=3).encode())
    bearer_token.keep(renewed("kept", hours=2))
    assert sent(await read(tmp_path)) == "mounted", "the one that expires last"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"origin": 1}', b"\xff", renewed(of="another").encode()]
)
async def test_unusable_file_counts_as_absent(content: bytes, tmp_path: Path) -> None:
    (tmp_path / RENEWED_TOKEN_FILE).write_bytes(content)
    assert sent(await read(tmp_path)) == OWN


async def test_kept_token_that_expires_before_the_kubeconfigs_is_not_used(tmp_path: Path) -> None:
    bearer_token.keep(RenewedToken(origin_of(OWN), "short", START, START + HOUR / 2))
    assert sent(await read(tmp_path)) == OWN


def test_only_this_user_can_read_a_kept_token(state: Path) -> None:
    path = bearer_token.keep(renewed())
    assert path.parent == state
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_expired_tokens_are_deleted_with_the_next_one(state: Path) -> None:
    ended = RenewedToken(origin_of("other"), "ended", START - 2 * HOUR, START - HOUR)
    bearer_token.keep(ended)
    bearer_token.keep(renewed("a", of="valid"))
    bearer_token.keep(renewed())
    assert {it.name for it in state.iterdir()} == {origin_of("valid"), origin_of(OWN)}


async def test_renewed_token_is_sent_and_survives_a_reload(tmp_path: Path, api: FakeApi) -> None:
    config = await read(tmp_path, server=api.url)
    async with KubeClient(config) as client:
        config.use_renewed_token(renewed())
        api.token = "next"
        await client.request("GET", "/version")
        assert await config.renew(config.generation), "the files are read again"
        assert sent(config) == OWN, "the API server has rejected the renewed one"
        assert await config.renew(config.generation)
        assert sent(config) == "next"
        another = account_token(START, 4 * HOUR)
        api.token = another
        await read(tmp_path, another, api.url)
        await client.request("GET", "/version")
        config.use_renewed_token(renewed())
        assert sent(config) == another, "the kubeconfig's own counts once it is another"


async def test_rejected_kept_token_is_no_obstacle_to_the_kubeconfigs(
    tmp_path: Path, api: FakeApi
) -> None:
    bearer_token.keep(renewed("no longer valid"))
    api.token = OWN
    async with KubeClient(await read(tmp_path, server=api.url)) as client:
        await client.request("GET", "/version")


def test_token_is_in_no_repr() -> None:
    assert "next" not in repr(renewed())
