"""The fixture `clusters`: what it starts, with which version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from e2e.clusters import ClusterSpec, Settings, pytest_fixture, specs
from e2e.clusters.versions import DEFAULT_KUBERNETES, KUBERNETES


@pytest.mark.parametrize(
    ("requested", "started"),
    [
        ("", [(DEFAULT_KUBERNETES, ["home", "remote"])]),
        ("1.36", [(KUBERNETES["1.36"], ["home", "remote"])]),
        ("home=1.34,remote=1.34", [(KUBERNETES["1.34"], ["home", "remote"])]),
        (
            "home=1.36,remote=1.34",
            [(KUBERNETES["1.36"], ["home"]), (KUBERNETES["1.34"], ["remote"])],
        ),
    ],
)
def test_each_cluster_has_the_requested_version(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    requested: str,
    started: list[tuple[str, list[str]]],
) -> None:
    begun: list[tuple[str, list[str]]] = []
    ended: list[str] = []

    def up(wanted: Sequence[ClusterSpec], settings: Settings, _: Any) -> dict[str, str]:
        names = [it.name for it in wanted]
        begun.append((str(settings.kubernetes), names))
        return dict.fromkeys(names, str(settings.kubernetes))

    monkeypatch.setenv("CLUSTER_BRIDGE_E2E_KUBERNETES", requested)
    monkeypatch.setattr(pytest_fixture, "find", lambda _: {})
    monkeypatch.setattr(pytest_fixture, "up", up)
    monkeypatch.setattr(pytest_fixture, "down", lambda names, _: ended.extend(names))
    with pytest_fixture.running(
        request, specs(), pytest_fixture.settings_from_environment()
    ) as found:
        assert sorted(found) == ["home", "remote"]
    assert begun == started
    assert sorted(ended) == ["home", "remote"]
