"""A whole release: built, installed and run as a user would, and built again to the same bytes.

It takes minutes and needs no cluster, so it is not part of `make test`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.base.version import VERSION
from e2e.clusters.cluster import silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.release import build, signing, verification

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def test_release_is_reproducible_and_runs(tmp_path: Path) -> None:
    cache = settings_from_environment().cache / "release"
    for name in ("first", "second"):
        build.build(
            VERSION, tmp_path / name, address=build.LOCAL_ADDRESS, cache=cache, progress=silent
        )
    assert verification.compare(tmp_path / "first", tmp_path / "second") > 10
    (tmp_path / "verify").mkdir()
    verification.verify(VERSION, tmp_path / "first", tmp_path / "verify", silent)
    signing.check(tmp_path / "first")
