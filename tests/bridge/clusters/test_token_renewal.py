"""The bridge renews its own ServiceAccount token in the remote."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from bridge.base.progress_lines import Caveat
from bridge.clusters import token_renewal
from bridge.clusters.token_renewal import TokenRenewal, keep_renewed_token
from sync.kube import api_server, bearer_token
from sync.kube.api_resources import SECRETS
from sync.kube.bearer_token import RenewedToken, origin_of
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault, LoggedRequest
from tests.fakeapi.account_tokens import NAME, NAMESPACE, account_token
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.tokens import PREFIX
from tests.objects import secret, service_account
from translators.timestamps import format_time

START = datetime(2030, 1, 1, tzinfo=UTC)
INSECURE = {"insecure-skip-tls-verify": True}
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
PATH = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(api_server, "CLOCK_UPDATE_INTERVAL", 0.0)


@pytest.fixture
def api(tls_api: FakeApi) -> FakeApi:
    return tls_api


@dataclass
class Bridge:
    """A client of the remote, and the renewal of its token."""

    api: FakeApi
    client: KubeClient
    now: datetime = START
    kept: list[RenewedToken] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    keep_fails: OSError | None = None

    def __post_init__(self) -> None:
        self.api.api.clock = lambda: format_time(self.now)
        self.renewal = TokenRenewal(self.client, keep=self._keep, notify=self.lines.append)

    async def at(self, moment: datetime) -> None:
        """A check at this time."""
        self.now = moment
        await self.client.request("GET", "/version")
        await self.renewal.renew_if_due()

    def requests(self) -> list[LoggedRequest]:
        """The TokenRequests."""
        return [entry for entry in self.api.log if entry.path == PATH]

    def sent(self) -> str:
        """The token that is sent."""
        return self.client.credentials.credential.bearer_token

    async def _keep(self, renewed: RenewedToken) -> None:
        if self.keep_fails is not None:
            raise self.keep_fails
        self.kept.append(renewed)


@asynccontextmanager
async def bridge(api: FakeApi, folder: Path, token: str) -> AsyncIterator[Bridge]:
    api.put(service_account(NAME, namespace=NAMESPACE))
    path = write(folder / "config", kubeconfig(api.url, user={"token": token}, cluster=INSECURE))
    async with KubeClient(await load(KubeconfigRef(path), side="remote")) as client:
        yield Bridge(api, client)


async def test_token_is_renewed_for_as_long_while_a_part_of_its_life_is_left(
    api: FakeApi, tmp_path: Path
) -> None:
    own = account_token(START, 2 * HOUR)
    async with bridge(api, tmp_path, own) as it:
        await it.at(START)
        await it.at(START + 0.49 * 2 * HOUR)
        assert it.requests() == []
        await it.at(START + 0.81 * 2 * HOUR)
        assert [entry.body["spec"] for entry in it.requests()] == [
            {"expirationSeconds": 7200, "audiences": ["api"]}
        ]
        assert it.sent().startswith(PREFIX)
        [kept] = it.kept
        assert (kept.token, kept.origin) == (it.sent(), origin_of(own))
        assert kept.issued - it.now < MINUTE
        assert kept.expires == it.now + 2 * HOUR
        await it.at(kept.issued + 0.49 * 2 * HOUR)
        assert len(it.requests()) == 1
        await it.at(kept.issued + 0.81 * 2 * HOUR)
        assert len(it.requests()) == 2
        assert it.requests()[1].authorization == f"Bearer {kept.token}"
        assert it.sent() == it.kept[1].token != kept.token


async def test_first_token_of_ten_minutes_is_replaced_at_once_by_one_of_an_hour(
    api: FakeApi, tmp_path: Path
) -> None:
    async with bridge(api, tmp_path, account_token(START, 10 * MINUTE)) as it:
        await it.at(START)
        assert [entry.body["spec"]["expirationSeconds"] for entry in it.requests()] == [3600]
        await it.at(START + MINUTE)
        assert len(it.requests()) == 1


async def test_shorter_life_than_requested_is_renewed_in_time(api: FakeApi, tmp_path: Path) -> None:
    """As with --service-account-max-token-expiration of an API server."""

    async def issue(_: web.BaseRequest) -> web.Response:
        status = {"token": "short", "expirationTimestamp": format_time(it.now + 10 * MINUTE)}
        return web.json_response({"kind": "TokenRequest", "status": status}, status=201)

    api.route("POST", PATH, issue)
    async with bridge(api, tmp_path, account_token(START, HOUR)) as it:
        await it.at(START + 0.81 * HOUR)
        await it.at(START + 0.81 * HOUR + 4 * MINUTE)
        assert len(it.requests()) == 1
        await it.at(START + 0.81 * HOUR + 9 * MINUTE)
        assert len(it.requests()) == 2


async def test_renewed_token_ends_with_the_same_object(api: FakeApi, tmp_path: Path) -> None:
    claim = {"secret": {"name": "switch", "uid": "1"}}
    token = account_token(START, HOUR, **{"kubernetes.io": claim})
    api.faults.add(Fault("POST", PATH, code=500))
    async with bridge(api, tmp_path, token) as it:
        await it.at(START + 0.9 * HOUR)
        assert it.requests()[0].body["spec"]["boundObjectRef"] == {
            "apiVersion": "v1",
            "kind": "Secret",
            **claim["secret"],
        }


async def test_failed_renewal_is_logged_once_and_retried(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = account_token(START, HOUR)
    api.faults.add(Fault("POST", PATH, code=500, times=2))
    async with bridge(api, tmp_path, own) as it:
        for minute in (50, 51):
            await it.at(START + minute * MINUTE)
        assert it.sent() == own
        warnings = [it for it in caplog.records if it.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "cluster-bridge/cluster-bridge cannot be renewed" in warnings[0].getMessage()
        await it.at(START + 52 * MINUTE)
        assert it.sent() == it.kept[0].token
    assert own not in caplog.text


@pytest.mark.parametrize("status", [{}, {"token": "a\nb"}, {"token": "a"}, None])
async def test_response_without_a_token_changes_nothing(
    status: object, api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def issue(_: web.BaseRequest) -> web.Response:
        return web.json_response({"kind": "TokenRequest", "status": status}, status=201)

    own = account_token(START, HOUR)
    api.route("POST", PATH, issue)
    async with bridge(api, tmp_path, own) as it:
        await it.at(START + 0.9 * HOUR)
        assert it.sent() == own
    assert "the response contains no token" in caplog.text


async def test_without_the_permission_nothing_is_requested_until_it_is_granted(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.api.authorize = lambda spec: spec["resourceAttributes"].get("subresource") != "token"
    async with bridge(api, tmp_path, account_token(START, HOUR)) as it:
        await it.at(START + 50 * MINUTE)
        await it.renewal.announce()
        assert it.requests() == []
        assert "`bridge rbac remote` prints what allows it" in caplog.text
        [line] = it.lines
        assert isinstance(line, Caveat)
        assert "is valid until 2030-01-01T01:00:00Z; the ServiceAccount may not" in line
        api.api.authorize = lambda _: True
        await it.at(START + 59 * MINUTE)
        assert it.requests() == [], "the permission is not reviewed every minute"
        await it.at(START + 61 * MINUTE)
        assert len(it.requests()) == 1


async def test_join_announces_the_renewal(api: FakeApi, tmp_path: Path) -> None:
    async with bridge(api, tmp_path, account_token(START, HOUR)) as it:
        await it.renewal.announce()
        [line] = it.lines
        assert line == (
            "remote: the token of ServiceAccount cluster-bridge/cluster-bridge is valid until "
            "2030-01-01T01:00:00Z, and the bridge renews it"
        )
        assert not isinstance(line, Caveat)


@pytest.mark.parametrize("token", ["opaque", account_token()])
async def test_token_that_shows_no_expiry_is_left_alone(
    token: str, api: FakeApi, tmp_path: Path
) -> None:
    async with bridge(api, tmp_path, token) as it:
        await it.at(START)
        await it.renewal.announce()
        assert [entry.path for entry in api.log] == ["/version"]
        assert it.lines == []


async def test_token_file_is_left_to_what_writes_it(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(account_token(START, 10 * MINUTE))
    path = write(
        tmp_path / "config", kubeconfig(api.url, user={"tokenFile": "token"}, cluster=INSECURE)
    )
    config = await load(KubeconfigRef(path), side="remote")
    assert token_renewal.renewable_token(config) is None


async def test_token_that_cannot_be_kept_is_used_and_reported(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridge(api, tmp_path, account_token(START, 10 * MINUTE)) as it:
        it.keep_fails = OSError(30, "Read-only file system")
        await it.at(START)
        assert it.sent().startswith(PREFIX)
    assert "is kept in memory only (Read-only file system)" in caplog.text


RENEWED = RenewedToken(origin_of("own"), "next", START, START + HOUR)


async def test_installed_bridge_keeps_the_token_in_its_state_secret(
    home_api: FakeApi, client_for: ClientFor
) -> None:
    home_api.put(secret("bridge-state-far", namespace="ns", data={"client.pem": "eA=="}))
    home = await client_for(home_api, "home")
    await keep_renewed_token(RENEWED, home, ("ns", "bridge-state-far"))
    data = home_api.get(SECRETS, "bridge-state-far", "ns")["data"]
    assert data["client.pem"] == "eA=="
    assert base64.b64decode(data["renewed-token"]) == RENEWED.encode()
    assert list(bearer_token.find("own", [])) == []


@pytest.mark.parametrize("is_installed", [True, False])
async def test_otherwise_the_token_is_kept_in_the_state_directory(
    is_installed: bool, home_api: FakeApi, client_for: ClientFor
) -> None:
    home_api.api.authorize = lambda _: False
    home = await client_for(home_api, "home")
    await keep_renewed_token(RENEWED, home, ("ns", "a") if is_installed else None)
    assert list(bearer_token.find("own", [])) == [RENEWED]
    assert not [entry for entry in home_api.log if entry.method == "PATCH"]
