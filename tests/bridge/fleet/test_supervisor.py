"""The supervisor starts and stops remotes as the source desires; joins are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import Part
from bridge.election.elector import NodeLeft
from bridge.fleet import supervisor
from bridge.fleet.desired_state import DesiredState, InvalidState
from bridge.fleet.fleet_report import FleetMember, FleetReport
from bridge.fleet.supervisor import Supervisor
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.runtime.log_fields import NODE
from tests.bridge.fleet.parts import part, parts
from tests.bridge.running_join import SOON


@dataclass
class Fleet:
    """A supervisor with simulated joins, and a source that the test feeds."""

    name: str = "bridge.yaml"
    ends_with_last_node: bool = True
    queue: asyncio.Queue[DesiredState | InvalidState | None] = field(default_factory=asyncio.Queue)
    events: list[str] = field(default_factory=list)
    """``+a``: the join of a began; ``-a``: it ended; ``leave a``."""
    messages: list[str] = field(default_factory=list)
    failures: dict[str, list[BaseException]] = field(default_factory=dict)
    """Errors that the next joins or leaves of a remote raise."""
    slow: dict[str, asyncio.Event] = field(default_factory=dict)
    """The joins of these end once the event is set."""
    on_cancel: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(
            self.serve, self.leave, notify=lambda it: self.messages.append(f"{NODE.get()}: {it}")
        )

    async def states(self) -> AsyncIterator[DesiredState | InvalidState]:
        while (state := await self.queue.get()) is not None:
            yield state
        raise ValueError("canary")

    async def run(self, report: FleetReport) -> None:
        """Nothing to do."""

    async def serve(self, part: Part, member: FleetMember) -> None:
        name = part.label
        assert NODE.get() == name
        self.events.append(f"+{name}")
        try:
            if self.failures.get(name):
                raise self.failures[name].pop(0)
            member.set_running()
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.on_cancel()
            raise
        finally:
            if name in self.slow:
                await self.slow[name].wait()
            self.events.append(f"-{name}")

    async def leave(self, part: Part) -> None:
        self.events.append(f"leave {part.label}")
        if self.failures.get(part.label):
            raise self.failures[part.label].pop(0)

    def desire(self, *wanted: Part) -> None:
        self.queue.put_nowait(DesiredState(wanted))

    def state(self, key: str) -> str:
        found = self.supervisor.report.remotes.get(key)
        return found.state if found is not None else ""

    def error(self, key: str) -> str:
        return self.supervisor.report.remotes[key].error

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def until_running(self, *keys: str) -> None:
        await self.until(lambda: all(self.state(it) == "running" for it in keys))


@contextlib.asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(fleet.supervisor.run(fleet))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """A running fleet without remotes."""
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(supervisor, "RETRY_CAP", 0.02)
    made = Fleet()
    async with running(made):
        yield made


async def test_change_restarts_one_remote_and_removal_stops_one(fleet: Fleet) -> None:
    fleet.desire(*parts("a", "b", "c"))
    await fleet.until_running("a", "b", "c")
    await fleet.until(lambda: sorted(fleet.events) == ["+a", "+b", "+c"])
    fleet.events.clear()
    fleet.desire(part("a"), part("b", labels={"x": "y"}), part("d"))
    await fleet.until(lambda: fleet.state("b") == fleet.state("d") == "running")
    await fleet.until(lambda: fleet.state("c") == "")
    assert sorted(fleet.events) == ["+b", "+d", "-b", "-c"]
    assert fleet.events.index("-b") < fleet.events.index("+b")
    (message,) = fleet.messages
    assert message == (
        "c: home: bridge.yaml no longer has c: the bridge has stopped, and pods in the remote "
        "continue without it. Next: `bridge leave c` removes the node; an entry in the file joins "
        "it again"
    )
    assert list(fleet.supervisor.report.remotes) == ["a", "b", "d"]


async def test_start_waits_for_the_end_of_what_holds_its_port(fleet: Fleet) -> None:
    """Two remotes swap ports, one is renamed, and one is changed twice while it stops."""
    fleet.desire(part("a", port=1), part("b", port=2), part("c", port=3))
    await fleet.until_running("a", "b", "c")
    fleet.slow = {name: asyncio.Event() for name in "abc"}
    fleet.events.clear()
    fleet.desire(part("a", port=2), part("b", port=1), part("d", port=3), part("e", port=4))
    await fleet.until_running("e")
    assert [fleet.state(it) for it in "abd"] == ["waiting"] * 3
    assert fleet.state("c") == "stopping"
    fleet.desire(part("a", port=5), part("b", port=1), part("d", port=3), part("e", port=4))
    fleet.slow["c"].set()
    await fleet.until_running("d")
    fleet.slow["a"].set()
    await fleet.until_running("a")
    assert fleet.state("b") == "waiting"
    fleet.slow["b"].set()
    await fleet.until_running("b")
    assert fleet.events == ["+e", "-c", "+d", "-a", "+a", "-b", "+b"]


async def test_invalid_state_changes_nothing_and_is_reported(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.desire(*parts("a"))
    await fleet.until_running("a")
    fleet.queue.put_nowait(InvalidState("bridge.yaml: wrong (line 3)"))
    report = fleet.supervisor.report
    await fleet.until(lambda: report.error)
    assert report.loads == {"success": 1, "failure": 1}
    assert "bridge.yaml: wrong (line 3); the last valid configuration stays" in caplog.text
    assert fleet.events == ["+a"]
    fleet.desire(*parts("a"))
    await fleet.until(lambda: not report.error)
    assert fleet.events == ["+a"]
    found = FleetMember(report, "a").as_json()
    assert found is not None
    assert (found["source"], found["remotes"]) == (
        "bridge.yaml",
        [{"name": "a", "state": "running", "error": "", "replica": ""}],
    )


async def test_status_of_a_node_has_the_remotes_of_its_home_only(fleet: Fleet) -> None:
    other = part("c", home=KubeconfigRef(Path("/another/home")))
    fleet.desire(part("a"), part("b"), other)
    await fleet.until_running("c")
    found = {}
    for key in ("a", "c"):
        view = FleetMember(fleet.supervisor.report, key).as_json()
        assert view is not None
        found[key] = [it["name"] for it in view["remotes"]]
    assert found == {"a": ["a", "b"], "c": ["c"]}


async def test_defect_of_the_source_leaves_the_remotes_running(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.desire(*parts("a"))
    fleet.queue.put_nowait(None)
    await fleet.until(lambda: fleet.supervisor.report.error)
    assert "no longer followed: a defect in the bridge" in caplog.text
    assert "canary" not in caplog.text
    await fleet.until_running("a")


async def test_failing_remote_is_retried_and_reported(fleet: Fleet) -> None:
    fleet.failures["a"] = [PreflightError("remote: no answer")] * 3
    fleet.slow["a"] = asyncio.Event()
    fleet.desire(*parts("a", "b"))
    fleet.slow["a"].set()
    await fleet.until_running("a", "b")
    assert fleet.error("a") == ""
    assert fleet.events.count("+a") == 4
    assert fleet.events.count("+b") == 1


async def test_failing_remote_is_retried_once_its_kubeconfig_changes(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_FIRST", 1000.0)
    monkeypatch.setattr(supervisor, "RETRY_CAP", 1000.0)
    monkeypatch.setattr(supervisor, "FILES_SECONDS", 0.01)
    kubeconfig = tmp_path / "remote.yaml"
    fleet.failures["a"] = [PreflightError("kubeconfig: no such file")]
    fleet.desire(part("a", remote=KubeconfigRef(kubeconfig)))
    await fleet.until(lambda: fleet.state("a") == "retrying")
    assert fleet.error("a") == "kubeconfig: no such file"
    kubeconfig.write_text("")
    await fleet.until_running("a")


async def test_failure_of_the_cleanup_does_not_swallow_a_stop(fleet: Fleet) -> None:
    def fail() -> None:
        raise PreflightError("home: the Lease cannot be released")

    fleet.on_cancel = fail
    fleet.desire(*parts("a", "b"))
    await fleet.until_running("a", "b")
    fleet.desire(*parts("b"))
    await fleet.until(lambda: not fleet.state("a"))
    assert sorted(fleet.events) == ["+a", "+b", "-a"]


async def test_left_state_stops_and_leaves_until_it_succeeds(fleet: Fleet) -> None:
    fleet.desire(*parts("a", "b"))
    await fleet.until_running("a", "b")
    fleet.failures["a"] = [PreflightError("home: volumes have their data in the remote")]
    fleet.desire(part("a", "left"), part("b"))
    await fleet.until(lambda: fleet.state("a") == "retrying")
    assert "volumes" in fleet.error("a")
    await fleet.until(lambda: fleet.state("a") == "left")
    assert [it for it in fleet.events if it != "+b"] == ["+a", "-a", "leave a", "leave a"]
    # The entry stays: nothing more is done, also when another one changes.
    fleet.desire(part("a", "left"), part("b", labels={"x": "y"}))
    await fleet.until(lambda: fleet.events[-1] == "+b")
    fleet.desire(part("a"), part("b", labels={"x": "y"}))
    await fleet.until_running("a", "b")
    assert fleet.events[-3:] == ["-b", "+b", "+a"]
    # The removal of an entry that has left needs no next step.
    fleet.desire(part("a", "left"))
    await fleet.until(lambda: fleet.state("a") == "left" and not fleet.state("b"))
    fleet.messages.clear()
    fleet.desire(part("b"))
    await fleet.until(lambda: fleet.state("b") == "running" and not fleet.state("a"))
    assert fleet.messages == []


async def test_entry_that_changes_joins_a_node_again_that_left(fleet: Fleet) -> None:
    fleet.failures["a"] = [NodeLeft("it left")]
    fleet.desire(*parts("a", "b"))
    await fleet.until(lambda: fleet.state("a") == "left")
    fleet.desire(*parts("a", "b", "c"))
    await fleet.until_running("b", "c")
    assert fleet.events.count("+a") == 1
    fleet.desire(part("a", labels={"x": "y"}))
    await fleet.until_running("a")


async def test_declared_leave_of_all_does_not_end_the_process() -> None:
    fleet = Fleet()
    async with running(fleet) as task:
        fleet.desire(part("a", "left"))
        await fleet.until(lambda: fleet.state("a") == "left")
        fleet.desire(part("b"))
        await fleet.until_running("b")
        # Only one is left, which `bridge leave` removes.
        fleet.failures["c"] = [NodeLeft("it left")]
        fleet.desire(part("c"))
        with pytest.raises(NodeLeft, match="no node remains to serve"):
            await asyncio.wait_for(asyncio.shield(task), SOON)


async def test_end_of_the_process_stops_all_within_one_cancellation(fleet: Fleet) -> None:
    other = Fleet()
    async with running(other) as task:
        other.desire(*parts(*(f"r{index}" for index in range(20))))
        await other.until(lambda: len(other.events) == 20)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert len(other.events) == 40
    assert not [it for it in asyncio.all_tasks() if it.get_name().startswith("remote-r")]


async def test_stop_that_hangs_is_logged_and_costs_the_others_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "SLOW_STOP_SECONDS", 0.01)
    caplog.set_level(logging.WARNING)
    fleet.slow["a"] = asyncio.Event()
    fleet.desire(*parts("a", "b"))
    await fleet.until_running("a", "b")
    fleet.desire(part("a", labels={"x": "y"}), part("b", labels={"x": "y"}))
    await fleet.until(lambda: "still stops" in caplog.text and fleet.events.count("+b") == 2)
    assert fleet.state("a") == "waiting"
    fleet.slow["a"].set()
    await fleet.until_running("a", "b")
