"""Takes a virtual node's pods off it as `kubectl drain` does.

- `plan` sorts the pods as kubectl's filters do: pods of DaemonSets and mirror pods stay, pods
  without a controller take ``force``, pods with emptyDir volumes ``delete_emptydir_data``. A pod
  that has finished takes neither. Where a pod takes an option that is not set, nothing is evicted.
- The pods are evicted at home, all at once. What may pass is tried again until ``timeout``: a
  PodDisruptionBudget or flow control (429), a server that fails (5xx) or is away, a conflict while
  the pod is still there, a namespace that is being deleted whose pod is not yet. A 500 is tried
  `ATTEMPTS` times: the API server also answers so to a pod that two budgets select.
- An eviction that is refused for good is an error of that pod. The other pods are evicted all the
  same, and the errors are reported together.
- An evicted pod is ended by whoever serves the node. Where nobody does, `Ending` does it: the
  remote pod with its own grace, then home's object. And the node's Lease is renewed meanwhile
  (without a holder: nobody serves the node), since home would else take the pods for lost, after
  40 seconds, and a budget keeps pods that are not Ready for ever.
- It ends after ``timeout`` seconds at the latest, with what is left named. Nothing is undone: the
  node stays cordoned, and draining again goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from bridge.base.errors import PreflightError
from bridge.node.lease import LEASE_NAMESPACE, RENEW_SECONDS
from sync.kube.client import KubeClient
from sync.kube.errors import (
    ApiServerCertificateError,
    Conflict,
    KubeError,
    NamespaceTerminating,
    NotFound,
    ServerError,
    Throttled,
    Unreachable,
)
from sync.kube.resources import LEASES, PODS
from translators.objects import (
    Object,
    controller_of,
    is_daemonset_pod,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.timestamps import format_micro_time

#: Seconds until an eviction that may pass later is tried again, at least, and at most where the
#: server asks for more.
RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 30.0
#: Attempts of a request that the server answers with 500.
MAX_SERVER_ERRORS = 5
#: Seconds between looks at evicted pods that are still ending.
POLL_SECONDS = 0.5
#: Pods that are named when not all could be evicted.
MAX_NAMED = 5
#: The annotation of a mirror pod (a kubelet's static pod), which no API call can end.
MIRROR = "kubernetes.io/config.mirror"

EndPod = Callable[[Object], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """Which pods are evicted, and how; the names and meanings are those of `kubectl drain`."""

    force: bool = False
    """Evict pods that no controller creates again, too."""
    delete_emptydir_data: bool = False
    """Evict pods with emptyDir volumes, whose data is lost."""
    ignore_daemonsets: bool = True
    """Leave pods of DaemonSets where they are, rather than refuse to drain."""
    grace_period: int | None = None
    """Seconds that pods have to end; None for each pod's own."""


#: A node that leaves keeps no pods: who agreed to that has agreed to all of them.
EVICT_ALL = DrainOptions(force=True, delete_emptydir_data=True)


@dataclass(slots=True)
class DrainPlan:
    """What a drain does with the pods of a node."""

    evict: list[Object] = field(default_factory=list)
    skipped: list[Object] = field(default_factory=list)
    """Pods of DaemonSets, and mirror pods."""
    blocking: dict[str, list[Object]] = field(default_factory=dict)
    """Pods that are in the way, by the reason, which names the option."""

    def check_unblocked(self, node: str) -> None:
        """Raises PreflightError where pods are in the way."""
        reasons = [f"{why}: {_names(map(_named, pods))}" for why, pods in self.blocking.items()]
        if reasons:
            raise PreflightError(
                f"home: node {node} cannot be drained, and no pod was evicted: {'; '.join(reasons)}"
            )


def plan_drain(
    pods: list[Object], options: DrainOptions, *, orphans: Collection[str] = ()
) -> DrainPlan:
    """Sorts the pods. ``orphans`` are the UIDs of pods whose DaemonSet is no more."""
    made = DrainPlan()
    for pod in pods:
        if is_daemonset_pod(pod) and not _is_finished(pod) and uid_of(pod) not in orphans:
            if options.ignore_daemonsets:
                made.skipped.append(pod)
            else:
                why = "DaemonSets make these pods again (--ignore-daemonsets leaves them)"
                made.blocking.setdefault(why, []).append(pod)
        elif MIRROR in (metadata(pod).get("annotations") or {}):
            made.skipped.append(pod)
        elif reasons := _reasons(pod, options, uid_of(pod) in orphans):
            for why in reasons:
                made.blocking.setdefault(why, []).append(pod)
        else:
            made.evict.append(pod)
    return made


def _reasons(pod: Object, options: DrainOptions, is_orphan: bool) -> list[str]:
    """Why the pod is in the way; none where it may be evicted."""
    if _is_finished(pod):
        return []
    reasons = []
    if is_orphan and not options.force:
        reasons.append("the DaemonSet of these pods is no more (--force evicts them)")
    if controller_of(pod) is None and not options.force:
        reasons.append("no controller makes these pods again (--force evicts them)")
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    if any("emptyDir" in it for it in volumes) and not options.delete_emptydir_data:
        reasons.append(
            "these pods have emptyDir volumes, whose data would be lost (--delete-emptydir-data "
            "evicts them)"
        )
    return reasons


