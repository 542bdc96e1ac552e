"""Rows of pods: the status as kubectl prints it, and slimming that loses nothing of it."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.dashboard.pod_row import pod_row, slim_pod
from bridge.status.node_pod_summary import summarize_pod
from tests.bridge.status import examples


def row(**status: Any) -> dict[str, Any]:
    found = examples.pod("web", status.pop("phase", "Running"), **status)
    found["metadata"] |= {"uid": "1", "creationTimestamp": "2030-01-01T00:00:00Z"}
    slim = slim_pod(found)
    summary = summarize_pod(slim)
    assert summary == summarize_pod(found)
    return pod_row(slim, summary)


def container(**changes: Any) -> dict[str, Any]:
    return {"name": "main", "ready": False, "restartCount": 3, **changes}


@pytest.mark.parametrize(
    ("status", "text", "tone"),
    [
        ({"phase": "Pending"}, "Pending", "warn"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "Running", "good"),
        ({}, "Running", "warn"),
        ({"phase": "Succeeded"}, "Completed", "dim"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted", "bad"),
        (
            {"containerStatuses": [container(state={"waiting": {"reason": "CrashLoopBackOff"}})]},
            "CrashLoopBackOff",
            "bad",
        ),
        (
            {"containerStatuses": [container(state={"terminated": {"exitCode": 2}})]},
            "ExitCode:2",
            "bad",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    container(state={"waiting": {"reason": "ContainerCreating"}})
                ],
            },
            "ContainerCreating",
            "warn",
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [container(state={"waiting": {"reason": "ErrImagePull"}})],
            },
            "Init:ErrImagePull",
            "bad",
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [container(state={"running": {}})]},
            "Init:0/0",
            "warn",
        ),
    ],
)
def test_status_and_tone(status: dict[str, Any], text: str, tone: str) -> None:
    found = row(**status)
    assert (found["status"], found["tone"]) == (text, tone)


def test_rejected_pod_has_reason_and_message() -> None:
    pod = examples.refused("b", message="use another \u202e field\x1b[2J")
    found = pod_row(pod, summarize_pod(pod))
    assert (found["status"], found["tone"]) == ("FieldRefused", "bad")
    assert found["message"] == "use another \ufffd field\ufffd[2J"


def test_deleted_pod_is_terminating() -> None:
    pod = examples.pod("web", "Running")
    pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert pod_row(slim_pod(pod), summarize_pod(pod))["status"] == "Terminating"


def test_numbers() -> None:
    found = row(containerStatuses=[container(ready=True), container(name="other")])
    assert (found["ready"], found["containers"], found["restarts"]) == (1, 1, 6)
    assert (found["cpu"], found["memory"]) == (0.5, 0)
    assert found["created"] == "2030-01-01T00:00:00Z"


def test_environment_and_annotations_are_not_kept() -> None:
    pod = examples.pod("web", "Running")
    pod["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": "canary"}]
    pod["metadata"]["annotations"] = {"a": "canary"}
    assert "canary" not in str(slim_pod(pod))
