"""The fence before writes: what passes, what does not, and what is ended on its way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sync.kube.api_errors import NotLeaderError, Throttled
from sync.kube.api_resources import CONFIG_MAPS, Object
from sync.kube.client import KubeClient
from sync.kube.leader_write_fence import Fence, FencedBody, clock
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def fence() -> Fence:
    """Open for a minute."""
    made = Fence()
    made.extend(clock() + 60)
    return made


@pytest.fixture
def fenced(client: KubeClient, fence: Fence) -> KubeClient:
    """A client behind that fence."""
    return client.fenced(fence)


async def write(client: KubeClient) -> Object:
    return await client.create(CONFIG_MAPS, config_map("a"), namespace="default")


async def test_closed_fence_rejects_writes_and_passes_reads(
    api: FakeApi, client: KubeClient
) -> None:
    fenced = client.fenced(Fence())
    api.put(config_map("a"))
    api.clear_log()
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: write(fenced),
        lambda: fenced.patch(CONFIG_MAPS, "a", {"data": {}}, namespace="default"),
        lambda: fenced.delete(CONFIG_MAPS, "a", uid="1", namespace="default"),
        lambda: fenced.request("PUT", "/api/v1/nodes/a", body={}),
    ]
    for attempt in writes:
        with pytest.raises(NotLeaderError) as caught:
            await attempt()
        assert caught.value.retryable
        assert "lease" in str(caught.value)
    await fenced.get(CONFIG_MAPS, "a", namespace="default")
    await fenced.list(CONFIG_MAPS)
    assert api.writes() == []
    assert fenced.limiter.in_flight == 0


async def test_original_client_has_no_fence(client: KubeClient) -> None:
    client.fenced(Fence())
    await write(client)


async def test_open_fence_passes_writes(api: FakeApi, fenced: KubeClient) -> None:
    made = await write(fenced)
    await fenced.patch(CONFIG_MAPS, "a", {"data": {"k": "v"}}, namespace="default")
    uid = made["metadata"]["uid"]
    await fenced.delete(CONFIG_MAPS, "a", uid=uid, namespace="default")
    assert [it.method for it in api.writes()] == ["POST", "PATCH", "DELETE"]


async def test_fence_expires_by_the_clock_without_its_timer(
    api: FakeApi, client: KubeClient
) -> None:
    """As for a process that was stopped: what runs first when it goes on is not its timers."""
    time = Clock()
    fence = Fence(clock=time)
    fenced = client.fenced(fence)
    fence.extend(time.now + 60)
    await write(fenced)
    time.now += 61
    with pytest.raises(NotLeaderError):
        await write(fenced)
    assert len(api.writes()) == 1


async def test_fence_closed_for_good_does_not_open_again(fence: Fence, fenced: KubeClient) -> None:
    fence.close()
    fence.extend(clock() + 60)
    assert not fence.is_open
    with pytest.raises(NotLeaderError):
        await write(fenced)


async def test_write_in_flight_is_aborted_when_the_fence_closes(
    api: FakeApi, fence: Fence, fenced: KubeClient
) -> None:
    api.fail(Fault("POST", "*/configmaps", delay=30))
    attempts = [asyncio.create_task(write(fenced)) for _ in range(3)]
    await api.until(lambda: len(api.writes()) == 3)
    fence.close()
    async with asyncio.timeout(20):
        ended = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(it) for it in ended] == [NotLeaderError] * 3
    assert fenced.limiter.in_flight == 0


async def test_fence_expires_and_opens_again(api: FakeApi, client: KubeClient) -> None:
    fence, recorded = Fence(), list[bool]()
    fence.on_change(recorded.append)
    fenced = client.fenced(fence)
    api.fail(Fault("POST", "*/configmaps", delay=30))
    fence.extend(clock() + 0.05)
    with pytest.raises(NotLeaderError):
        async with asyncio.timeout(20):
            await write(fenced)
    assert recorded == [True, False]
    fence.extend(clock() + 60)
    await write(fenced)
    assert recorded == [True, False, True]
    fence.close()
    assert recorded == [True, False, True]


async def test_fence_with_outer_fence_is_open_while_both_are(
    api: FakeApi, fence: Fence, client: KubeClient
) -> None:
    second, recorded = Fence(outer=fence), list[bool]()
    second.on_change(recorded.append)
    both = client.fenced(second)
    assert not second.is_open
    second.extend(clock() + 60)
    await write(both)
    # It shuts with the first, which ends what is under way, and opens with the first again.
    fence.extend(clock() + 0.2)
    api.fail(Fault("POST", "*/configmaps", delay=30))
    with pytest.raises(NotLeaderError):
        async with asyncio.timeout(20):
            await write(both)
    fence.extend(clock() + 60)
    assert recorded == [True, False, True]
    # By itself it shuts the writes behind it alone.
    second.extend(clock() + 0.05)
    api.fail(Fault("POST", "*/configmaps", delay=30))
    with pytest.raises(NotLeaderError):
        async with asyncio.timeout(20):
            await write(both)
    assert (fence.is_open, second.is_open) == (True, False)
    second.extend(clock() + 60)
    fence.close()
    assert not second.is_open
    assert recorded == [True, False, True, False, True]


async def test_write_that_waits_for_the_limiter_is_not_sent_after_the_fence_closes(
    api: FakeApi, fence: Fence, fenced: KubeClient
) -> None:
    """Neither for its turn among others, nor on the word of a server that is busy."""
    api.fail(Fault("POST", "*/configmaps", code=429, retry_after=1, times=None))
    attempt = asyncio.create_task(write(fenced))
    await api.until(lambda: len(api.writes()) == 1)
    fence.close()
    with pytest.raises((NotLeaderError, Throttled)):
        async with asyncio.timeout(20):
            await attempt
    assert len(api.writes()) == 1


async def test_body_is_not_sent_if_the_connection_opens_after_the_fence_closes(
    api: FakeApi, fence: Fence, fenced: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is looked at again when there is a connection to send it on."""
    passed = FencedBody.write_with_length

    async def late(self: FencedBody, writer: Any, length: int | None) -> None:
        fence.close()
        await passed(self, writer, length)

    monkeypatch.setattr(FencedBody, "write_with_length", late)
    with pytest.raises(NotLeaderError):
        await write(fenced)
    await asyncio.sleep(0.02)
    assert api.log == []


async def test_fence_error_does_not_contain_the_body(
    fence: Fence, fenced: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fence.close()
    body = config_map("a", data={"k": "canary-4711"})
    with pytest.raises(NotLeaderError) as caught:
        await fenced.create(CONFIG_MAPS, body, namespace="default")
    assert "canary" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"
