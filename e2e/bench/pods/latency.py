"""The steps in the life of one pod at a time, with the bridge and without.

Steps, in milliseconds: ``exists``: from home's response to the pod's existence in the remote;
``running``: from Running in the remote to Running at home; ``create_to_running``: both clusters;
``gone``: from the deletion request to the deletion; ``gone_added``: the median of that, less the
median of the same round's pods without a bridge.

The minimal bridge copies nothing: referenced objects exist in the remote before. So the bridge is
measured twice: ``bridge``, with other pods there that use the same ConfigMaps and Secrets, so that
it has no more to do than the minimal bridge; and ``bridge_copying``, where each pod has its own
ConfigMap and Secret, which must be copied first.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from e2e.bench.pods import load_targets
from e2e.bench.pods.benchmark_client import BenchmarkClient
from e2e.bench.pods.load_targets import ClusterPair, Say
from e2e.bench.pods.pod_load import Crowd, PodsLost, Shape
from e2e.bench.report import Report, percentile

#: Maximum seconds of one step of one pod.
PATIENCE = 30.0
#: Seconds between two pods, so that each finds an idle bridge.
PAUSE = 0.05

#: ConfigMaps and Secrets that pods without their own use in turn.
REFERENCES = 10

Moments = dict[str, float]
Steps = dict[str, float]


@dataclass(frozen=True, slots=True)
class Variant:
    """One load target, and the number of other pods that run meanwhile."""

    way: str
    keepers: int = 0
    own: bool = False
    """Whether each pod has its own ConfigMap and Secret."""


VARIANTS: Mapping[str, Variant] = {
    load_targets.DIRECT: Variant(load_targets.DIRECT),
    load_targets.LEAST: Variant(load_targets.LEAST),
    load_targets.BRIDGE: Variant(load_targets.BRIDGE, keepers=REFERENCES),
    "bridge_copying": Variant(load_targets.BRIDGE, keepers=1, own=True),
}


class PodStateWatch:
    """Records when the pods of a namespace reached each state in one cluster, by a watch."""

    def __init__(self, api: BenchmarkClient) -> None:
        self._api = api
        self.moments: defaultdict[str, Moments] = defaultdict(dict)
        """Pod → state → the loop's time: exists, running, gone."""
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def watching(self, prefix: str) -> AsyncIterator[None]:
        """Watches pods of namespaces with this prefix."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._watch(prefix))
            try:
                yield
            finally:
                task.cancel()

    async def when(self, pod: str, state: str) -> float:
        """Waits until the pod is in this state; the time of that. Raises PodsLost."""
        try:
            async with asyncio.timeout(PATIENCE):
                while state not in self.moments[pod]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise PodsLost(f"{pod} was not seen to be {state} in {PATIENCE:.0f} s") from None
        return self.moments[pod][state]

    async def _watch(self, prefix: str) -> None:
        async for event in self._api.watch("/api/v1/pods", {}):
            now = time.perf_counter()
            if event["object"]["metadata"]["namespace"].startswith(prefix):
                self._saw(event, now)

    def _saw(self, event: dict[str, Any], now: float) -> None:
        pod = event["object"]
        moments = self.moments[pod["metadata"]["name"]]
        moments.setdefault("exists", now)
        if pod["status"].get("phase") == "Running":
            moments.setdefault("running", now)
        if event["type"] == "DELETED":
            moments.setdefault("gone", now)
        self._changed.set()


async def measure(pair: ClusterPair, *, pods: int, rounds: int, say: Say) -> Report:
    """p50 and p99 of each step, for each variant."""
    taken: dict[str, list[list[Steps]]] = {name: [] for name in VARIANTS}
    for number in range(rounds):
        for name, variant in VARIANTS.items():
            say(f"round {number + 1} of {rounds}: {name}, {pods} pods, one at a time")
            taken[name].append(await _steps(variant, pair, pods))
            await asyncio.sleep(load_targets.REST)
    return report(pods, taken)


def report(pods: int, taken: Mapping[str, Sequence[Sequence[Steps]]]) -> Report:
    """The figures of each variant, a value per round over all its pods."""
    made = Report("latency", {"pods": pods})
    for name, rounds in taken.items():
        for step in next(iter(rounds))[0]:
            for percent in (50, 99):
                values = [percentile((one[step] for one in steps), percent) for steps in rounds]
                made.add(f"{name}.{step}_p{percent}_ms", "ms", [value * 1000 for value in values])
    direct = made.figures[f"{load_targets.DIRECT}.gone_p50_ms"].rounds
    for name in taken:
        mine = made.figures[f"{name}.gone_p50_ms"].rounds
        added = [one - other for one, other in zip(mine, direct, strict=True)]
        if name != load_targets.DIRECT:
            made.add(f"{name}.gone_added_p50_ms", "ms", added)
    _add_of_least(made)
    return made


def _add_of_least(made: Report) -> None:
    """The steps that have a target, relative to the minimal bridge's in the same round."""
    for step in ("exists", "running", "gone_added"):
        ours, least = (
            made.figures[f"{way}.{step}_p50_ms"].rounds
            for way in (load_targets.BRIDGE, load_targets.LEAST)
        )
        times = [one / other if other > 0 else None for one, other in zip(ours, least, strict=True)]
        made.add(f"{load_targets.BRIDGE}.{step}_p50_of_least", "x", times)


async def _steps(variant: Variant, pair: ClusterPair, pods: int) -> list[Steps]:
    # The keepers, a first pod that is not counted, and the measured ones.
    numbers = range(variant.keepers, variant.keepers + pods + 1)
    references = numbers.stop if variant.own else REFERENCES
    shape = Shape(pods=pods, references=references, secrets=references)
    async with AsyncExitStack() as stack:
        _, crowd = await stack.enter_async_context(load_targets.running(variant.way, pair, shape))
        made_in = PodStateWatch(
            pair.in_remote if variant.way == load_targets.DIRECT else pair.at_home
        )
        runs_in = made_in if variant.way == load_targets.DIRECT else PodStateWatch(pair.in_remote)
        for witness in dict.fromkeys((made_in, runs_in)):
            await stack.enter_async_context(witness.watching(crowd.namespaces[0]))
        await asyncio.sleep(load_targets.REST)
        for number in range(variant.keepers):
            await crowd.create(number)
            await made_in.when(f"pod-{number}", "running")
        # The first pod of a namespace also causes the namespace and fills its caches.
        steps = [await _one(number, crowd, made_in, runs_in) for number in numbers]
        for number in range(variant.keepers):
            await crowd.delete_one(number)
            await made_in.when(f"pod-{number}", "gone")
        return steps[1:]


async def _one(number: int, crowd: Crowd, made_in: PodStateWatch, runs_in: PodStateWatch) -> Steps:
    pod = f"pod-{number}"
    await asyncio.sleep(PAUSE)
    begin = time.perf_counter()
    await crowd.create(number)
    answered = time.perf_counter()
    exists = await runs_in.when(pod, "exists")
    ran, running = await runs_in.when(pod, "running"), await made_in.when(pod, "running")
    await asyncio.sleep(PAUSE)
    requested = time.perf_counter()
    await crowd.delete_one(number)
    gone = await made_in.when(pod, "gone")
    return {
        "exists": exists - answered,
        "running": running - ran,
        "create_to_running": running - begin,
        "gone": gone - requested,
    }
