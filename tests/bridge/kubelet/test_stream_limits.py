"""Limits of the number of streams, and requests that proceed beside many streams."""

from __future__ import annotations

import asyncio
import resource

import pytest

from bridge.net.open_file_budget import MAX_STREAMS, max_streams, raise_open_file_limit
from tests.bridge.kubelet.conftest import running_server
from tests.bridge.kubelet.fake_api_servers import EXEC, echo, wait_until
from tests.bridge.kubelet.pki import Pki


@pytest.mark.parametrize(
    ("files", "streams"), [(100_000, MAX_STREAMS), (1024, 256), (514, 1), (256, 1)]
)
def test_stream_limit_leaves_file_descriptors(
    files: int, streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: 2**31)
    assert max_streams(files) == streams


def test_stream_limit_follows_from_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: 2**30)
    assert max_streams(100_000) == 736


def test_open_file_limit_is_raised_to_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        granted = raise_open_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (granted, before[1])
        assert granted > 512 or granted == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_stream_above_the_limit_gets_429(pki: Pki) -> None:
    async with running_server(pki, max_streams=5) as harness:  # three of them are for one namespace
        harness.remote.handler = echo
        streams = [await harness.upgrade(EXEC) for _ in range(3)]
        head, reader, writer = await harness.upgrade(EXEC)
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: 5\r\n" in head
        assert b"3 streams open" in await reader.read(4096)
        writer.close()
        async with harness.session() as session:
            for method, target in (
                ("GET", "/containerLogs/default/web/app"),
                ("POST", "/run/default/web/app?cmd=ls"),
            ):
                async with session.request(method, target) as response:
                    assert response.status == 429
        assert len(harness.remote.requests) == 3
        for _, reader, writer in streams:
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
        streams.pop()[2].close()
        await wait_until(lambda: harness.server.streams.counts["exec"] == 2)
        head, _, writer = await harness.upgrade(EXEC)
        assert head.startswith(b"HTTP/1.1 101 ")
        for _, _, open_one in [*streams, (b"", None, writer)]:
            open_one.close()


async def test_one_namespace_cannot_use_all_streams(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_server(pki, max_streams=8) as harness:
        monkeypatch.setattr(
            harness.directory, "find_remote_pod", lambda *_: harness.directory.remote
        )
        harness.remote.handler = echo
        opened = [await harness.upgrade(EXEC) for _ in range(5)]
        assert [head[9:12] for head, _, _ in opened] == [b"101"] * 4 + [b"429"]
        assert b"Retry-After: 5" in opened[-1][0]
        sentence = await opened[-1][1].read(4096)
        assert b"namespace default has 4 streams open" in sentence
        assert b"leaves as many of the 8 free as it has" in sentence
        opened += [await harness.upgrade(EXEC.replace("default", "other")) for _ in range(3)]
        assert [head[9:12] for head, _, _ in opened[5:]] == [b"101", b"101", b"429"]
        streams = harness.server.streams
        assert (streams.namespace_limit.largest, streams.namespace_limit.used) == (4, 6)
        assert streams.rejected == {"limit": 0, "namespace-limit": 2}
        for _, _, writer in opened:
            writer.close()
        await wait_until(lambda: streams.namespace_limit.used == 0)


@pytest.mark.timeout(120)  # hundreds of TLS handshakes, possibly on a busy machine
async def test_hundreds_of_streams_do_not_block_other_requests(pki: Pki) -> None:
    async with running_server(pki, tls=False) as harness:
        harness.remote.handler = echo
        turns = asyncio.Semaphore(20)

        async def one() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            async with turns:
                _, reader, writer = await harness.upgrade(EXEC)
            return reader, writer

        streams = await asyncio.gather(*(one() for _ in range(200)))
        assert harness.server.streams.counts["exec"] == 200
        async with harness.session() as session, asyncio.timeout(10):
            for _ in range(5):
                async with session.get("/pods") as response:
                    assert response.status == 200
        for number, (_, writer) in enumerate(streams):
            writer.write(b"%03d" % number)
        for number, (reader, _) in enumerate(streams):
            assert await reader.readexactly(3) == b"%03d" % number
        for _, writer in streams:
            writer.transport.abort()
        async with asyncio.timeout(60):
            while harness.server.streams.counts["exec"]:  # noqa: ASYNC110  # the condition has no event
                await asyncio.sleep(0.05)
