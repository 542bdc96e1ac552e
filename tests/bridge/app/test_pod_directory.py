"""What the kubelet API knows of pods in the remote."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.app.node_kubelet import EnginePodDirectory
from sync.engine.engine import Engine
from tests import objects
from translators.identity import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
)

#: 2026-01-01T00:00:00Z, in milliseconds.
_YEAR = 1_767_225_600_000
_SCHEDULED = {
    "type": "PodScheduled",
    "status": "True",
    "lastTransitionTime": "2026-01-01T00:01:00Z",
}


@pytest.mark.parametrize(
    ("created", "conditions", "since"),
    [
        ("2026-01-01T00:00:00Z", [_SCHEDULED], _YEAR + 60_000),
        ("2026-01-01T00:00:00Z", [], _YEAR),
        (None, [], 0),
        ("yesterday", [], 0),
    ],
    ids=["scheduled", "created", "neither", "no time"],
)
def test_a_placed_pod_has_the_time_at_which_the_remote_scheduled_it(
    created: str | None, conditions: list[Any], since: int
) -> None:
    home, remote = objects.pod("web"), objects.pod("web", "default-h", node="worker")
    remote["metadata"] |= {
        "creationTimestamp": created,
        "annotations": {
            ANNOTATION_HOME_NAMESPACE: "default",
            ANNOTATION_HOME_NAME: "web",
            ANNOTATION_HOME_UID: "1",
        },
    }
    remote["status"] = {"conditions": conditions}
    engine = SimpleNamespace(
        home_pods=SimpleNamespace(store=[home]), pods=SimpleNamespace(remote_of=lambda _: remote)
    )
    [placed] = EnginePodDirectory(cast("Engine", engine)).scheduled_pods()
    assert (placed.node, placed.since) == ("worker", since)
