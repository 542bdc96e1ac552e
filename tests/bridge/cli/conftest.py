"""Fixtures for tests of the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner, Result

from bridge.app import join_lifecycle
from bridge.base import garbage_collection
from bridge.base.consent import Consent
from bridge.base.join_settings import JoinSettings
from bridge.cli.command_table import app
from bridge.observability import log_output as to_stderr

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs `bridge ARGS` in this process, with logging and garbage collection as they are."""
    monkeypatch.setattr(to_stderr, "configure_logging", lambda **_: None)
    monkeypatch.setattr(garbage_collection, "reduce_collections", lambda: None)
    monkeypatch.setattr(garbage_collection, "freeze_imports", lambda: None)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: str, typed: str | None = None) -> Result:
        command: Sequence[str] = args
        return CliRunner().invoke(app, command, input=typed)

    return run


@dataclass
class JoinCalls:
    """Replaces `bridge.app.join_lifecycle.join`: records its settings."""

    settings: list[JoinSettings] = field(default_factory=list)
    consents: list[Consent] = field(default_factory=list)
    raises: Exception | None = None

    async def join(
        self,
        settings: JoinSettings,
        *,
        notify: Callable[[str], None],
        stop: asyncio.Event,
        consent: Consent,
    ) -> None:
        self.settings.append(settings)
        self.consents.append(consent)
        notify("home: a step")
        if self.raises is not None:
            raise self.raises


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> JoinCalls:
    """Commands record their settings instead of joining."""
    calls = JoinCalls()
    monkeypatch.setattr(join_lifecycle, "join", calls.join)
    return calls
