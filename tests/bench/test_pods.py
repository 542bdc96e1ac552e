"""Figures computed from measurements and from a server's audit log."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import orjson
import pytest

from e2e.bench.pods import burst
from e2e.bench.pods.audit_log import BRIDGE, NODE, LogGone, Requests
from e2e.bench.pods.burst import Run
from e2e.bench.pods.pod_load import PodsLost, Shape


def test_each_way_is_compared_with_those_that_do_less_round_by_round() -> None:
    runs = [Run("direct", seconds, 1.0) for seconds in (4.0, 5.0, 10.0)]
    runs += [Run("bridge", seconds, 1.0, cpu_burst_ms=2.0, writes=4.0) for seconds in (8, 20, 20)]
    found = burst.report(Shape(pods=100), runs).figures
    assert found["direct.pods_per_second"].median == 20
    assert found["direct.pods_per_second"].rounds == (25.0, 20.0, 10.0)
    assert found["bridge.of_direct"].rounds == (0.5, 0.25, 0.5)
    assert "bridge.of_least" not in found  # it was not run
    assert "direct.of_bridge" not in found
    assert found["bridge.cpu_burst_ms"].median == 2.0
    assert "direct.cpu_burst_ms" not in found
    assert found["bridge.writes"].rounds == (4.0, 4.0, 4.0)


class Log:
    """An audit log of an API server."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "audit.log"
        self.file.touch()

    def add(
        self, verb: str, resource: str, agent: str = BRIDGE, sub: str = "", **fields: Any
    ) -> None:
        """A request that was answered."""
        ref = {"resource": resource, "name": "a", "namespace": "b"}
        event = {
            "auditID": str(uuid.uuid4()),
            "verb": verb,
            "stage": "ResponseComplete",
            "userAgent": agent,
            "objectRef": ref | ({"subresource": sub} if sub else {}),
            "requestURI": "/",
            "responseStatus": {"code": 200},
            "requestReceivedTimestamp": "2030-01-01T00:00:01.000000Z",
            "stageTimestamp": "2030-01-01T00:00:01.250000Z",
        }
        with self.file.open("ab") as file:
            file.write(orjson.dumps(event | fields) + b"\n")

    def rotate(self) -> None:
        """As the server does when the file is full: one old file is kept."""
        for old in self.file.parent.glob("audit-*"):
            old.unlink()
        self.file.rename(self.file.with_name("audit-2030-01-01T00-00-00.000.log"))
        self.file.touch()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_requests_of_the_bridge_are_counted_from_the_mark_on(log: Log) -> None:
    log.add("create", "pods")
    requests = Requests(log.file)
    for _ in range(2):
        log.add("patch", "pods", sub="status")
    log.add("get", "pods")
    log.add("patch", "leases")
    log.add("create", "events")
    log.add("create", "selfsubjectaccessreviews")
    log.add("create", "pods", agent="kubectl")
    assert requests.count() == {
        "patch pods/status": 2,
        "get pods": 1,
        "patch leases": 1,
        "create events": 1,
        "create selfsubjectaccessreviews": 1,
    }
    assert requests.writes() == {"patch pods/status": 2}
    assert requests.writes(NODE) == {"patch pods/status": 2, "create events": 1}
    requests.mark()
    assert not requests.count()


def test_a_watch_counts_once_when_it_begins(log: Log) -> None:
    requests = Requests(log.file)
    log.add("watch", "pods", stage="ResponseStarted")
    log.add("watch", "pods")
    log.add("get", "pods", sub="log", stage="ResponseStarted")
    log.add("get", "pods", sub="log")
    assert requests.count() == {"watch pods": 1, "get pods/log": 1}


def test_request_has_the_times_of_arrival_and_response(log: Log) -> None:
    requests = Requests(log.file)
    log.add("create", "pods")
    (one,) = requests.all()
    assert (one.namespace, one.name, one.code) == ("b", "a", 200)
    assert one.answered - one.received == 0.25


def test_a_new_file_of_the_log_is_counted_too_and_one_that_is_gone_is_an_error(log: Log) -> None:
    log.add("create", "pods")
    requests = Requests(log.file)
    log.add("create", "pods")
    log.rotate()
    log.add("delete", "pods")
    assert requests.count() == {"create pods": 1, "delete pods": 1}
    log.rotate()
    with pytest.raises(LogGone):
        requests.count()
    requests.mark()
    log.add("patch", "pods")
    assert requests.count() == {"patch pods": 1}


def test_a_line_that_is_being_written_is_left_for_later(log: Log) -> None:
    requests = Requests(log.file)
    log.add("create", "pods")
    with log.file.open("ab") as file:
        file.write(b'{"verb": "create", "userAgent":"cluster-bridge",')
    assert requests.count() == {"create pods": 1}


def test_a_pod_that_was_made_twice_is_an_error(log: Log) -> None:
    counts = {"home": Requests(log.file), "remote": Requests(log.file)}
    for _ in range(2):
        log.add("create", "pods", responseStatus={"code": 201})
    log.add("create", "pods", responseStatus={"code": 409})
    run = burst.counted(Run("bridge", 1.0, 1.0), counts, 2)
    assert run.writes == 3 * 2 / 2  # both sides read the same log here
    with pytest.raises(PodsLost, match="made 2 pods in the remote for 1"):
        burst.counted(Run("bridge", 1.0, 1.0), counts, 1)
