"""The process under test as a client: of a hostile API server, and of hostile relay agents.

For each line of its standard input with a range of exchanges it makes these, and prints a line with
their results and problems; for an empty line, its state. A call must end within `BOUND`, with a
result or with an error of the documented hierarchy (KubeError, OSError).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bridge.base.join_settings import RelaySettings
from bridge.kubelet.pod_lookup import ScheduledPod
from bridge.net import port_forward_connection, port_forward_sessions
from bridge.net.port_forward_connection import PortForwardTransport, open_port_forward
from bridge.net.port_forward_sessions import PortForwards
from bridge.pod_metrics.kubelet_scraper import KubeletScraper
from bridge.relay.relay_counters import ReverseRelayMetrics
from bridge.relay.reverse.home_pod_connections import HomePodConnections
from sync.cache.informer import Informer
from sync.kube import connections, http_upgrade, transport
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import PODS, Object
from sync.kube.client import KubeClient
from sync.kube.layered_transport import LayeredTransport
from sync.kube.pod_exec import OutputLimitExceeded, open_shell, run_command
from tests.bridge.kubelet.fake_api_servers import access_for
from tests.bridge.kubelet.pki import client_context
from tests.fuzz.agent_messages import TCP_PORT, UDP_PORT
from tests.fuzz.process_state import MEASURED, ProcessState, print_line, run, standard_input
from tests.fuzz.remote_responses import GREETING
from translators.object_accessors import HomeNamespace, HomeUid, RemoteUid
from translators.ownership_labels import Origin
from translators.pod_metrics.exposition import (
    RemotePodName,
    Sample,
    parse_samples,
    relabel_metrics,
)
from translators.relay.forward_plan import Backend
from translators.relay.reverse_plan import HomeTarget, ReverseRoute

#: Seconds for one request, instead of half a minute, and for a port-forward.
REQUEST_SECONDS, FORWARD_SECONDS = 2.0, 2.0
#: Seconds that an idle connection is kept, instead of half a minute: what is open later is a leak.
KEEP_IDLE = 1.0
#: Seconds for a call with all its requests, on a busy machine.
BOUND = 20.0
#: Seconds that an informer or an agent has for one exchange.
DWELL = 0.3
#: Exchanges at a time, and problems that are kept.
AT_ONCE, MAX_PROBLEMS = 64, 10

log = logging.getLogger(__name__)


class ImpatientClient(KubeClient):
    """A client whose requests have less time than in production."""

    async def request(self, *args: Any, timeout: float = REQUEST_SECONDS, **options: Any) -> Object:
        return await super().request(*args, timeout=timeout, **options)


class Upper(asyncio.Protocol):
    """The protocol above a port-forward."""

    def __init__(self) -> None:
        self.data = b""
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data[: 2 * len(GREETING)] if len(self.data) < len(GREETING) else b""

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self.lost.is_set(), "lost twice"
        self.lost.set()


def _samples(body: bytes, pods: Mapping[RemotePodName, Origin]) -> tuple[list[Sample], int]:
    """Reads a kubelet's metrics as the endpoints of the kubelet API do."""
    families = relabel_metrics(body.decode("utf-8", "replace"), pods)
    return [sample for family in families.values() for sample in parse_samples(family)], len(body)


def _hold(size: int) -> None:
    """Accepts some output of a command."""
    if size > 10**4:
        raise OutputLimitExceeded


