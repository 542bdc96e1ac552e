"""A run of the end-to-end tests fails for a right that is wrong, whichever process saw it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from e2e.conftest import pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown
"""
TEST = """
from e2e import conftest

def test_asks(request):
    seen = conftest._permission_report(request.config)
    seen.{kind}["home: get secrets in shop"] += 1
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
@pytest.mark.parametrize(("kind", "code"), [("refused", 1), ("undeclared", 1), ("used", 0)])
@pytest.mark.timeout(60)
def test_a_wrong_right_fails_the_run(
    tmp_path: Path, workers: tuple[str, ...], kind: str, code: int
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(TEST.format(kind=kind))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert (f"{kind}: home: get secrets in shop" in done.stdout) == bool(code)
    assert "1 passed" in done.stdout
