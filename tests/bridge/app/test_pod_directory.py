"""The pods that the kubelet API finds in the engine's caches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.app.kubelet_api_setup import EnginePodDirectory
from bridge.kubelet.pod_lookup import RemotePod
from sync.cache.store import Key
from sync.engine.engine import Engine
from sync.kube.api_resources import Object
from tests import objects
from translators.ownership_labels import (
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
def test_scheduled_pod_has_the_time_of_its_scheduling(
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
        home_pods=SimpleNamespace(store=[home]),
        pods=SimpleNamespace(remote_pod_of=lambda _: remote),
    )
    [scheduled] = EnginePodDirectory(cast("Engine", engine)).scheduled_pods()
    assert (scheduled.node, scheduled.since) == ("worker", since)


def _directory(home: Object, remote: Object | None) -> EnginePodDirectory:
    store = {Key("default", str(home["metadata"]["name"])): home}
    engine = SimpleNamespace(
        home_pods=SimpleNamespace(store=store), pods=SimpleNamespace(remote_pod_of=lambda _: remote)
    )
    return EnginePodDirectory(cast("Engine", engine))


def test_remote_pod_is_found_by_name_and_uid() -> None:
    home, remote = objects.pod("web"), objects.pod("web", "default-h")
    home["metadata"]["uid"] = "1"
    remote["spec"]["initContainers"] = [{"name": "init"}]
    remote["spec"]["ephemeralContainers"] = [{"name": "debug"}]
    directory = _directory(home, remote)
    found = directory.find_remote_pod("default", "web", "1")
    assert found == RemotePod("default-h", "web", frozenset({"main", "init", "debug"}), "1")
    assert directory.find_remote_pod("default", "web", None) == found
    assert directory.find_remote_pod("default", "web", "2") is None
    assert directory.find_remote_pod("default", "db", None) is None


def test_pod_without_a_remote_pod_is_not_found() -> None:
    assert _directory(objects.pod("web"), None).find_remote_pod("default", "web", None) is None
