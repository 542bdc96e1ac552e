"""`bridge coredns`: the block follows from the Node's join record."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge.base.command_error import PreflightError
from bridge.clusters import connection
from bridge.status import status_client
from tests.bridge.cli.conftest import Invoke
from translators.object_accessors import Object


def node(name: str, template: str | None) -> Object:
    annotations = {"cluster-bridge.io/home-name": "e2e"}
    if template is not None:
        annotations["cluster-bridge.io/options"] = json.dumps({"namespaceTemplate": template})
    return {"metadata": {"name": name, "annotations": annotations}}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Object]:
    """Home's virtual nodes by name."""
    found: dict[str, Object] = {}

    async def get_node(_: object, name: str) -> Object:
        if name not in found:
            raise PreflightError(f"home: there is no virtual node {name}")
        return found[name]

    @asynccontextmanager
    async def connect(*_: Any, **__: Any) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(status_client, "get_node", get_node)
    return found


@pytest.mark.parametrize("template", [None, "{namespace}-{home}"])
def test_block_is_that_of_the_nodes_template(
    invoke: Invoke, nodes: dict[str, Object], template: str | None
) -> None:
    nodes["burst"] = node("burst", template)
    result = invoke("coredns", "burst", "--cluster-domain", "remote.internal")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1:3] == [
        "remote.internal:53 {",
        "    view namespace-e2e {",
    ]


def test_node_with_homes_namespaces_needs_none(invoke: Invoke, nodes: dict[str, Object]) -> None:
    nodes["burst"] = node("burst", "{namespace}")
    result = invoke("coredns", "burst")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no server block is needed" in result.stderr


def test_unknown_node_is_an_error(invoke: Invoke, nodes: dict[str, Object]) -> None:
    result = invoke("coredns", "lost")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no virtual node lost" in result.stderr


def test_invalid_domain_names_the_option(invoke: Invoke, nodes: dict[str, Object]) -> None:
    nodes["burst"] = node("burst", None)
    result = invoke("coredns", "burst", "--cluster-domain", "a b")
    assert result.exit_code == 2
    assert "--cluster-domain" in result.stderr
