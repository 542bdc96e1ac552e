"""One fuzz run of the listeners: starts the process under test, attacks it, and audits what is
left.

Guarantees of a run without problems: each connection is answered or closed within
`judgement.BOUND`; no response has a status above 499, leaks a secret, or serves a caller without a
credential; nothing is logged as an error; the remote received only requests of the node's one pod;
a normal request is served at once afterwards; no descriptor, task and thread is left; and resident
memory has grown by less than `MAX_GROWTH` since the warm-up, and never by more than `MAX_PEAK`.
A run in which a callback of a `measured` event loop, or a garbage collection, took more than
`MAX_STEP` of CPU time is slow (`Report.is_slow`); that depends on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from bridge.offload.webhook_configuration import MUTATE_PATH
from tests.bridge.kubelet.fake_api_servers import FakeHome, FakeRemote, UpgradeRequest, respond
from tests.bridge.kubelet.pki import Pki
from tests.fakeapi import FakeApi
from tests.fuzz import judgement, reviews
from tests.fuzz.client import HostileClient
from tests.fuzz.process_state import MEASURED, State
from tests.fuzz.request_parts import TOKEN, Listener, head
from tests.fuzz.requests import Attack, attack
from translators import offload_admission_patch

SEED_VARIABLE = "CLUSTER_BRIDGE_FUZZ_SEED"
#: Attacks at a time: fewer than a listener lets wait, so that none ends another.
AT_ONCE = 24
#: Requests before the first measurement of memory, which fill caches of Python and OpenSSL.
WARM_UP = 1000
#: Bytes by which resident memory may grow during a run. Caches of reviews are full within it.
MAX_GROWTH = 48 * 2**20
#: Bytes by which it may grow at any moment of it: some bodies of 3 MiB, parsed.
MAX_PEAK = 256 * 2**20
#: CPU seconds that one callback of the event loop, or a collection, may keep it from others.
MAX_STEP = 0.1
#: Seconds for a normal request after the attacks, on a busy machine.
AT_ONCE_SECONDS = 2.0
#: Seconds for the last connections to end.
SETTLE_SECONDS = judgement.BOUND
#: Problems after which a run ends.
MAX_PROBLEMS = 10

#: The only paths that the remote may receive.
_REMOTE_PATHS = re.compile(
    r"/api/v1/namespaces/default-home/pods/web/(log|exec|attach|portforward)"
)
#: The only headers that the remote may receive: those of an upgrade, and the bridge's own.
_FORWARDED_HEADERS = re.compile(
    r"host|user-agent|audit-id|accept|accept-encoding|authorization|connection|upgrade"
    r"|x-stream-protocol-version|sec-websocket-[a-z-]+"
)


def chosen_seed() -> int:
    """The seed of the environment, or a random one; that of a test follows from its run's."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else random.randrange(2**32)


@dataclass
class Report:
    """The result of a run."""

    name: str
    seed: int
    requests: int = 0
    connections: int = 0
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Responses by listener and status, or calls by kind and result."""
    problems: list[str] = field(default_factory=list)
    before: State | None = None
    after: State | None = None
    seconds: float = 0.0

    @property
    def is_slow(self) -> bool:
        if self.after is None:
            return False
        return (self.after.longest_step or self.after.longest_collection) > MAX_STEP

    def text(self) -> str:
        rate = self.requests / max(self.seconds, 0.001)
        sent = f"{self.requests} requests"
        sent += f" on {self.connections} connections" if self.connections else ""
        time_taken = f"{self.seconds:.0f} s ({rate:.0f}/s)"
        lines = [
            f"{self.name}, seed {self.seed}: {sent} in {time_taken}, {len(self.problems)} problems",
            *(f"  {name} {code}: {count}" for (name, code), count in sorted(self.results.items())),
        ]
        if self.before and self.after:
            sizes = (self.before.resident, self.after.resident, self.after.peak)
            mib = [f"{size / 2**20:.0f} MiB" for size in sizes]
            lines.append(f"  resident memory: {mib[0]} before, {mib[1]} after, {mib[2]} at most")
        if self.after and self.after.longest_step:
            step = f"{self.after.longest_step * 1000:.0f} ms of CPU time"
            lines.append(f"  longest step of the event loop: {step} ({self.after.longest_what})")
        elif self.after:
            milliseconds = self.after.longest_collection * 1000
            lines.append(f"  longest garbage collection: {milliseconds:.0f} ms of CPU time")
        return "\n".join([*lines, *self.problems])


class ServerProcess:
    """The process under test, and its standard streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(
        cls, module: str, *arguments: str, measured: bool
    ) -> AsyncIterator[ServerProcess]:
        """Starts ``module`` as a process, and ends it."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments, MEASURED if measured else ""),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        started = cls(process)
        try:
            yield started
        finally:
            await started.end()

    async def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the process under test has ended"
        value: dict[str, Any] = json.loads(line)
        return value

    async def ask(self, line: str = "") -> dict[str, Any]:
        """The answer to one line of its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self.read()

    async def state(self) -> State:
        return State(**await self.ask())

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


