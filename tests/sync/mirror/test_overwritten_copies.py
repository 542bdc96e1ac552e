"""A copy that another client of the remote sets back, deletes or publishes itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from sync.base.background_task import background_task
from sync.kube.api_resources import CONFIG_MAPS, EVENTS
from sync.runtime import workqueue
from tests.objects import config_map
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import LABEL_HOME
from translators.pods.references import PUBLISHED

THEIRS = {"ca.crt": "theirs"}
OURS = {"ca.crt": "ours"}


@pytest.fixture(autouse=True)
def retries_as_in_the_product(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated minutes would have thousands of the shortened ones."""
    monkeypatch.setattr(workqueue, "RETRY_CAP", 60.0)


@asynccontextmanager
async def controller(
    harness: EngineHarness, wanted: Callable[[], bool], act: Callable[[], object]
) -> AsyncIterator[None]:
    """A controller of the remote that acts as soon as a state is not as wanted."""

    async def run() -> None:
        while True:
            await harness.remote.until(lambda: not wanted(), timeout=1e6)
            act()

    async with background_task(run(), name="controller"):
        yield


def publisher(harness: EngineHarness, name: str) -> AbstractAsyncContextManager[None]:
    """A controller that has a ConfigMap contain `THEIRS`."""
    return controller(
        harness,
        lambda: (harness.config_map(name) or {}).get("data", THEIRS) == THEIRS,
        lambda: harness.remote.update(CONFIG_MAPS, name, {"data": THEIRS}, REMOTE_NAMESPACE),
    )


async def test_copy_that_is_set_back_is_written_again_at_growing_intervals(
    harness: EngineHarness,
) -> None:
    harness.home.put(config_map("conf", data=OURS))
    await harness.start_running(uses=["cm/conf"])
    harness.clear_logs()
    path = f"*/{REMOTE_NAMESPACE}/configmaps/conf"
    async with publisher(harness, "conf"):
        (event,) = await harness.events_with_reason("RemoteOverwrites")
        await asyncio.sleep(120)
        assert len(harness.remote.writes(path)) <= 8
        assert event["involvedObject"]["kind"] == "ConfigMap"
        assert "managed-fields" in event["message"]
        # A pod would run with the configuration of another owner.
        harness.pod("next", uses=["cm/conf"])
        await harness.home.until(lambda: harness.status("next").get("reason"))
        assert harness.status("next")["reason"] == "RemoteOverwrites"
        # A change in the home cluster is sent immediately.
        harness.clear_logs()
        harness.home.put(config_map("conf", data={"ca.crt": "newer"}))
        began = asyncio.get_running_loop().time()
        await harness.remote.until(lambda: harness.remote.writes(path))
        assert asyncio.get_running_loop().time() - began < 1
    await harness.remote.until(
        lambda: (harness.config_map("conf") or {})["data"] == {"ca.crt": "newer"}, timeout=900
    )
    await harness.remote.until(lambda: harness.remote_pod("next"))
    assert len(await harness.events_with_reason("RemoteOverwrites")) <= 3


async def test_copy_that_is_deleted_again_and_again(harness: EngineHarness) -> None:
    """As by a GitOps tool that prunes what its repository does not have."""
    harness.home.put(config_map("conf", data=OURS))
    await harness.start_running(uses=["cm/conf"])
    harness.clear_logs()

    async with controller(
        harness,
        lambda: harness.config_map("conf") is None,
        lambda: harness.remote.remove(CONFIG_MAPS, "conf", REMOTE_NAMESPACE),
    ):
        await harness.events_with_reason("RemoteOverwrites")
        await asyncio.sleep(120)
        assert len(harness.remote.writes(f"*/{REMOTE_NAMESPACE}/configmaps")) <= 8


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@pytest.mark.parametrize("first", ["remote", "bridge"])
async def test_config_map_that_both_clusters_publish_is_left_to_the_remote(
    harness: EngineHarness, name: str, first: str
) -> None:
    harness.home.put(config_map(name, data=OURS))
    await harness.start()
    if first == "remote":
        # Pods of the namespace exist: the publisher has seen it.
        harness.pod("before")
        await harness.settle()
        harness.remote.put(config_map(name, REMOTE_NAMESPACE, data=THEIRS))
    harness.pod(uses=[f"cm/{name}"])
    if first == "bridge":
        await harness.settle()
    harness.clear_logs()
    async with publisher(harness, name):
        await harness.remote.until(harness.remote_pod)
        await asyncio.sleep(60)
        found = harness.config_map(name) or {}
        assert found["data"] == THEIRS
        assert LABEL_HOME not in (found["metadata"].get("labels") or {})
        assert len(harness.remote.writes("*/configmaps*")) <= 4
        harness.clear_logs()
        harness.pod("next", uses=[f"cm/{name}"])
        await harness.remote.until(lambda: harness.remote_pod("next"))
        assert not harness.remote.writes("*/configmaps*")
        assert not [event for event in harness.home.objects(EVENTS) if "Remote" in event["reason"]]


async def test_pods_do_not_wait_while_the_remote_sets_its_published_config_map_back(
    harness: EngineHarness,
) -> None:
    name = min(PUBLISHED)
    harness.home.put(config_map(name, data=OURS))
    await harness.start_running(uses=[f"cm/{name}"])
    async with publisher(harness, name):
        for number in range(20):
            harness.pod(f"pod-{number}", uses=[f"cm/{name}"])
            await asyncio.sleep(0.05)
        await harness.remote.until(lambda: harness.remote_pod("pod-19"))
    assert not [event for event in harness.home.objects(EVENTS) if "Remote" in event["reason"]]


async def test_published_config_map_is_copied_where_the_remote_has_none(
    harness: EngineHarness,
) -> None:
    name = min(PUBLISHED)
    harness.home.put(config_map(name, data=OURS))
    await harness.start_running(uses=[f"cm/{name}"])
    assert (harness.config_map(name) or {})["data"] == OURS
    harness.home.put(config_map(name, data={"ca.crt": "rotated"}))
    await harness.settle()
    assert (harness.config_map(name) or {})["data"] == {"ca.crt": "rotated"}
