"""Waits until an installation serves its node, and says what keeps it from that.

It is done when all of the Deployment's pods are of its last form and ready, and the Node is Ready.
Each trouble is told once; so is what a bridge says that waits for a cluster. What will not pass by
itself ends the wait at once: a container that crashes again and again (with its last lines), an
image whose name is none. Everything else ends it after ``timeout`` seconds. What is installed stays
in either case. Pods that have crashed before are made anew first: what kept them may have been put
right, and home would try them ever more seldom.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bridge.base.errors import PreflightError
from bridge.clusters.retry import WAITING_SUFFIX
from bridge.install import names
from bridge.install.names import Installation
from sync.kube.client import KubeClient
from sync.kube.errors import KubeError, NotFound
from sync.kube.resources import DEPLOYMENTS, NODES, PODS
from translators.objects import (
    Object,
    condition_of,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)

#: Seconds between looks.
POLL_SECONDS = 1.0
#: Starts that have failed after which another will not help.
CRASHES = 2
#: Seconds for a container's log.
LOG_SECONDS = 5.0
#: Lines of a container's log that are shown.
LAST_LINES = 5
#: What no time heals.
_FINAL = frozenset({"InvalidImageName", "ErrImageNeverPull"})
#: Of a container that waits: nothing is wrong, or its end is told already.
_USUAL = (None, "ContainerCreating", "PodInitializing", "CrashLoopBackOff")
#: In a line of its log, for people or as JSON.
_AWAITED = re.compile(rf"\b((?:home|remote): .*){re.escape(WAITING_SUFFIX)}")
_PULL = "(is it in a registry that home's nodes reach? --image names another)"

Told = Callable[[str], None]


class Trouble(NamedTuple):
    """What keeps the bridge from serving."""

    line: str
    about: str
    """Tells one trouble from another: what has it is told once, however its words change."""

    @classmethod
    def saying(cls, line: str) -> Trouble:
        """One that is known by its words."""
        return cls(line, line)


async def wait_until_ready(
    home: KubeClient, wanted: Installation, *, timeout: float, notify: Told
) -> None:
    """Until it serves the node. Raises PreflightError with the reason where it does not."""
    watch = _Watch(home, wanted, notify)
    try:
        async with asyncio.timeout(timeout):
            await watch.start_anew()
            while not await watch.look():  # noqa: ASYNC110  # of another machine
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise PreflightError(
            f"home: node {wanted.node} is not Ready after {timeout:.0f} s: {watch.why}; see "
            f"`kubectl -n {wanted.namespace} describe pods -l {names.label_selector(wanted.node)}`"
        ) from None


class _Watch:
    """What was seen and told so far."""

    def __init__(self, home: KubeClient, wanted: Installation, told: Told) -> None:
        self._home = home
        self._wanted = wanted
        self._told = told
        self._said: set[str] = set()
        self.why = "home has not begun to make the pods"

    async def start_anew(self) -> None:
        """Deletes pods that wait since they have crashed; their Deployment makes others."""
        for name in self._wanted.deployment_names:
            _, pods, _ = await self._deployment(name)
            for pod in pods:
                if any(map(_has_crashed, _containers(pod))) and not is_deleting(pod):
                    await self._home.delete(
                        PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod)
                    )
                    self._told(f"home: pod {name_of(pod)} had ended again and again; made anew")

    async def look(self) -> bool:
        """Whether it is done. Raises PreflightError where it never will be."""
        lagging, troubles, pods = "", list[Trouble](), list[Object]()
        for name in self._wanted.deployment_names:
            why, its, troubled = await self._deployment(name)
            lagging, pods, troubles = lagging or why, pods + its, troubles + troubled
        if not lagging:
            lagging = await self._node()
        if not lagging:
            return True
        troubles = troubles or [Trouble.saying(lagging)]
        self.why = troubles[0].line
        for trouble in troubles:
            self._say(trouble)
        for pod in pods:
            _given_up(pod, self._wanted.node)
        return False

    async def _deployment(self, name: str) -> tuple[str, list[Object], list[Trouble]]:
        """Why not all is as it should be, "" where it is; its pods; and what ails them."""
        where = self._wanted.namespace
        deployment = await self._home.get(DEPLOYMENTS, name, namespace=where)
        its = names.format_selector(deployment["spec"]["selector"]["matchLabels"])
        page = await self._home.list(PODS, namespace=where, labels=its)
        pods = [it for it in page.items if _is_of(deployment, it)]
        troubles = [*_of_deployment(deployment), *(it for pod in pods for it in _of_pod(pod))]
        for pod in pods:
            troubles += await self._awaiting(pod)
        return _lagging(deployment), pods, troubles

    async def _awaiting(self, pod: Object) -> list[Trouble]:
        """The cluster that a bridge which runs and is not ready waits for, by its own words."""
        if is_deleting(pod) or not any(map(_runs_unready, _containers(pod))):
            return []
        path = PODS.path(name_of(pod), namespace=namespace_of(pod), subresource="log")
        try:
            last = await self._home.read(path, query={"tailLines": "1"}, timeout=LOG_SECONDS)
        except KubeError:
            return []  # It is no more than a hint, and takes a right of its own.
        found = _AWAITED.search(last.decode("utf-8", "replace"))
        about = f"pod {name_of(pod)} waits"
        return [Trouble(f"{about}: {found[1]}", about)] if found else []

    async def _node(self) -> str:
        """Why the Node is not Ready; "" where it is."""
        try:
            node = await self._home.get(NODES, self._wanted.node)
        except NotFound:
            return f"node {self._wanted.node} is not registered yet"
        ready = condition_of(node, "Ready")
        if ready.get("status") == "True":
            return ""
        return f"node {self._wanted.node} is not Ready: {ready.get('message') or 'no reason given'}"

    def _say(self, trouble: Trouble) -> None:
        if trouble.about not in self._said:
            self._said.add(trouble.about)
            self._told(f"home: {trouble.line}")


def _is_of(deployment: Object, pod: Object) -> bool:
    """Whether the pod is of the Deployment's last form. What ails those of before is being put
    right just now."""
    template = deployment["spec"]["template"]
    form = [
        (
            [(it["image"], it.get("args")) for it in one["spec"]["containers"]],
            (metadata(one).get("annotations") or {}).get(names.ANNOTATION_HASH),
        )
        for one in (template, pod)
    ]
    return form[0] == form[1]


def _given_up(pod: Object, node: str) -> None:
    """Raises PreflightError where another start will not help."""
    if is_deleting(pod):
        return
    for status in _containers(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _FINAL:
            raise PreflightError(f"home: {_waits(pod, status).line}")
        # The first time it is started again at once.
        starts = int(status.get("restartCount") or 0) + 1
        if _has_crashed(status) and starts >= CRASHES:
            raise PreflightError(
                f"home: pod {name_of(pod)} ends again and again: {_last(status)}; what is "
                "installed stays: put that right and join again, or `bridge leave --name "
                f"{node}`"
            )


def _has_crashed(status: Object) -> bool:
    """Whether the container waits since it has ended, and ended again."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    return waiting.get("reason") == "CrashLoopBackOff"


