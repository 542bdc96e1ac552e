"""A status that no kubelet writes is cut before it is stored or copied to home."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from translators.object_accessors import Object
from translators.pods.status_limits import TEXT_LIMIT, within_limits

LARGE = "x" * 2**21


def pod(status: Any, *, containers: int = 1) -> Object:
    listed = [{"name": f"c{number}"} for number in range(containers)]
    return {"metadata": {"name": "a"}, "spec": {"containers": listed}, "status": status}


def container(name: str, message: str = "") -> Object:
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    return {
        "name": name,
        "ready": False,
        "restartCount": 3,
        "image": "busybox:1",
        "imageID": "busybox@sha256:" + "0" * 64,
        "containerID": "containerd://" + "0" * 64,
        "state": {"terminated": ended},
        "lastState": {"terminated": ended},
    }


@pytest.mark.parametrize("message", ["", "oom", "m" * TEXT_LIMIT, "ä" * (TEXT_LIMIT // 2)])
def test_status_of_a_kubelet_is_unchanged(message: str) -> None:
    made = pod({"phase": "Running", "containerStatuses": [container("c0", message)]})
    assert within_limits(made) is made


def test_many_containers_of_a_pod_keep_their_statuses() -> None:
    statuses = [container(f"c{number}", "m" * 300) for number in range(60)]
    made = pod({"phase": "Running", "containerStatuses": statuses}, containers=60)
    assert within_limits(made) is made


@pytest.mark.parametrize(
    "status",
    [
        {"message": LARGE, "reason": LARGE},
        {"containerStatuses": [container("c0", LARGE)]},
        {"containerStatuses": [container(f"c{n}", "m" * 4000) for n in range(5000)]},
        {"containerStatuses": [container("c0", "m" * 4000)] * 5000},
        {"conditions": [{"type": f"t{n}", "message": "m" * 4000} for n in range(5000)]},
        {"conditions": [{"type": "Ready", "unknown": {str(n): LARGE for n in range(9)}}]},
        {"unknown": [[[[[[[[[[[[[[[[["x"]]]]]]]]]]]]]]]]] * 9999},
        {"unknown": {"k" * 2**21: 1}, "podIPs": [{"ip": "10.0.0.1"}] * 100_000},
        {"resources": {"requests": {f"example.com/{n}": "1" for n in range(100_000)}}},
    ],
)
def test_huge_status_is_cut(status: Object) -> None:
    made = pod({"phase": "Failed", **status}, containers=5000)
    limited = within_limits(made)
    assert limited is not made
    assert limited["status"]["phase"] == "Failed"
    assert len(orjson.dumps(limited["status"])) < 2**19
    assert within_limits(limited)["status"].keys() == limited["status"].keys()


def test_text_is_cut_between_characters() -> None:
    limited = within_limits(pod({"phase": "Failed", "message": "ä" * TEXT_LIMIT}))
    assert limited["status"]["message"] == "ä" * (TEXT_LIMIT // 2)


def test_statuses_of_containers_that_the_pod_does_not_have_are_dropped() -> None:
    statuses = [container("other", LARGE), container("c0"), container("c0")]
    limited = within_limits(pod({"containerStatuses": statuses}))
    assert [it["name"] for it in limited["status"]["containerStatuses"]] == ["c0"]
