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
    for kind in {kinds}:
        getattr(seen, kind)["home: get secrets in shop"] += 1
"""


@pytest.mark.parametrize(
    ("workers", "kinds", "fails"),
    [
        ((), ["refused"], True),
        ((), ["undeclared"], True),
        ((), ["used"], False),
        (("-n", "1"), ["refused", "undeclared", "used"], True),
    ],
    ids=["refused", "undeclared", "used", "all of them by a worker"],
)
def test_wrong_permission_fails_the_run(
    tmp_path: Path, workers: tuple[str, ...], kinds: list[str], fails: bool
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(TEST.format(kinds=kinds))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (WRONG_PERMISSIONS if fails else 0), done.stdout
    printed = {kind for kind in kinds if f"{kind}: home: get secrets in shop" in done.stdout}
    assert printed == (set(kinds) if fails else set())
    assert "1 passed" in done.stdout