async def evict_pods(
    home: KubeClient,
    pods: list[Object],
    *,
    end_pod: EndPod | None,
    timeout: float,
    report: Callable[[str], None],
    grace_period: int | None = None,
    alternative: str = "leave without --drain to delete them",
) -> None:
    """Evicts the pods and waits until they are gone. ``end`` ends an evicted pod; None where a
    bridge does. Raises PreflightError when time is up or pods cannot be evicted, which says what
    one can do ``instead`` of draining again."""
    drained = _Drain(home, pods, end=end_pod, told=report, grace_period=grace_period)
    try:
        async with asyncio.timeout(timeout):
            await drained.run()
    except TimeoutError:
        why = f"{drained.left} after {timeout:.0f} s"
        again = "Drain again to go on (longer with --timeout)"
    else:
        if not drained.failed:
            return
        why, again = drained.left, "Drain again to go on"
    raise PreflightError(
        f"home: {why}; the node stays cordoned and the rest is as it was. {again}, or {alternative}"
    )


class _Drain:
    def __init__(
        self,
        home: KubeClient,
        pods: list[Object],
        *,
        end: EndPod | None,
        told: Callable[[str], None],
        grace_period: int | None,
    ) -> None:
        self._home = home
        self._pods = pods
        self._end = end
        self._told = told
        self._grace_period = grace_period
        self._gone = 0
        # Why those that are kept are kept, by namespace/name.
        self._kept: dict[str, str] = {}
        self._evicted: set[str] = set()
        self.failed: dict[str, str] = {}
        """Why those that cannot be evicted cannot, by namespace/name."""

    @property
    def left(self) -> str:
        """What is not done, as the beginning of a sentence."""
        parts = []
        if self.failed:
            whys = [f"{name}: {why}" for name, why in self.failed.items()]
            parts.append(f"{len(whys)} pod(s) could not be evicted ({_names(whys, '; ')})")
        if self._kept:
            why = next(iter(self._kept.values()))
            parts.append(f"{len(self._kept)} pod(s) are kept ({_names(self._kept)}: {why})")
        if self._evicted:
            parts.append(f"{len(self._evicted)} still end")
        return " and ".join(parts)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for pod in self._pods:
                group.create_task(self._take_off(pod), name=f"drain {_named(pod)}")

    async def _take_off(self, pod: Object) -> None:
        name = _named(pod)
        try:
            await self._evict(name, pod)
            self._kept.pop(name, None)
            self._evicted.add(name)
            if self._end is not None:
                end = self._end
                await self._persist(name, lambda: end(pod))
            await self._until_gone(name, pod)
        except KubeError as error:
            self.failed[name] = error.message
            self._told(f"home: pod {name} could not be evicted: {error.message}")
        else:
            self._gone += 1
            self._told(f"home: {self._gone} of {len(self._pods)} pod(s) are off the node")
        # Where time is up instead, both name what is left.
        self._kept.pop(name, None)
        self._evicted.discard(name)

    async def _until_gone(self, name: str, pod: Object) -> None:
        while await self._now(name, pod) is not None:  # noqa: ASYNC110  # of another machine
            await asyncio.sleep(POLL_SECONDS)

    async def _evict(self, name: str, pod: Object) -> None:
        """Until it is accepted, or the pod is gone or goes with its namespace. Raises KubeError."""
        options: Object = {"preconditions": {"uid": uid_of(pod)}}
        if self._grace_period is not None:
            options["gracePeriodSeconds"] = self._grace_period
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)},
            "deleteOptions": options,
        }
        path = PODS.path(name_of(pod), namespace=namespace_of(pod), subresource="eviction")
        while True:
            try:
                await self._persist(
                    name,
                    lambda: self._home.request("POST", path, body=body, retry_on_throttle=False),
                )
            except (NotFound, Conflict, NamespaceTerminating) as error:
                # Admission answers with 404 and 409 too: only a GET shows that the pod is gone.
                now = await self._now(name, pod)
                if now is None or (isinstance(error, NamespaceTerminating) and is_deleting(now)):
                    return
                self._keep(name, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _persist(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Makes the request until it is answered with something else than what may pass. Raises
        KubeError."""
        failed = 0
        while True:
            try:
                return await request()
            except (Throttled, Unreachable, ServerError) as error:
                failed += isinstance(error, ServerError) and error.code == 500
                if isinstance(error, ApiServerCertificateError) or failed >= MAX_SERVER_ERRORS:
                    raise
                self._keep(name, error)
                asked = getattr(error, "retry_after", None) or 0.0
            await asyncio.sleep(min(max(RETRY_SECONDS, asked), MAX_RETRY_SECONDS))

    def _keep(self, name: str, error: KubeError) -> None:
        if name not in self._kept:
            self._told(f"home: pod {name} is kept for now: {error.message}")
        self._kept[name] = error.message

    async def _now(self, name: str, pod: Object) -> Object | None:
        """The pod as it is; None where it is gone, also where another one has its name."""
        try:
            found = await self._persist(
                name, lambda: self._home.get(PODS, name_of(pod), namespace=namespace_of(pod))
            )
        except NotFound:
            return None
        return found if uid_of(found) == uid_of(pod) else None


@asynccontextmanager
async def renew_lease(home: KubeClient, lease: Object | None) -> AsyncIterator[None]:
    """Renews the node's Lease while nobody serves the node, so that home goes on to believe what
    it knows of its pods. Best effort."""
    if lease is None:
        yield
        return

    async def beat() -> None:
        while True:
            renewed = format_micro_time(datetime.now(UTC))
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


def _is_finished(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _named(pod: Object) -> str:
    return f"{namespace_of(pod)}/{name_of(pod)}"


def _names(names: Iterable[str], between: str = ", ") -> str:
    """The first of them, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return between.join(found[:MAX_NAMED]) + more
