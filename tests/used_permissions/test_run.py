"""A run of the end-to-end tests fails for a wrong permission, whichever process saw its use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.conftest import WRONG_PERMISSIONS

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
@pytest.mark.parametrize(
    ("kind", "fails"), [("refused", True), ("undeclared", True), ("used", False)]
)
def test_wrong_permission_fails_the_run(
    tmp_path: Path, workers: tuple[str, ...], kind: str, fails: bool
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
    assert done.returncode == (WRONG_PERMISSIONS if fails else 0), done.stdout
    assert (f"{kind}: home: get secrets in shop" in done.stdout) == fails
    assert "1 passed" in done.stdout
