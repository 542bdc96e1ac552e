"""The last states of deleted remote pods are kept within the memory for objects of the remote."""

from __future__ import annotations

import pytest

from sync.base import namespace_fair_cache
from sync.cache import cache_share
from sync.kube.api_resources import PODS
from sync.kube.response_limits import ResponseLimits
from sync.pods.last_states import LastStates
from tests.objects import pod
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import Object


def ended(name: str, size: int = 0) -> Object:
    """A remote pod with a text of this size."""
    status = {"phase": "Failed", "message": "x" * size}
    return {**pod(name), "status": status}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> ResponseLimits:
    """Of a megabyte."""
    monkeypatch.setattr(cache_share, "CACHE_LIMIT", 2**20)
    return ResponseLimits("remote")


def test_large_states_are_kept_as_stubs_within_the_memory(limits: ResponseLimits) -> None:
    states = LastStates(limits)
    for number in range(100):
        states.put(f"{number}", ended(f"a{number}", 50_000))
    assert limits.cached <= 2**20
    for number in range(100):
        assert (states.get(f"{number}") or {})["status"]["phase"] == "Failed"
        states.pop(f"{number}")
    assert limits.cached == 0


def test_evicted_state_frees_its_memory(
    limits: ResponseLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace_fair_cache, "entries_limit", lambda: 1)
    states = LastStates(limits)
    states.put("a", ended("a"))
    one = limits.cached
    states.put("b", ended("b"))
    assert states.get("a") is None
    assert limits.cached == one


async def test_states_of_pods_that_are_gone_are_forgotten(harness: EngineHarness) -> None:
    """The remote reports the last state, which may have any size."""
    await harness.start()
    limits = harness.engine.remote_pods.client.limits
    before = limits.cached
    for number in range(3):
        harness.pod(f"a{number}")
        await harness.settle()
        harness.report_running(f"a{number}")
        await harness.settle()
        harness.home.delete(PODS, f"a{number}", "default")
        await harness.settle()
        harness.remote.remove(PODS, f"a{number}", REMOTE_NAMESPACE)
        await harness.settle()
        assert harness.home.find(PODS, f"a{number}", "default") is None
    assert limits.cached <= before + 3000