class RemoteCalls:
    """Calls of a remote's API server, over plain HTTP and over TLS."""

    def __init__(self, plain: KubeClient, secure: KubeClient) -> None:
        self._plain = plain
        self._secure = secure
        self._forwards = PortForwards(plain)
        self._scraper = KubeletScraper(plain)
        self.kinds: list[Callable[[str, random.Random], Coroutine[Any, Any, bool]]]
        self.kinds = [self.get, self.write, self.list, self.informer, self.scrape]
        self.kinds += [self.shared_informer, self.shared_stream, self.shared_stream]
        self.kinds += [self.spdy, self.spdy, self.websocket, self.command, self.script]

    def close(self) -> None:
        self._forwards.close()

    async def get(self, name: str, rng: random.Random) -> bool:
        client = rng.choice((self._plain, self._plain, self._secure))
        return bool(await client.get(PODS, name, namespace="d"))

    async def write(self, name: str, rng: random.Random) -> bool:
        client, decode = self._plain, rng.random() < 0.7
        form = rng.randrange(3)
        if form == 0:
            await client.patch(PODS, name, {}, namespace="d", decode=decode)
        elif form == 1:
            await client.delete(PODS, name, namespace="d", uid="u", decode=decode)
        else:
            # The path of a creation does not name the object.
            client.metrics.lists["creations"] += 1
            query = {"exchange": name}
            await client.request("POST", PODS.path(namespace="d"), query=query, body={"a": name})
        return True

    async def list(self, name: str, rng: random.Random) -> bool:
        page = await self._plain.list(PODS, fields=f"metadata.name={name}", page_size=2)
        return bool(page.items)

    async def scrape(self, name: str, rng: random.Random) -> bool:
        home = Origin(HomeNamespace("d"), name, HomeUid("u"))
        pods = [ScheduledPod(home, "d", name, node=name)]
        found = await self._scraper.scrape("/metrics/resource", pods, _samples)
        return any(found.parts)

    async def informer(self, name: str, rng: random.Random) -> bool:
        return await self._inform(self._plain, name, rng, shared=False)

    async def shared_informer(self, name: str, rng: random.Random) -> bool:
        return await self._inform(self._secure, name, rng, shared=True)

    async def _inform(
        self, client: KubeClient, name: str, rng: random.Random, *, shared: bool
    ) -> bool:
        """Runs an informer until its watch has changed an object, or for a while."""
        fields = f"metadata.name={name}"
        informer = Informer(client, PODS, fields=fields, shares_connection=shared, rng=rng)
        changed = asyncio.Event()
        informer.on_change(lambda old, new: changed.set() if old is not None else None)
        informer.on_state(lambda failing: failing.retry_now())
        running = asyncio.create_task(informer.run())
        try:
            async with asyncio.timeout(DWELL if name.startswith("n") else BOUND):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            running.cancel()
            [ended] = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), f"the informer ended: {ended!r}"
        return changed.is_set()

    async def shared_stream(self, name: str, rng: random.Random) -> bool:
        path, most = PODS.path(namespace="d"), rng.choice((1, 3, 1000))
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}"}
        received = 0
        async with self._secure.shared_stream(
            path, query=query, answer_timeout=REQUEST_SECONDS, idle_timeout=DWELL
        ) as response:
            with self._secure.map_read_errors(path):
                while received < most and (part := await response.content.readany()):
                    received += len(part)
        return received > 0

    async def spdy(self, name: str, rng: random.Random) -> bool:
        uid = name if name.startswith("v") else f"u{int(name[1:-1]) // 40}"
        backend = Backend("d", name, RemoteUid(uid), 80)
        opened = await self._forwards.open(backend)
        if name.startswith("n") and rng.random() < 0.1:
            opened.close()
            return True
        above = Upper()
        return await self._use(opened.attach(above, log.debug), above, name, rng)

    async def websocket(self, name: str, rng: random.Random) -> bool:
        upgraded = await open_port_forward(self._plain, Backend("d", name, RemoteUid(name), 80))
        above = Upper()
        transport = PortForwardTransport(above, log.debug)
        upgraded.take(transport)
        return await self._use(transport, above, name, rng)

    async def command(self, name: str, rng: random.Random) -> bool:
        with contextlib.suppress(OutputLimitExceeded):
            found = await run_command(
                self._plain, namespace="d", pod=name, container="c", argv=["a"], hold=_hold
            )
            return bool(found.stdout)
        return True

    async def script(self, name: str, rng: random.Random) -> bool:
        received = 0
        async with open_shell(self._plain, "a", namespace="d", pod=name, container="c") as shell:
            await shell.write(b"input")
            async with asyncio.timeout(FORWARD_SECONDS):
                async for part in shell.output():
                    received += len(part)
        return received > 0

    async def _use(
        self, below: LayeredTransport, above: Upper, name: str, rng: random.Random
    ) -> bool:
        """Uses a connection until it is lost, or ends it; it must be lost then."""
        below.write(bytes(rng.choice((1, 1000, 10**6))))
        if rng.random() < 0.2:
            below.pause_reading()
            await asyncio.sleep(0.02)
            below.resume_reading()
        end = rng.choice((below.close, below.abort, below.write_eof, lambda: None))
        try:
            async with asyncio.timeout(FORWARD_SECONDS):
                if name.startswith("n") and rng.random() < 0.3:
                    end()
                await above.lost.wait()
        except TimeoutError:
            below.abort()
            async with asyncio.timeout(5):
                await above.lost.wait()
        return above.data == GREETING


