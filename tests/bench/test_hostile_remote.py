"""The benchmark of a hostile remote."""

from __future__ import annotations

import pytest

from e2e.bench import hostile_remote

pytestmark = pytest.mark.long


def test_attack_has_its_memory_and_latencies_beside_those_without_it() -> None:
    lines: list[str] = []
    report = hostile_remote.measure(seconds=1, seed=1, attacks=["empty"], say=lines.append)
    found = report["attacks"]["empty"]
    assert found["what"] == "Lines without an event."
    assert 0 < found["before_mib"] <= found["peak_mib"]
    assert found["without"]["pods"] > 0
    assert found["with"]["pods"] > 0
    assert report["is_within_limit"]
    assert lines[0].startswith("empty: ")


def test_every_attack_and_their_mixture_is_measured() -> None:
    assert {"bomb", "endless", "pages", "flood", "drip", "mixed"} <= set(hostile_remote.NAMES)
