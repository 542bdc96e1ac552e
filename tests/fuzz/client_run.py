"""One fuzz run of the bridge as a client: ``remote`` is a hostile API server, ``agent`` hostile
relay agents.

Guarantees of a run without problems: each call ends within `client_process.BOUND`, with a result or
a KubeError or OSError; and as for the listeners (`tests.fuzz.run`), nothing is logged as an error,
valid exchanges succeed afterwards, nothing is left, and memory and steps of the event loop stay
within their bounds.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.bridge.kubelet.fake_api_servers import FakeRemote
from tests.bridge.kubelet.pki import Pki
from tests.bridge.relay.reverse.reverse_world import at_home
from tests.bridge.relay.reverse.udp_world import echo, udp_pod
from tests.fuzz.client_process import KEEP_IDLE
from tests.fuzz.hostile_peers import hostile_agent, hostile_remote
from tests.fuzz.run import MAX_PROBLEMS, Report, ServerProcess, audit

TARGETS = ("remote", "agent")
#: Exchanges between two reports of the progress.
BATCH = 2000
#: Valid exchanges after the attacks: each kind of call, some several times.
VALID = 24
#: Bytes by which resident memory may grow at any moment: two large bodies and what they become
#: (`sync.kube.response_limits`).
MAX_PEAK = 400 * 2**20


@asynccontextmanager
async def _peers(target: str, seed: int, *, measured: bool) -> AsyncIterator[ServerProcess]:
    """The hostile servers, and the process under test."""
    with tempfile.TemporaryDirectory() as folder:
        context = Pki(Path(folder)).server_context("remote")
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with AsyncExitStack() as stack:
            handler = hostile_remote(seed) if target == "remote" else hostile_agent(seed)
            servers = [FakeRemote(), FakeRemote(context)]
            for server in servers:
                server.handler = handler
                await stack.enter_async_context(server)
            tcp = await stack.enter_async_context(at_home(_echo))
            udp = await stack.enter_async_context(udp_pod(echo))
            ports = f"{tcp.port},{udp.target.port}"
            arguments = (target, *(server.url for server in servers), ports, folder)
            process = await stack.enter_async_context(
                ServerProcess.started("tests.fuzz.client_process", *arguments, measured=measured)
            )
            await process.read()
            yield process


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()


async def fuzz_client(
    target: str,
    seed: int,
    exchanges: int,
    *,
    measured: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Makes so many exchanges with a hostile ``target``."""
    report = Report(target, seed)
    async with _peers(target, seed, measured=measured) as process:
        await _exchange(process, report, 0, VALID, valid=True)
        await asyncio.sleep(2 * KEEP_IDLE + 0.5)  # aiohttp looks for idle connections so often
        idle = await process.state()
        started = time.monotonic()
        for first in range(0, exchanges, BATCH):
            last = min(first + BATCH, exchanges)
            await _exchange(process, report, first, last, valid=False)
            report.before = report.before or await process.state()
            progress(f"{report.name}: {last} exchanges, {len(report.problems)} problems")
            if len(report.problems) >= MAX_PROBLEMS:
                break
        report.seconds = time.monotonic() - started
        # An attacked connection can look usable: its server stalls, or has not sent everything yet.
        await asyncio.sleep(1.1 * KEEP_IDLE)
        await _exchange(process, report, VALID, 2 * VALID, valid=True)
        await audit(process, report, idle, most=MAX_PEAK)
    return report


async def _exchange(
    process: ServerProcess, report: Report, first: int, last: int, *, valid: bool
) -> None:
    answer = await process.ask(json.dumps({"first": first, "last": last, "valid": valid}))
    report.requests += sum(answer["results"].values())
    for result, count in answer["results"].items():
        kind, _, outcome = result.partition(" ")
        report.results[kind, outcome] += count
    report.problems += answer["problems"]