@dataclass
class Arena:
    """The process under test between its fake clusters."""

    server: ServerProcess
    listeners: list[Listener]
    client: HostileClient
    reviews: FakeHome
    remote: FakeRemote
    home: FakeApi

    def forget_requests(self) -> list[str]:
        """Clears the logs of the fake clusters; returns what the remote may not have received."""
        wrong = [
            f"the remote received {it.method} {it.target} with {it.headers}"
            for it in self.remote.requests
            if not _REMOTE_PATHS.fullmatch(it.path)
            or it.header_values("Authorization") != ["Bearer remote-credential"]
            or not all(_FORWARDED_HEADERS.fullmatch(name.lower()) for name, _ in it.headers)
            or not (it.path.endswith("portforward") or _containers(it) in (["app"], ["init"]))
        ]
        self.remote.requests.clear()
        self.reviews.token_reviews.clear()
        self.reviews.access_reviews.clear()
        self.home.clear_log()
        return wrong


def _containers(request: UpgradeRequest) -> list[str]:
    return [value for name, value in request.query if name == "container"]


@asynccontextmanager
async def arena(*, measured: bool = False) -> AsyncIterator[Arena]:
    """Starts everything, and ends it."""
    with tempfile.TemporaryDirectory() as folder:
        pki = Pki(Path(folder))
        async with (
            FakeApi() as home,
            FakeHome() as reviewing,
            FakeRemote(pki.server_context("remote")) as remote,
        ):
            _prepare(home)
            remote.handler = _answer_remote
            reviewing.denied |= {("alice", verb, "proxy") for verb in ("patch", "delete")}
            async with ServerProcess.started(
                "tests.fuzz.server_process",
                *(home.url, reviewing.url, remote.url, folder),
                measured=measured,
            ) as server:
                listeners = _listeners(await server.read())
                yield Arena(server, listeners, HostileClient(pki), reviewing, remote, home)


def _prepare(home: FakeApi) -> None:
    for name in reviews.NAMESPACES[:-1]:
        labels = {offload_admission_patch.LABEL_OFFLOAD: name}
        meta = {"name": name, "labels": labels if name != "default" else {}}
        home.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="page")

    home.route("GET", "/api/v1/nodes/virtual/proxy/*", page)


async def _answer_remote(request: UpgradeRequest) -> None:
    """Accepts an attach, and ends its stream after the first bytes; has no other pod."""
    if request.path.endswith("/attach"):
        await request.switch_protocols()
        await request.send(await request.reader.read(1000))
    else:
        await respond(request, 404, b'{"kind":"Status","message":"no such pod"}')


