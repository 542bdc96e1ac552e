"""`bridge volume copy`: its arguments, its result and its failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from bridge.base.command_error import PreflightError
from bridge.clusters import connection
from bridge.volumes.volume_copy import Content, VolumeCopy
from tests.bridge.cli.conftest import Invoke
from translators.storage.identifiers import ClaimKey

COPY = ("volume", "copy", "shop/data", "archive/copy")


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[VolumeCopy, bool]]:
    """Replaces the connection and the copy; the copies, and whether each overwrites."""
    made: list[tuple[VolumeCopy, bool]] = []

    @contextlib.asynccontextmanager
    async def connect(*_: object, **_options: object) -> AsyncIterator[None]:
        yield

    def prepare(_copy: VolumeCopy) -> None:
        """Needs no home."""

    async def run(copy: VolumeCopy, *, overwrite: bool) -> Content:
        made.append((copy, overwrite))
        if copy.image == "broken":
            raise PreflightError("home: no such image")
        if copy.image == "slow":
            raise asyncio.CancelledError
        return Content(12, 3000, 2000)

    monkeypatch.setattr(connection, "connect", connect)
    monkeypatch.setattr(VolumeCopy, "__post_init__", prepare)
    monkeypatch.setattr(VolumeCopy, "run", run)
    return made


def test_result_is_printed(invoke: Invoke, copies: list[tuple[VolumeCopy, bool]]) -> None:
    done = invoke(*COPY)
    assert done.exit_code == 0
    assert done.stdout == "shop/data is copied to archive/copy: 12 files, 3000 bytes\n"
    assert done.stderr == ""
    ((copy, overwrites),) = copies
    assert (copy.source, copy.target) == (ClaimKey("shop", "data"), ClaimKey("archive", "copy"))
    assert (copy.node, copy.timeout, overwrites) == ("", 300.0, False)
    assert copy.image == "docker.io/library/debian:13-slim"


def test_result_as_json(invoke: Invoke) -> None:
    found = json.loads(invoke(*COPY, "-o", "json").stdout)
    assert found == {"source": "shop/data", "target": "archive/copy", "files": 12, "bytes": 3000}


def test_options_are_passed_on(invoke: Invoke, copies: list[tuple[VolumeCopy, bool]]) -> None:
    options = ("--to", "burst", "--overwrite", "--image", "own", "--timeout", "10m")
    assert invoke(*COPY, *options).exit_code == 0
    ((copy, overwrites),) = copies
    assert (copy.node, copy.image, copy.timeout, overwrites) == ("burst", "own", 600.0, True)


@pytest.mark.parametrize("claim", ["data", "/data", "shop/", "shop/data/x"])
def test_claim_without_a_namespace_is_rejected(invoke: Invoke, claim: str) -> None:
    done = invoke("volume", "copy", "shop/data", claim)
    assert done.exit_code == 2
    assert f'"{claim}" is not a PersistentVolumeClaim; use NAMESPACE/CLAIM' in done.stderr


def test_failure_is_one_sentence(invoke: Invoke) -> None:
    done = invoke(*COPY, "--image", "broken")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: home: no such image\n"


def test_interruption_names_the_next_step(invoke: Invoke) -> None:
    done = invoke(*COPY, "--image", "slow")
    assert done.exit_code == 1
    assert "interrupted before it was done; run the command again" in done.stderr
