"""Waits until an installation serves its node, and reports what prevents it.

Done when all pods of the Deployments are updated and available, and the Node is Ready. Each problem
is reported once, including a cluster or an approval that a running bridge waits for. Permanent
problems end the wait at once: a container in a crash loop (with its last log lines), an invalid
image name. Everything else ends after ``timeout`` seconds. The installation stays in either case.

Pods that already are in a crash loop are deleted first: the cause may have been fixed, and the
kubelet's back-off would delay the next start for minutes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Waiting
from bridge.certificates.signing_outcome import WAITING_FOR_APPROVAL
from bridge.clusters.connection import Notify
from bridge.clusters.wait_for_clusters import WAITING_SUFFIX
from bridge.install.installation import (
    ANNOTATION_HASH,
    Installation,
    format_selector,
    label_selector,
)
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import DEPLOYMENTS, NODES, PODS
from sync.kube.client import KubeClient
from translators.object_accessors import (
    Object,
    condition_of,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)

#: Seconds between checks.
POLL_SECONDS = 1.0
#: Failed starts after which another start will not help.
MAX_STARTS = 2
#: Timeout of reading a container's log, in seconds.
LOG_SECONDS = 5.0
#: Lines of a container's log that are shown.
MAX_LOG_LINES = 5
#: Reasons of a waiting container that do not resolve themselves.
_PERMANENT_REASONS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
#: Reasons of a waiting container that are no problem, or reported as a crash.
_EXPECTED_REASONS = (None, "ContainerCreating", "PodInitializing", "CrashLoopBackOff")
#: A line of a bridge's log, as text or JSON, that names the cluster or the approval it waits for.
_WAITING_LINE = re.compile(
    rf"\b((?:home|remote): .*){re.escape(WAITING_SUFFIX)}|\b(home: {WAITING_FOR_APPROVAL} [^\"]*)"
)
_IMAGE_HINT = "(is it in a registry that home's nodes reach? --image names another)"
_NOT_STARTED = "home has not begun to create the pods"


class Problem(NamedTuple):
    """Something that prevents the bridge from serving."""

    message: str
    key: str = ""
    """Identifies a problem whose message can change: it is reported once."""


async def wait_until_ready(
    home: KubeClient,
    installation: Installation,
    *,
    timeout: float,
    notify: Notify,
    meanwhile: Callable[[], Awaitable[None]],
) -> None:
    """Returns when the installation serves its node; calls ``meanwhile`` before each check. Raises
    PreflightError with the cause if it does not."""
    rollout = _Rollout(home, installation, notify)
    try:
        async with asyncio.timeout(timeout):
            await rollout.restart_crashed_pods()
            await meanwhile()
            while not await rollout.check():
                await asyncio.sleep(POLL_SECONDS)
                await meanwhile()
    except TimeoutError:
        node, selector = installation.node, label_selector(installation.node)
        raise PreflightError(
            f"home: node {node} is not Ready after {timeout:.0f} s: {rollout.cause}; see "
            f"`kubectl -n {installation.namespace} describe pods -l {selector}`"
        ) from None


class _Rollout:
    """Checks an installation, and remembers what was reported."""

    def __init__(self, home: KubeClient, installation: Installation, notify: Notify) -> None:
        self._home = home
        self._installation = installation
        self._notify = notify
        self._reported: set[str] = set()
        self.cause = _NOT_STARTED

    async def restart_crashed_pods(self) -> None:
        """Deletes pods in a crash loop, so that their Deployment replaces them."""
        for name in self._installation.deployment_names:
            _, pods, _ = await self._check_deployment(name)
            for pod in pods:
                if any(map(_is_crash_looping, _container_statuses(pod))) and not is_deleting(pod):
                    await self._home.delete(
                        PODS, name_of(pod), namespace=namespace_of(pod), uid=uid_of(pod)
                    )
                    self._notify(
                        Waiting(f"home: pod {name_of(pod)} was in a crash loop; replacing it")
                    )

    async def check(self) -> bool:
        """Whether the rollout is done. Raises PreflightError if it never will be."""
        pending, problems, pods = "", list[Problem](), list[Object]()
        for name in self._installation.deployment_names:
            cause, its_pods, its_problems = await self._check_deployment(name)
            pending, pods, problems = pending or cause, pods + its_pods, problems + its_problems
        pending = pending or await self._check_node()
        if not pending:
            return True
        problems = problems or [Problem(pending)]
        self.cause = problems[0].message
        for problem in problems:
            if (key := problem.key or problem.message) not in self._reported:
                self._reported.add(key)
                self._notify(Waiting(f"home: {problem.message}"))
        for pod in pods:
            _raise_if_permanent(pod, self._installation.node)
        return False

    async def _check_deployment(self, name: str) -> tuple[str, list[Object], list[Problem]]:
        """Why the Deployment is not done ("" if it is), its updated pods, and their problems."""
        namespace = self._installation.namespace
        deployment = await self._home.get(DEPLOYMENTS, name, namespace=namespace)
        selector = format_selector(deployment["spec"]["selector"]["matchLabels"])
        page = await self._home.list(PODS, namespace=namespace, labels=selector)
        pods = [it for it in page.items if _is_updated(deployment, it)]
        failure, problems = condition_of(deployment, "ReplicaFailure"), list[Problem]()
        if failure.get("status") == "True":
            problems.append(Problem(f"pods cannot be created: {failure.get('message')}"))
        for pod in pods:
            problems += _problems(pod)
        for pod in pods:
            problems += await self._find_awaited(pod)
        return _pending_cause(deployment), pods, problems

    async def _find_awaited(self, pod: Object) -> list[Problem]:
        """The cluster or the approval that a running bridge which is not ready waits for, from its
        log."""
        if is_deleting(pod) or not any(
            "running" in (it.get("state") or {}) and not it.get("ready")
            for it in _container_statuses(pod)
        ):
            return []
        path = PODS.path(name_of(pod), namespace=namespace_of(pod), subresource="log")
        try:
            log = await self._home.read(path, query={"tailLines": "1"}, timeout=LOG_SECONDS)
        except KubeError:
            return []  # Only a hint; reading logs requires a separate permission.
        found = _WAITING_LINE.search(log.decode("utf-8", "replace"))
        key = f"pod {name_of(pod)} waits"
        return [Problem(f"{key}: {found[1] or found[2].strip()}", key)] if found else []

    async def _check_node(self) -> str:
        """Why the Node is not Ready; "" if it is."""
        name = self._installation.node
        node = await self._home.find(NODES, name)
        if node is None:
            return f"node {name} is not registered yet"
        ready = condition_of(node, "Ready")
        if ready.get("status") == "True":
            return ""
        return f"node {name} is not Ready: {ready.get('message') or 'no reason given'}"


def _is_updated(deployment: Object, pod: Object) -> bool:
    """Whether the pod has the Deployment's current template; problems of older pods are about to
    disappear."""
    template, current = (
        (
            [(it["image"], it.get("args")) for it in obj["spec"]["containers"]],
            (metadata(obj).get("annotations") or {}).get(ANNOTATION_HASH),
        )
        for obj in (deployment["spec"]["template"], pod)
    )
    return template == current


def _raise_if_permanent(pod: Object, node: str) -> None:
    """Raises PreflightError if another start will not help."""
    if is_deleting(pod):
        return
    for status in _container_statuses(pod):
        if _waiting(status).get("reason") in _PERMANENT_REASONS:
            raise PreflightError(f"home: {_waiting_problem(pod, status).message}")
        # The kubelet restarts a container without delay the first time.
        starts = int(status.get("restartCount") or 0) + 1
        if _is_crash_looping(status) and starts >= MAX_STARTS:
            raise PreflightError(
                f"home: pod {name_of(pod)} is in a crash loop: {_last_lines(status)}; the "
                "installation stays: fix the cause and join again, or run `bridge leave "
                f"{node}`"
            )


def _waiting(status: Object) -> Object:
    return (status.get("state") or {}).get("waiting") or {}


def _is_crash_looping(status: Object) -> bool:
    return _waiting(status).get("reason") == "CrashLoopBackOff"


def _last_lines(status: Object) -> str:
    """The last log lines of a terminated container; "" if it has not terminated."""
    for state in ("state", "lastState"):
        terminated = (status.get(state) or {}).get("terminated")
        if terminated:
            # terminationMessagePolicy FallbackToLogsOnError puts the end of the log here.
            lines = str(terminated.get("message") or "").strip().splitlines()
            text = " | ".join(line.strip() for line in lines[-MAX_LOG_LINES:])
            return text or "no output; see `kubectl logs --previous`"
    return ""


def _pending_cause(deployment: Object) -> str:
    """Why not all pods are updated and available, as `kubectl rollout status`; "" if they are."""
    status, spec = deployment.get("status") or {}, deployment.get("spec") or {}
    replicas = int(spec.get("replicas") or 0)
    if int(status.get("observedGeneration") or 0) < int(metadata(deployment).get("generation", 0)):
        return _NOT_STARTED
    updated, available = (
        int(status.get(it) or 0) for it in ("updatedReplicas", "availableReplicas")
    )
    if updated < replicas or available < replicas:
        return f"{min(updated, available)} of {replicas} pods of {name_of(deployment)} are ready"
    if int(status.get("replicas") or 0) > replicas:
        return "pods of the previous revision are terminating"
    return ""


def _problems(pod: Object) -> Iterator[Problem]:
    if is_deleting(pod):
        return
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield Problem(f"pod {name_of(pod)} is unschedulable: {scheduled.get('message')}")
    for status in _container_statuses(pod):
        if lines := _last_lines(status):
            yield Problem(f"pod {name_of(pod)} terminated: {lines}")
        if _waiting(status).get("reason") not in _EXPECTED_REASONS:
            yield _waiting_problem(pod, status)


def _waiting_problem(pod: Object, status: Object) -> Problem:
    waiting = status["state"]["waiting"]
    reason, message = str(waiting.get("reason")), waiting.get("message") or ""
    if "Image" not in reason:
        return Problem(f"pod {name_of(pod)} waits: {reason}: {message}")
    # All pods use the same image, and each alternates between pulling and back-off.
    image = status.get("image") or "of the bridge"
    return Problem(f"image {image}: {reason}: {message} {_IMAGE_HINT}", f"image {image}")


def _container_statuses(pod: Object) -> list[Object]:
    statuses: list[Object] = (pod.get("status") or {}).get("containerStatuses") or []
    return statuses