def _runs_unready(status: Object) -> bool:
    return "running" in (status.get("state") or {}) and not status.get("ready")


def _last(status: Object) -> str:
    """The last lines of a container that has ended; "" of one that has not."""
    for state in ("state", "lastState"):
        ended = (status.get(state) or {}).get("terminated")
        if ended:
            # By terminationMessagePolicy the end of the log, where it failed.
            lines = str(ended.get("message") or "").strip().splitlines()
            said = " | ".join(line.strip() for line in lines[-LAST_LINES:])
            return said or "it left no line; see `kubectl logs --previous`"
    return ""


def _lagging(deployment: Object) -> str:
    """Why not all pods are new and ready; "" where they are. As `kubectl rollout status`."""
    status, spec = deployment.get("status") or {}, deployment.get("spec") or {}
    wanted = int(spec.get("replicas") or 0)
    if int(status.get("observedGeneration") or 0) < int(metadata(deployment).get("generation", 0)):
        return "home has not begun to make the pods"
    updated, available = (
        int(status.get(it) or 0) for it in ("updatedReplicas", "availableReplicas")
    )
    if updated < wanted or available < wanted:
        return f"{min(updated, available)} of {wanted} pods of {name_of(deployment)} are ready"
    if int(status.get("replicas") or 0) > wanted:
        return "pods of before are ending"
    return ""


def _of_deployment(deployment: Object) -> Iterator[Trouble]:
    for condition in (deployment.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition.get("status") == "True":
            yield Trouble.saying(f"no pod can be made: {condition.get('message')}")


def _of_pod(pod: Object) -> Iterator[Trouble]:
    """What keeps it, in sentences."""
    if is_deleting(pod):
        return
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("status") == "False":
            yield Trouble.saying(f"pod {name_of(pod)} has no machine: {condition.get('message')}")
    for status in _containers(pod):
        if last := _last(status):
            yield Trouble.saying(f"pod {name_of(pod)} has ended: {last}")
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in _USUAL:
            yield _waits(pod, status)


def _waits(pod: Object, status: Object) -> Trouble:
    waiting = status["state"]["waiting"]
    reason, message = str(waiting.get("reason")), waiting.get("message") or ""
    if "Image" not in reason:
        return Trouble.saying(f"pod {name_of(pod)} waits: {reason}: {message}")
    # All pods have the same image, and each tries, fails, waits and tries again.
    image = status.get("image") or "of the bridge"
    return Trouble(f"image {image}: {reason}: {message} {_PULL}", f"image {image}")


def _containers(pod: Object) -> list[Object]:
    found: list[Object] = (pod.get("status") or {}).get("containerStatuses") or []
    return found