class AgentCalls:
    """The reverse relay's connections to agents, with an agent for each exchange."""

    def __init__(self, remote: KubeClient, tcp: HomeTarget, udp: HomeTarget) -> None:
        self.metrics = ReverseRelayMetrics()
        self.forwarder = HomePodConnections(
            remote, settings=RelaySettings(), metrics=self.metrics, is_leader=lambda: True
        )
        self.kinds = [self.agent]
        self._routes = {
            TCP_PORT: ReverseRoute("web", (tcp,), sticky=False),
            UDP_PORT: ReverseRoute("dns", (udp,), sticky=False, port="dns", is_udp=True),
        }

    async def agent(self, name: str, rng: random.Random) -> bool:
        """Connects to an agent; returns whether a connection and a datagram of it have arrived."""
        home = HomeNamespace(name)
        pod = {"metadata": {"name": name, "namespace": "d", "uid": name}}
        before = self._forwarded()
        self.forwarder.update(home, [pod], self._routes)
        try:
            for _ in range(int((DWELL if name.startswith("n") else 5 * DWELL) / 0.05)):
                await asyncio.sleep(0.05)
                works = all(map(int.__lt__, before, self._forwarded()))
                if name.startswith("v") and works:
                    break
        finally:
            self.forwarder.update(home, [], {})
        return works

    def _forwarded(self) -> tuple[int, int]:
        return self.metrics.results["done"], self.metrics.datagrams["out"]


class Exchanges:
    """Makes exchanges and judges how they end."""

    def __init__(self, calls: RemoteCalls | AgentCalls) -> None:
        self._calls = calls
        self.results: Counter[str] = Counter()
        self.problems: list[str] = []

    async def make(self, numbers: list[int], *, valid: bool) -> None:
        rest = iter(numbers)

        async def work() -> None:
            for number in rest:
                if len(self.problems) < MAX_PROBLEMS:
                    await self._make_one(number, valid=valid)

        async with asyncio.TaskGroup() as group:
            for _ in range(1 if valid else AT_ONCE):
                group.create_task(work())

    async def _make_one(self, number: int, *, valid: bool) -> None:
        call = self._calls.kinds[number % len(self._calls.kinds)]
        name, kind = f"{'v' if valid else 'n'}{number}x", call.__name__
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"{kind} {name}")  # for the longest step
        result = await self._judged(call(name, random.Random(number)), f"{kind} {name}")
        self.results[f"{kind} {result}"] += 1
        if valid and result != "done":
            self.problems.append(f"a valid exchange after the attacks: {kind}: {result}")

    async def _judged(self, call: Awaitable[bool], what: str) -> str:
        try:
            async with asyncio.timeout(BOUND) as bound:
                return "done" if await call else "no result"
        except (KubeError, OSError) as error:
            if bound.expired():
                self.problems.append(f"{what} has not ended after {BOUND} s")
            return type(error).__name__
        except Exception as error:
            logging.getLogger().exception("%s", what)
            self.problems.append(f"{what} raised {error!r}")
            return type(error).__name__


async def _main(
    target: str, plain: str, secure: str, homes: list[HomeTarget], folder: Path, *, measured: bool
) -> None:
    for module, name, seconds in (
        (connections, "KEEP_IDLE", KEEP_IDLE),
        (transport, "MIN_DELAY", 0.0),
        (transport, "MAX_DELAY", 0.0),
        (http_upgrade, "REQUEST_TIMEOUT", REQUEST_SECONDS),
        (port_forward_connection, "OPEN_TIMEOUT", FORWARD_SECONDS),
        (port_forward_sessions, "OPEN_TIMEOUT", FORWARD_SECONDS),
        (port_forward_sessions, "IDLE_SECONDS", KEEP_IDLE),
        (port_forward_sessions, "RETRY_SECONDS", 0.0),  # SPDY after each rejection
    ):
        setattr(module, name, seconds)
    logging.getLogger().setLevel(logging.INFO)
    state = ProcessState(set(), measured=measured)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(ImpatientClient(access_for(plain, "remote")))
        credentials = access_for(secure, "remote", client_context(folder))
        credentials.tls_http2 = client_context(folder)
        credentials.tls_http2.set_alpn_protocols(["h2"])
        calls: RemoteCalls | AgentCalls
        if target == "remote":
            second = await stack.enter_async_context(ImpatientClient(credentials))
            calls = RemoteCalls(client, second)
            stack.callback(calls.close)
        else:
            calls = AgentCalls(client, *homes)
            running = asyncio.create_task(calls.forwarder.run())
            stack.callback(running.cancel)
        exchanges = Exchanges(calls)
        print_line({})
        async for line in await standard_input():
            if not line.strip():
                print_line(asdict(state.read()))
                continue
            batch = json.loads(line)
            await exchanges.make([*range(batch["first"], batch["last"])], valid=batch["valid"])
            if target == "agent" and running.done():
                exchanges.problems.append(f"the forwarder has ended: {running}")
            print_line({"results": exchanges.results, "problems": exchanges.problems})
            exchanges.results.clear()
            exchanges.problems.clear()


if __name__ == "__main__":
    target, plain, secure, ports, folder, measured = sys.argv[1:]
    homes = [HomeTarget("127.0.0.1", int(port)) for port in ports.split(",")]
    run(
        _main(target, plain, secure, homes, Path(folder), measured=measured == MEASURED),
        measured=measured == MEASURED,
    )
