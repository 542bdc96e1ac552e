"""Runs the remotes that a source desires: the one caller that acts on `bridge.fleet.plan`.

Each remote is a task of one task group, with its own clients, caches, Lease, Node and kubelet API.

- A remote that fails is logged with its name and started again after increasing delays up to
  `RETRY_CAP`, or as soon as a file of its options changes. No failure ends the process.
- A remote that is no longer desired stops as by Ctrl-C: the Lease is released, and pods in the
  remote continue. Its node stays; the log has the command that removes it. A changed remote is
  stopped and started; the others do not notice. A start waits until every remote that held the
  node or one of the ports has ended.
- A remote of the state ``left`` is stopped, and removed as by `bridge leave --yes`, whose refusals
  are failures like all others.
- A remote whose node `bridge leave` removes from outside stays so until its entry changes. If that
  is so for all, `Supervisor.run` ends, if the source wants that.
- An invalid state of the source is logged, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bridge.base.command_error import find_user_error
from bridge.base.join_settings import Part
from bridge.base.progress_lines import Caveat
from bridge.election.elector import NodeLeft
from bridge.fleet import plan
from bridge.fleet.config_file_source import fingerprints
from bridge.fleet.desired_state import DesiredState, FleetSource, InvalidState, by_key
from bridge.fleet.fleet_report import FleetMember, FleetReport
from bridge.fleet.plan import Action
from sync.base import exception_summary
from sync.base.backoff import Backoff
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.runtime.log_fields import NODE

log = logging.getLogger(__name__)
changes = logging.getLogger("cluster-bridge.changes")

#: First and longest delay in seconds before a failed remote is started again.
RETRY_FIRST, RETRY_CAP = 2.0, 60.0
#: Seconds after which a running remote resets its delay.
STABLE_SECONDS = 60.0
#: Seconds between looks at the files of a remote that waits for its next attempt.
FILES_SECONDS = 2.0
#: Seconds after which a stop that has not ended is reported; a stop takes less than that
#: (`bridge.cli.run_until_signal.STOP_SECONDS`).
SLOW_STOP_SECONDS = 15.0

#: Joins a remote, and serves it until cancelled.
Serve = Callable[[Part, FleetMember], Awaitable[None]]
#: Removes the node of a remote as `bridge leave --yes` does.
Leave = Callable[[Part], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Running:
    """A started remote."""

    key: str
    part: Part
    task: asyncio.Task[None]


class Supervisor:
    """Starts and stops remotes. Use an instance for one `run`."""

    def __init__(
        self,
        serve: Serve,
        leave: Leave,
        *,
        notify: Callable[[str], None],
        report: FleetReport | None = None,
    ) -> None:
        self._serve = serve
        self._leave = leave
        self._notify = notify
        self.report = report or FleetReport()
        self._current: dict[str, _Running] = {}
        self._ending: dict[asyncio.Task[None], _Running] = {}
        self._removed_by_leave: set[str] = set()
        self._none_remains = asyncio.Event()
        self._is_stopping = False
        self._ends_with_last_node = True

    async def run(self, source: FleetSource) -> None:
        """Follows the source until cancelled. Raises NodeLeft if `bridge leave` has removed the
        nodes of all desired remotes."""
        self.report.source = source.name
        self._ends_with_last_node = source.ends_with_last_node
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(source, group), name="fleet-source")
            working = group.create_task(self._work(source), name="fleet-source-work")
            try:
                await self._none_remains.wait()
            finally:
                self._is_stopping = True
            following.cancel()
            working.cancel()
        raise NodeLeft("no node remains to serve: `bridge leave` removed all of them")

    # -- the desired state -----------------------------------------------------------------

    async def _follow(self, source: FleetSource, group: asyncio.TaskGroup) -> None:
        """Applies the states of the source. A defect of the source is logged; what runs goes on."""
        try:
            async for state in source.states():
                if isinstance(state, InvalidState):
                    self.report.record_load(state.error)
                    log.error("%s; the last valid configuration stays in effect", state.error)
                else:
                    self._apply(state, source.name, group)
        except Exception as error:  # noqa: BLE001  # the remotes continue
            self._note_defect(source, error)

    async def _work(self, source: FleetSource) -> None:
        try:
            await source.run(self.report)
        except Exception as error:  # noqa: BLE001  # the remotes continue
            self._note_defect(source, error)

    def _note_defect(self, source: FleetSource, error: Exception) -> None:
        defect = exception_summary.traced_summary(exception_summary.first_leaf(error))
        self.report.record_load(f"{source.name} is no longer followed: a defect in the bridge")
        log.error(
            "%s is no longer followed: a defect in the bridge; please report it: %s",
            source.name,
            defect,
        )

    def _apply(self, state: DesiredState, source: str, group: asyncio.TaskGroup) -> None:
        actions = plan.plan(
            by_key(state.parts), {key: it.part for key, it in self._current.items()}
        )
        is_first = not self.report.loads["success"]
        self.report.elsewhere = state.elsewhere
        if state.is_read:
            self.report.record_load()
        for warning in state.warnings:
            log.warning("%s: %s", source, warning)
        if state.is_read and not is_first:
            changes.info("%s: read again: %s", source, plan.describe(actions))
        # All stops before the first start, which waits for those that hold its ports.
        for action in actions:
            if action.verb != "start":
                self._stop(action, _farewell(action, source, state), group)
        for action in actions:
            if action.verb != "stop":
                self._start(action, group)
        self._check_whether_any_remains()

    def _start(self, action: Action, group: asyncio.TaskGroup) -> None:
        key, part = action.key, action.part
        before = {
            task
            for task, it in self._ending.items()
            if it.key == key or plan.ports(it.part) & plan.ports(part)
        }
        self.report.add(key, "waiting" if before else "joining", part.settings.home)
        task = group.create_task(self._run(key, part, before), name=f"remote-{key}")
        self._current[key] = _Running(key, part, task)

    def _stop(self, action: Action, farewell: str, group: asyncio.TaskGroup) -> None:
        running = self._current.pop(action.key)
        self._removed_by_leave.discard(action.key)
        self._ending[running.task] = running
        self.report.set_state(running.key, "stopping")
        group.create_task(self._end(running, farewell), name=f"stop-{running.key}")

    async def _end(self, running: _Running, farewell: str) -> None:
        """Stops a remote. ``farewell``: why it does not run again, "" for a restart."""
        NODE.set(running.part.settings.name or running.part.label)
        has_left = running.task.done()
        running.task.cancel()
        _, late = await asyncio.wait({running.task}, timeout=SLOW_STOP_SECONDS)
        if late:
            log.warning("the bridge of this remote still stops after %.0f s", SLOW_STOP_SECONDS)
            await asyncio.wait({running.task})
        self._ending.pop(running.task, None)
        if not farewell:
            return
        if running.key not in self._current:
            self.report.remotes.pop(running.key, None)
        if not has_left:
            self._notify(farewell)

    # -- one remote ------------------------------------------------------------------------

    async def _run(self, key: str, part: Part, before: set[asyncio.Task[None]]) -> None:
        """Runs one remote until it has left. Raises nothing but its cancellation."""
        NODE.set(part.label)
        if before:
            await asyncio.wait(before)
        attempt = self._serve_once if part.state == "joined" else self._leave_once
        loop, backoff = asyncio.get_running_loop(), Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
        while True:
            NODE.set(part.label)
            began, files = loop.time(), await fingerprints(_files(part))
            try:
                await attempt(key, part)
            except Exception as error:  # noqa: BLE001  # the other remotes continue
                self._raise_cancellation()
                reason = find_user_error(error)
                if isinstance(reason, NodeLeft):
                    self._note_removal(key, reason)
                    return
                if loop.time() - began > STABLE_SECONDS:
                    backoff.reset()
                wait = backoff.next()
                message = str(reason)
                if reason is None:
                    defect = exception_summary.traced_summary(exception_summary.first_leaf(error))
                    message = f"a defect in the bridge; please report it: {defect}"
                self.report.set_state(key, "retrying", message)
                log.error("%s (retry in %.0f s)", message, wait)  # noqa: TRY400
            else:
                return
            await _pause(wait, part, files)

    def _raise_cancellation(self) -> None:
        """Raises the cancellation of the current task, if a failure of the cleanup has replaced it.

        `asyncio.Task.cancelling` does not show that: until Python 3.13, a TaskGroup whose child
        fails leaves a request behind that no caller made.
        """
        task = asyncio.current_task()
        if self._is_stopping or task in self._ending:
            raise asyncio.CancelledError
        while task is not None and task.cancelling():
            task.uncancel()

    async def _serve_once(self, key: str, part: Part) -> None:
        self.report.set_state(key, "joining")
        await self._serve(part, FleetMember(self.report, key))

    async def _leave_once(self, key: str, part: Part) -> None:
        self.report.set_state(key, "leaving")
        await self._leave(part)
        self.report.set_state(key, "left", "")

    def _note_removal(self, key: str, reason: NodeLeft) -> None:
        log.error("%s", reason)
        self.report.set_state(key, "left", str(reason))
        self._removed_by_leave.add(key)
        self._check_whether_any_remains()

    def _check_whether_any_remains(self) -> None:
        is_none_left = bool(self._current) and self._current.keys() == self._removed_by_leave
        if is_none_left and self._ends_with_last_node:
            self._none_remains.set()


def _farewell(action: Action, source: str, state: DesiredState) -> str:
    """The message of a remote that no longer runs in this process; "" for a restart."""
    if action.verb != "stop":
        return ""
    if action.key in state.elsewhere:
        _, replica = state.elsewhere[action.key]
        return f"home: {action.key} runs in another replica now: {replica}"
    node = action.part.settings.name or "NODE"
    outcome = "the bridge has stopped, and pods in the remote continue without it"
    if action.part.state == "left":
        outcome = "its node has not left yet"
    return Caveat(
        f"home: {source} no longer has {action.key}: {outcome}. Next: `bridge leave {node}` "
        "removes the node; an entry in the file joins it again"
    )


def _files(part: Part) -> list[Path]:
    """The files that the options name."""
    settings = part.settings
    certificate = [it for it in (settings.certificate, settings.key) if it is not None]
    return [*_kubeconfigs(settings.remote), *_kubeconfigs(settings.home), *certificate]


def _kubeconfigs(ref: KubeconfigRef) -> list[Path]:
    if ref.path is not None:
        return [ref.path]
    return [Path(it) for it in ref.files().split(os.pathsep) if it]


async def _pause(seconds: float, part: Part, files: tuple[object, ...]) -> None:
    """Waits, at most until one of the files differs from ``files``."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        await asyncio.sleep(min(left, FILES_SECONDS))
        if await fingerprints(_files(part)) != files:
            return
