"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from typer.testing import CliRunner, Result

from bridge.cli import app
from bridge.observability import logging as to_stderr

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs `bridge ARGS` in this process; logs go where they went before."""
    monkeypatch.setattr(to_stderr, "to_terminal", lambda *, verbose: None)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: str, typed: str | None = None) -> Result:
        command: Sequence[str] = args
        return CliRunner().invoke(app, command, input=typed)

    return run
