"""A process is known by more than its pid."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.clusters.errors import InvalidRequest
from e2e.clusters.processes import Identity, Supervisor, alive, end, identify, parse_stat


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor without a network namespace, and with a plain file for a cgroup."""
    made = Supervisor(tmp_path / "records", tmp_path / "logs", tmp_path / "join", Path("-"))
    yield made
    for name in made.names():
        made.stop(name, grace=0)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_name_with_parentheses_and_spaces_does_not_move_the_fields() -> None:
    fields = " ".join(str(n) for n in range(4, 53))
    assert parse_stat(f"7 (a) S 1) (b) R {fields}\n") == ("R", 22)


def test_this_process_is_itself_and_a_later_one_of_its_pid_is_not() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert alive(me)
    assert not alive(replace(me, start_ticks=me.start_ticks + 1))
    assert not alive(replace(me, boot="another"))
    assert not alive(None)


def test_ending_somebody_else_under_a_known_pid_does_nothing() -> None:
    me = identify(os.getpid())
    assert me is not None
    end(Identity(me.pid, me.start_ticks + 1, me.boot), grace=0)
    assert alive(me)


def test_start_stop_and_start_again(supervisor: Supervisor) -> None:
    supervisor.start("sleeper", ["sleep", "60"])
    assert supervisor.running("sleeper")
    first = supervisor.pid("sleeper")
    # The process joins its cgroup itself, as the first thing it does.
    _wait(lambda: supervisor.join.exists() and supervisor.join.read_text() == f"{first}\n")
    supervisor.stop("sleeper", grace=5)
    assert not supervisor.running("sleeper")
    assert supervisor.names() == ["sleeper"]
    supervisor.start_again("sleeper")
    assert supervisor.running("sleeper")
    assert supervisor.pid("sleeper") != first
    supervisor.stop("sleeper", grace=0)


def test_removed_component_is_stopped_and_not_started_again(supervisor: Supervisor) -> None:
    supervisor.start("sleeper", ["sleep", "60"])
    supervisor.remove("sleeper")
    assert supervisor.names() == []
    assert supervisor.restart_ended() == {}
    supervisor.remove("sleeper")


def test_what_has_ended_by_itself_is_started_again(supervisor: Supervisor, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    supervisor.start("sleeper", ["sleep", "60"])
    # It runs on from its second start.
    supervisor.start(
        "quitter", ["sh", "-c", f"echo quits; test -e {ran} && exec sleep 60; : > {ran}"]
    )
    _wait(lambda: not supervisor.running("quitter"))
    sleeping = supervisor.pid("sleeper")
    assert supervisor.restart_ended() == {"quitter": "quits"}
    assert supervisor.running("quitter")
    assert supervisor.pid("sleeper") == sleeping
    supervisor.stop("sleeper", grace=0)
    supervisor.stop("quitter", grace=0)


def test_one_that_ignores_the_request_to_end_is_killed(supervisor: Supervisor) -> None:
    supervisor.start("stubborn", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"])
    _wait(lambda: "up" in supervisor.log("stubborn").read_text())
    supervisor.stop("stubborn", grace=0.2)
    assert not supervisor.running("stubborn")


def test_a_suspended_process_still_counts_as_running(supervisor: Supervisor) -> None:
    supervisor.start("sleeper", ["sleep", "60"])
    supervisor.suspend("sleeper", suspended=True)
    assert supervisor.running("sleeper")
    supervisor.suspend("sleeper", suspended=False)
    supervisor.stop("sleeper", grace=5)


def test_a_failure_shows_the_end_of_the_log(supervisor: Supervisor) -> None:
    supervisor.start("failing", ["sh", "-c", "seq 100; echo no such flag >&2; exit 3"])
    _wait(lambda: not supervisor.running("failing"))
    error = supervisor.failure("failing", "it ended")
    assert str(error).startswith("it ended; the last lines of failing:")
    assert "no such flag" in str(error)
    assert "\n50\n" not in str(error)
    assert error.where == str(supervisor.log("failing"))


def test_an_unknown_component_is_named_with_those_there_are(supervisor: Supervisor) -> None:
    supervisor.start("one", ["true"])
    with pytest.raises(InvalidRequest, match="there are: one"):
        supervisor.stop("two")


def test_component_does_not_hold_the_callers_files(supervisor: Supervisor, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        supervisor.start("lister", ["sh", "-c", "ls -l /proc/self/fd; echo done"])
    _wait(lambda: "done" in supervisor.log("lister").read_text())
    assert str(tmp_path / "lock") not in supervisor.log("lister").read_text()