def _listeners(started: dict[str, Any]) -> list[Listener]:
    ports = started["ports"]
    page = urlsplit(started["dashboard"])
    assert page.port is not None
    kubelet = (
        *(b"/containerLogs/default/web/app", b"/exec/default/web/init", b"/attach/default/web/app"),
        *(b"/portForward/default/web", b"/portForward/default/web/uid-1", b"/pods", b"/configz"),
        *(b"/exec/default/web/uid-1/app", b"/run/default/web/app", b"/healthz/ping", b"/readyz"),
    )
    webhook = (MUTATE_PATH.encode(), MUTATE_PATH.encode(), b"/livez", b"/readyz")
    probes = (b"/livez", b"/readyz")
    dashboard = page.path.encode()
    return [
        Listener("kubelet", ports["kubelet"], True, True, kubelet, b"/configz"),
        Listener("webhook", ports["webhook"], True, False, webhook, b"/livez"),
        Listener("probe", ports["probe"], False, False, probes, b"/livez"),
        Listener("dashboard", page.port, False, True, (dashboard, b"/x/main.js"), dashboard),
    ]


async def fuzz(
    seed: int,
    requests: int,
    *,
    only: str = "",
    measured: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Sends at least ``requests`` requests, to the listener ``only`` if it is set."""
    report = Report(only or "listeners", seed)
    async with arena(measured=measured) as place:
        if only:
            place.listeners = [it for it in place.listeners if it.name == only]
        await _check_service(place, report)
        idle = await place.server.state()
        started = time.monotonic()
        numbers = iter(range(sys.maxsize))
        for goal in (min(WARM_UP, requests // 2), *range(10_000, requests, 10_000), requests):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(_attack_until(place, report, numbers, goal))
            report.problems += place.forget_requests()
            report.before = report.before or await place.server.state()
            progress(f"{report.requests} requests, {len(report.problems)} problems")
        report.seconds = time.monotonic() - started
        await _check_service(place, report)
        await audit(place.server, report, idle)
    return report


async def _attack_until(place: Arena, report: Report, numbers: Any, goal: int) -> None:
    while report.requests < goal and len(report.problems) < MAX_PROBLEMS:
        listener, made = attack(report.seed, next(numbers), place.listeners)
        report.requests += made.requests
        report.connections += 1
        report.problems += await _attack_once(place, report, listener, made)


async def _attack_once(place: Arena, report: Report, listener: Listener, made: Attack) -> list[str]:
    outcome = await place.client.send(made, listener)
    report.results.update((listener.name, str(code)) for code, _ in outcome.responses)
    secret = next(
        (it.served.split(b"/")[1] for it in place.listeners if it.name == "dashboard"), b""
    )
    hidden = (b"-credential", *([secret] if secret else []))
    found = judgement.problems(made, listener, outcome, hidden)
    return [
        f"attack {made.number} ({made.kind}) on {listener.name}: {it}\n  {made.data[:300]!r}"
        for it in found
    ]


async def _check_service(place: Arena, report: Report) -> None:
    """A normal request to each listener is served at once."""
    for listener in place.listeners:
        lines = [listener.host, TOKEN, b"Connection: close"]
        normal = Attack("normal", [head(b"GET", listener.served, lines)], complete=True)
        started = time.monotonic()
        outcome = await place.client.send(normal, listener)
        seconds = time.monotonic() - started
        codes = [code for code, _ in outcome.responses]
        if codes != [200] or seconds > AT_ONCE_SECONDS:
            report.problems.append(f"{listener.name} answers {codes} after {seconds:.1f} s")


async def audit(
    server: ServerProcess, report: Report, idle: State, *, most: int = MAX_PEAK
) -> None:
    """Waits until nothing is left of the attacks, and compares."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        state = report.after = await server.state()
        left = [
            f"{getattr(state, name) - getattr(idle, name)} more {name} than before"
            for name in ("descriptors", "tasks", "threads")
            if getattr(state, name) > getattr(idle, name)
        ]
        if not left or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    report.problems += left
    report.problems += [f"logged: {it}" for it in state.errors]
    before = report.before or idle
    if state.resident - before.resident > MAX_GROWTH:
        report.problems.append(f"resident memory has grown by {state.resident - before.resident}")
    if state.peak - before.resident > most:
        report.problems.append(f"resident memory grew by {state.peak - before.resident} meanwhile")
