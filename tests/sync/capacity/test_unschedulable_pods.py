"""Detection of pods that wait for a remote node for long; time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from sync.cache.informer import Informer
from sync.capacity.unschedulable_pods import GRACE, LINGER, UnschedulablePods
from tests.sync.pod_states import IDENTITY, remote
from tests.virtual_time_loop import run_virtual
from translators.object_accessors import Object

_Handler = Callable[[Object | None, Object | None], None]


class _Pods:
    """Stands in for the informer of remote pods."""

    def __init__(self) -> None:
        self.synced = asyncio.Event()
        self.tell: _Handler = lambda old, new: None

    def on_change(self, handler: _Handler) -> None:
        self.tell = handler


class Following:
    """An `UnschedulablePods` and all its notifications."""

    def __init__(self, *, synced: bool = True, timeout: float = 60.0) -> None:
        self.pods = _Pods()
        if synced:
            self.pods.synced.set()
        self.unplaced = UnschedulablePods(cast("Informer", self.pods), IDENTITY, timeout=timeout)
        self.told = 0
        self.unplaced.on_change(self._count)

    def _count(self) -> None:
        self.told += 1

    def waits(self, name: str = "a") -> None:
        """The scheduler finds no node for the pod."""
        self.pods.tell(None, _named(name, waits=True))

    def placed(self, name: str = "a") -> None:
        """The scheduler binds the pod."""
        self.pods.tell(_named(name, waits=True), _named(name, waits=False))

    def goes(self, name: str = "a") -> None:
        """The pod is deleted."""
        self.pods.tell(_named(name, waits=True), None)


def _named(name: str, *, waits: bool) -> Object:
    pod = remote(phase="Pending", waits=waits)
    return {**pod, "metadata": {**pod["metadata"], "name": name}}


def test_short_wait_does_not_count() -> None:
    async def main() -> None:
        following = Following()
        assert following.unplaced.waiting() == (False, None)
        following.waits()
        assert following.unplaced.waiting() == (False, GRACE)
        await asyncio.sleep(GRACE / 2)
        following.placed()
        assert following.unplaced.waiting() == (False, None)
        assert following.told == 2

    run_virtual(main)


@pytest.mark.parametrize("end", [Following.placed, Following.goes], ids=["placed", "gone"])
def test_long_wait_counts_and_lingers(end: Callable[[Following], None]) -> None:
    async def main() -> None:
        following = Following()
        following.waits()
        await asyncio.sleep(GRACE)
        assert following.unplaced.waiting() == (True, None)
        end(following)
        assert following.unplaced.waiting() == (True, LINGER)
        await asyncio.sleep(LINGER)
        assert following.unplaced.waiting() == (False, None)

    run_virtual(main)


def test_pod_counts_before_a_short_timeout_gives_it_up() -> None:
    """Otherwise its replacement would come to the same virtual node, again and again."""

    async def main() -> None:
        following = Following(timeout=2.0)
        following.waits()
        await asyncio.sleep(1.5)
        assert following.unplaced.waiting() == (True, None)
        await asyncio.sleep(0.5)
        following.goes()
        assert following.unplaced.waiting() == (True, LINGER)

    run_virtual(main)


def test_handlers_are_called_for_the_first_and_last_waiting_pod() -> None:
    async def main() -> None:
        following = Following()
        for name in "abc":
            following.waits(name)
            following.waits(name)
        assert following.told == 1
        await asyncio.sleep(GRACE)
        following.placed("a")
        following.goes("b")
        assert following.unplaced.waiting() == (True, None)
        assert following.told == 1
        following.placed("c")
        assert following.told == 2

    run_virtual(main)


def test_a_pod_that_waits_at_the_start_has_waited_before() -> None:
    async def main() -> None:
        following = Following(synced=False)
        following.waits()
        assert following.unplaced.waiting() == (True, None)

    run_virtual(main)


def test_pods_of_other_virtual_nodes_do_not_count() -> None:
    async def main() -> None:
        following = Following()
        other = _named("a", waits=True)
        other["metadata"]["labels"] = {
            **other["metadata"]["labels"],
            "cluster-bridge.io/node": "other",
        }
        following.pods.tell(None, other)
        assert following.unplaced.waiting() == (False, None)

    run_virtual(main)
