"""Takes a virtual node's pods off it as `kubectl drain` does, before the node leaves.

- The pods are evicted at home, all at once; one that a PodDisruptionBudget keeps is asked about
  again every `RETRY` seconds. So controllers have made as many others elsewhere as the budget wants
  before the next one goes.
- Pods of DaemonSets are left alone: their controller would make them again on this node.
- An evicted pod is ended by whoever serves the node. Where nobody does, `Ending` does it: the
  remote pod with its own grace, then home's object. And the node's Lease is renewed meanwhile
  (without a holder: nobody serves the node), since home would else take the pods for lost, after
  40 seconds, and a budget keeps pods that are not Ready for ever.
- It ends after ``timeout`` seconds at the latest, with what is left named. Nothing is undone: the
  node stays cordoned, and draining again goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime

from bridge.node.lease import LEASE_NAMESPACE, RENEW_SECONDS
from bridge.preflight.checks import PreflightError
from sync.kube.client import KubeClient
from sync.kube.errors import Conflict, KubeError, NotFound, Throttled
from sync.kube.resources import LEASES, PODS
from translators.types import Object, metadata, name_of, namespace_of, uid_of

#: Seconds until a pod that a PodDisruptionBudget keeps is asked about again.
RETRY = 2.0
#: Seconds between looks at evicted pods that are still ending.
POLL = 0.5
#: Pods that are named when not all could be evicted.
NAMED = 5

Ending = Callable[[Object], Awaitable[None]]


def is_daemon(pod: Object) -> bool:
    """Whether a DaemonSet made the pod."""
    owners = metadata(pod).get("ownerReferences") or ()
    return any(owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in owners)


async def drain(
    home: KubeClient,
    pods: list[Object],
    *,
    end: Ending | None,
    timeout: float,
    told: Callable[[str], None],
    instead: str = "leave without --drain to delete them",
) -> None:
    """Evicts the pods and waits until they are gone. ``end`` ends an evicted pod; None where a
    bridge does. Raises PreflightError when time is up, which says what one can do ``instead`` of
    draining again, and KubeError."""
    drained = _Drain(home, [pod for pod in pods if not is_daemon(pod)], end=end, told=told)
    try:
        async with asyncio.timeout(timeout):
            await drained.run()
    except TimeoutError:
        raise PreflightError(
            f"home: {drained.left} after {timeout:.0f} s; the node stays cordoned and the rest is "
            f"as it was. Drain again to go on (longer with --timeout), or {instead}"
        ) from None


class _Drain:
    def __init__(
        self,
        home: KubeClient,
        pods: list[Object],
        *,
        end: Ending | None,
        told: Callable[[str], None],
    ) -> None:
        self._home = home
        self._pods = pods
        self._end = end
        self._told = told
        self._gone = 0
        # Why those that are kept are kept, by namespace/name.
        self._kept: dict[str, str] = {}
        self._evicted: set[str] = set()

    @property
    def left(self) -> str:
        """What is not done yet, as the beginning of a sentence."""
        kept = list(self._kept)[:NAMED]
        more = f" and {len(self._kept) - NAMED} more" if len(self._kept) > NAMED else ""
        why = next(iter(self._kept.values()), "")
        parts = [f"{len(self._kept)} pod(s) are kept ({', '.join(kept)}{more}: {why})"]
        ending = len(self._evicted)
        return " and ".join((parts if kept else []) + ([f"{ending} still end"] if ending else []))

    async def run(self) -> None:
        with _one_error():
            async with asyncio.TaskGroup() as group:
                for pod in self._pods:
                    name = f"{namespace_of(pod)}/{name_of(pod)}"
                    group.create_task(self._take_off(name, pod), name=f"drain {name}")

    async def _take_off(self, name: str, pod: Object) -> None:
        await self._evict(name, pod)
        self._kept.pop(name, None)
        self._evicted.add(name)
        if self._end is not None:
            await self._end(pod)
        await self._until_gone(pod)
        self._evicted.discard(name)
        self._gone += 1
        self._told(f"home: {self._gone} of {len(self._pods)} pod(s) are off the node")

    async def _evict(self, name: str, pod: Object) -> None:
        """Until it is accepted, or the pod is gone. Raises KubeError."""
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)},
            "deleteOptions": {"preconditions": {"uid": uid_of(pod)}},
        }
        path = PODS.path(name_of(pod), namespace=namespace_of(pod), subresource="eviction")
        while True:
            try:
                await self._home.request("POST", path, body=body, patient=False)
            except (NotFound, Conflict):
                return  # Gone, or another by now.
            except Throttled as error:
                if name not in self._kept:
                    self._told(f"home: pod {name} is kept for now: {error.message}")
                self._kept[name] = error.message
                await asyncio.sleep(RETRY)
            else:
                return

    async def _until_gone(self, pod: Object) -> None:
        while True:
            try:
                found = await self._home.get(PODS, name_of(pod), namespace=namespace_of(pod))
            except NotFound:
                return
            if uid_of(found) != uid_of(pod):
                return
            await asyncio.sleep(POLL)


@asynccontextmanager
async def heartbeat(home: KubeClient, lease: Object | None) -> AsyncIterator[None]:
    """Renews the node's Lease while nobody serves the node, so that home goes on to believe what
    it knows of its pods. Best effort."""
    if lease is None:
        yield
        return

    async def beat() -> None:
        while True:
            renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            # A holder that has died would count as alive again.
            spec = {"holderIdentity": None, "renewTime": renewed}
            patch: Object = {"metadata": {"uid": uid_of(lease)}, "spec": spec}
            with suppress(KubeError):
                await home.patch(LEASES, name_of(lease), patch, namespace=LEASE_NAMESPACE)
            await asyncio.sleep(RENEW_SECONDS)

    task = asyncio.create_task(beat(), name="drain-lease")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _one_error() -> Iterator[None]:
    """Of what several pods failed with, the first."""
    try:
        yield
    except BaseExceptionGroup as group:
        expected = group.subgroup((KubeError, PreflightError))
        if expected is None:
            raise
        error: BaseException = expected
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
