"""Evicts pods of a virtual node concurrently, and waits until they are deleted.

- Evictions go to home's API server and are retried until ``timeout`` on transient errors: a
  PodDisruptionBudget or flow control (429), a failing (5xx) or unreachable server, a conflict while
  the pod still exists, a terminating namespace whose pod is not yet terminating. A 500 is retried
  `MAX_SERVER_ERRORS` times only: the API server also returns it for a pod that two budgets select.
- A permanently rejected eviction is an error of that pod. The other pods are evicted regardless,
  and the errors are reported together.
- The bridge that serves the node terminates evicted pods. If none does, the caller passes `EndPod`,
  which deletes the remote pod with its grace period and then home's pod, and holds `renew_lease`:
  otherwise home's node lifecycle controller marks the pods not Ready after 40 seconds, and their
  budget then blocks them indefinitely.
- `evict_pods` ends after ``timeout`` seconds at the latest, with an error that names the remaining
  pods. It reverts nothing: the node stays cordoned, and leaving again continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from bridge.base.command_error import PreflightError
from bridge.base.printable_text import summarize_names
from bridge.base.progress_lines import Caveat, Waiting
from bridge.clusters.connection import Notify
from bridge.node.node_lease import LEASE_NAMESPACE, RENEW_SECONDS
from sync.base.background_task import background_task
from sync.kube.api_errors import (
    ApiServerCertificateError,
    Conflict,
    KubeError,
    NamespaceTerminating,
    NotFound,
    ServerError,
    Throttled,
    Unreachable,
)
from sync.kube.api_resources import LEASES, PODS
from sync.kube.client import KubeClient
from translators.object_accessors import (
    Object,
    is_daemonset_pod,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    namespaced_name,
    uid_of,
)
from translators.pods import pod_status
from translators.timestamps import format_micro_time

#: Seconds before a retry: the minimum, and the maximum of the server's Retry-After.
RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 30.0
#: Attempts of a request that the server answers with 500.
MAX_SERVER_ERRORS = 5
#: Seconds between checks of evicted pods that are still terminating.
POLL_SECONDS = 0.5

#: The annotation of a mirror pod (a kubelet's static pod), which no API call can delete.
MIRROR = "kubernetes.io/config.mirror"

EndPod = Callable[[Object], Awaitable[None]]
T = TypeVar("T")


def evictable_pods(pods: list[Object]) -> list[Object]:
    """The pods that `kubectl drain --force --delete-emptydir-data --ignore-daemonsets` evicts: all
    but mirror pods and unfinished pods of DaemonSets."""
    return [
        pod
        for pod in pods
        if MIRROR not in (metadata(pod).get("annotations") or {})
        and (not is_daemonset_pod(pod) or pod_status.is_terminal(pod))
    ]


async def evict_pods(
    home: KubeClient,
    pods: list[Object],
    *,
    end_pod: EndPod | None,
    timeout: float,
    notify: Notify,
) -> None:
    """Evicts the pods and waits until they are deleted. ``end_pod`` terminates an evicted pod; None
    if a bridge does. Raises PreflightError on timeout or if pods cannot be evicted."""
    eviction = _Eviction(home, pods, end_pod, notify)
    try:
        async with asyncio.timeout(timeout):
            await eviction.run()
    except TimeoutError:
        cause = f"{eviction.remaining} after {timeout:.0f} s"
        retry = "Leave again to continue (longer with --timeout)"
    else:
        if not eviction.failed:
            return
        cause, retry = eviction.remaining, "Leave again to continue"
    raise PreflightError(
        f"home: {cause}; the node stays cordoned and nothing else was changed. {retry}, or "
        "without --drain to delete them"
    )


@dataclass(slots=True)
class _Eviction:
    home: KubeClient
    pods: list[Object]
    end_pod: EndPod | None
    notify: Notify
    done: int = 0
    blocked: dict[str, str] = field(default_factory=dict)
    """The last transient error of each pod that is not evicted yet, by namespace/name."""
    terminating: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """The permanent error of each pod that cannot be evicted, by namespace/name."""

    @property
    def remaining(self) -> str:
        """The pods that are not deleted yet, as the beginning of a sentence."""
        parts = []
        if self.failed:
            errors = [f"{name}: {error}" for name, error in self.failed.items()]
            summary = summarize_names(errors, separator="; ")
            parts.append(f"{len(errors)} pod(s) could not be evicted ({summary})")
        if self.blocked:
            error = next(iter(self.blocked.values()))
            names = summarize_names(self.blocked)
            parts.append(f"{len(self.blocked)} pod(s) are still blocked ({names}: {error})")
        if self.terminating:
            parts.append(f"{len(self.terminating)} pod(s) are still terminating")
        return " and ".join(parts)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for pod in self.pods:
                group.create_task(self._evict_and_wait(pod), name=f"drain {namespaced_name(pod)}")

    async def _evict_and_wait(self, pod: Object) -> None:
        name = namespaced_name(pod)
        try:
            await self._evict(name, pod)
            self.blocked.pop(name, None)
            self.terminating.add(name)
            if (end_pod := self.end_pod) is not None:
                await self._retry(name, lambda: end_pod(pod))
            while await self._current(name, pod) is not None:  # noqa: ASYNC110  # in home
                await asyncio.sleep(POLL_SECONDS)
        except KubeError as error:
            self.failed[name] = error.message
            self.notify(Caveat(f"home: pod {name} could not be evicted: {error.message}"))
        else:
            self.done += 1
            self.notify(f"home: {self.done} of {len(self.pods)} pod(s) evicted")
        # On timeout the task is cancelled before this, and `remaining` reports both.
        self.blocked.pop(name, None)
        self.terminating.discard(name)

    async def _evict(self, name: str, pod: Object) -> None:
        """Returns when the eviction is accepted, the pod is deleted, or the pod terminates with its
        namespace. Raises KubeError."""
        body: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod)},
            "deleteOptions": {"preconditions": {"uid": uid_of(pod)}},
        }
        path = PODS.path(name_of(pod), namespace=namespace_of(pod), subresource="eviction")
        while True:
            try:
                await self._retry(
                    name,
                    lambda: self.home.request("POST", path, body=body, retry_on_throttle=False),
                )
            except (NotFound, Conflict, NamespaceTerminating) as error:
                # Admission webhooks also answer 404 and 409: only a GET proves the deletion.
                current = await self._current(name, pod)
                in_terminating = isinstance(error, NamespaceTerminating)
                if current is None or (in_terminating and is_deleting(current)):
                    return
                self._note_blocked(name, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _retry(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Repeats the request on transient errors. Raises KubeError for all others."""
        server_errors = 0
        while True:
            try:
                return await request()
            except (Throttled, Unreachable, ServerError) as error:
                server_errors += isinstance(error, ServerError) and error.code == 500
                is_permanent = isinstance(error, ApiServerCertificateError)
                if is_permanent or server_errors >= MAX_SERVER_ERRORS:
                    raise
                self._note_blocked(name, error)
                retry_after = getattr(error, "retry_after", None) or 0.0
            await asyncio.sleep(min(max(RETRY_SECONDS, retry_after), MAX_RETRY_SECONDS))

    def _note_blocked(self, name: str, error: KubeError) -> None:
        if name not in self.blocked:
            self.notify(Waiting(f"home: pod {name} cannot be evicted yet: {error.message}"))
        self.blocked[name] = error.message

    async def _current(self, name: str, pod: Object) -> Object | None:
        """The pod's current state; None if it is deleted, even if another pod has its name."""
        current = await self._retry(
            name, lambda: self.home.find(PODS, name_of(pod), namespace=namespace_of(pod))
        )
        return current if current is not None and uid_of(current) == uid_of(pod) else None


@asynccontextmanager
async def renew_lease(home: KubeClient, lease: Object | None) -> AsyncIterator[None]:
    """Renews the node's Lease without a holder while the block runs, so that home keeps the pods'
    last status although no bridge serves the node. Errors are ignored."""
    if lease is None:
        yield
        return

    async def renew() -> None:
        while True:
            now = format_micro_time(datetime.now(UTC))
            # A renewed holder would make a crashed bridge appear to be running.
            spec = {"holderIdentity": None, "renewTime": now}
            patch: Object = {"metadata": {"uid": uid_of(lease)}, "spec": spec}
            with suppress(KubeError):
                await home.patch(LEASES, name_of(lease), patch, namespace=LEASE_NAMESPACE)
            await asyncio.sleep(RENEW_SECONDS)

    async with background_task(renew(), name="drain-lease"):
        yield
