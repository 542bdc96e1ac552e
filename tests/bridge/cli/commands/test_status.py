"""`bridge status` and `dashboard`: options and output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from bridge.base.command_error import PreflightError
from bridge.clusters import connection
from bridge.dashboard import loopback_server
from bridge.status import status_client
from sync.kube.api_errors import Forbidden
from tests.bridge.cli.conftest import Invoke
from tests.bridge.status.examples import status
from translators.object_accessors import Object


class Home:
    """Replaces home: returns its fields, and records all calls."""

    def __init__(self) -> None:
        self.found: list[Object] = [status()]
        self.calls: list[Any] = []
        self.raises: Exception | None = None

    def _record(self, *what: Any) -> None:
        self.calls.append(what)
        if self.raises is not None:
            raise self.raises

    async def once(self, _: object, name: str | None) -> list[Object]:
        self._record(name)
        return self.found

    async def serve(
        self,
        _: object,
        name: str | None,
        *,
        ref: object,
        port: int,
        stop: asyncio.Event,
        open_browser: bool,
        announce: object,
    ) -> None:
        self._record(name, open_browser, port)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Home:
    """Commands call this fake instead of a cluster."""
    fake = Home()

    @asynccontextmanager
    async def connected(ref: object, **_: Any) -> AsyncIterator[object]:
        fake.calls.append(ref)
        yield None

    monkeypatch.setattr(connection, "connect", connected)
    monkeypatch.setattr(status_client, "read_statuses", fake.once)
    monkeypatch.setattr(loopback_server, "serve", fake.serve)
    return fake


def test_status_as_tree_and_as_json(invoke: Invoke, home: Home) -> None:
    done = invoke("status", "remote")
    assert done.exit_code == 0
    assert done.stdout.startswith("remote: Ready\n  conditions\n")
    assert home.calls[-1] == ("remote",)
    assert json.loads(invoke("status", "-o", "json").stdout) == {"nodes": home.found}
    assert yaml.safe_load(invoke("status", "-o", "yaml").stdout) == {"nodes": home.found}
    assert home.calls[-1] == (None,)


def test_not_ready_node_exits_with_1(invoke: Invoke, home: Home) -> None:
    home.found = [status(ready=False)]
    done = invoke("status")
    assert (done.exit_code, done.stderr) == (1, "")
    assert done.stdout.startswith("remote: NotReady\n")


def test_no_nodes_exits_with_0(invoke: Invoke, home: Home) -> None:
    home.found = []
    done = invoke("status")
    assert done.exit_code == 0
    assert "`bridge join` creates one" in done.stdout


def test_forbidden_request_is_one_line(invoke: Invoke, home: Home) -> None:
    home.raises = Forbidden("no nodes for you", side="home", what="GET", code=403)
    done = invoke("status", "-o", "json")
    assert done.exit_code == 1
    error = json.loads(done.stdout)["error"]
    assert error["message"].startswith("home: GET: no nodes for you")
    assert "no nodes for you; ask the cluster's administrator" in done.stderr
    home.raises = PreflightError("home: there is no node x")
    assert "error: home: there is no node x\n" in invoke("status", "x").stderr


def test_dashboard_serves_the_page(invoke: Invoke, home: Home) -> None:
    assert invoke("dashboard", "remote").exit_code == 0
    assert home.calls[-1] == ("remote", True, 0)
    assert invoke("dashboard", "--no-open", "--port", "8080").exit_code == 0
    assert home.calls[-1] == (None, False, 8080)
    assert invoke("dashboard", "--port", "70000").exit_code == 2


def test_status_as_wide_and_name(invoke: Invoke, home: Home) -> None:
    name = home.found[0]["name"]
    assert invoke("status", "-o", "wide").stdout.splitlines()[1].startswith(name)
    assert invoke("status", "-o", "name").stdout == f"node/{name}\n"
