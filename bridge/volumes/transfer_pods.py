"""Starts and ends the two pods of a transfer."""

from __future__ import annotations

import asyncio
import contextlib

from bridge.base.command_error import PreflightError
from bridge.volumes.transfer_objects import CONTAINER, LABEL_TRANSFER
from bridge.volumes.volume_swap import POLL_SECONDS
from sync.kube.api_errors import AlreadyExists, Forbidden, Invalid, KubeError
from sync.kube.api_resources import (
    EVENTS,
    PERSISTENT_VOLUMES,
    PODS,
    VOLUME_ATTACHMENTS,
)
from sync.kube.client import KubeClient
from sync.kube.pod_stream import open_shell
from translators.object_accessors import (
    Object,
    is_deleting,
    is_ready,
    name_of,
    namespace_of,
    namespaced_name,
    uid_of,
)

#: Seconds for the deletion of pods when a command is interrupted.
CLEANUP_SECONDS = 5.0
#: Seconds for the answer to a command by which a pod is found to run before its status reports it.
PROBE_SECONDS = 5.0
#: Between two such commands, as a part of the time since the first: a long start costs few.
_PROBE_PART = 0.1


async def create(home: KubeClient, pods: list[Object]) -> None:
    """Creates the pods. Raises PreflightError and KubeError."""
    for pod in pods:
        await _create(home, pod)


async def wait_until_running(home: KubeClient, pod: Object, *, claim: str, timeout: float) -> None:
    """Waits until the pod runs commands. ``claim`` is the target's, whose Events tell why a pod
    waits. Raises PreflightError and KubeError."""
    try:
        async with asyncio.timeout(timeout):
            await _wait_until_running(home, pod)
    except TimeoutError:
        raise PreflightError(await _why_not_ready(home, pod, claim, timeout)) from None


async def delete_if_possible(home: KubeClient, namespace: str, source_uid: str) -> None:
    """Deletes the transfer pods of a command that fails or is interrupted, and does not wait for
    their end. Otherwise they end by themselves (`volume_scripts.WAIT`)."""
    with contextlib.suppress(KubeError, TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            await _delete(home, namespace, source_uid)


async def end(home: KubeClient, namespace: str, source_uid: str, *, timeout: float) -> None:
    """Deletes the transfer pods of a source claim and waits until they have ended. Raises
    PreflightError and KubeError."""
    found: list[Object] = []
    try:
        async with asyncio.timeout(timeout):
            while found := await _delete(home, namespace, source_uid):  # noqa: ASYNC110  # a poll
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        names = ", ".join(map(name_of, found))
        raise PreflightError(
            f"home: pods {names} in namespace {namespace} have not ended after {timeout:.0f} s; "
            "check that their nodes are Ready, and run the command again"
        ) from None


async def wait_until_detached(home: KubeClient, volume: Object, *, timeout: float) -> None:
    """Waits until no node has the volume attached: detaching needs its PersistentVolume. Raises
    PreflightError and KubeError."""
    if "csi" not in volume["spec"]:
        return
    try:
        async with asyncio.timeout(timeout):
            while await _is_attached(home, name_of(volume)):  # noqa: ASYNC110  # a poll
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise PreflightError(
            f"home: {PERSISTENT_VOLUMES.kind} {name_of(volume)} is still attached to a node after "
            f"{timeout:.0f} s; run the command again when `kubectl get volumeattachments` does not "
            "list it"
        ) from None


async def _is_attached(home: KubeClient, volume: str) -> bool:
    attachments = (await home.list(VOLUME_ATTACHMENTS)).items
    sources = [it["spec"].get("source") or {} for it in attachments]
    return any(it.get("persistentVolumeName") == volume for it in sources)


async def _delete(home: KubeClient, namespace: str, source_uid: str) -> list[Object]:
    """Deletes the transfer pods of a source claim; returns those that still existed."""
    labels = f"{LABEL_TRANSFER}={source_uid}"
    found = (await home.list(PODS, namespace=namespace, labels=labels)).items
    for pod in found:
        if not is_deleting(pod):
            await home.delete(PODS, name_of(pod), namespace=namespace, uid=uid_of(pod))
    return found


async def _create(home: KubeClient, pod: Object) -> None:
    try:
        await home.create(PODS, pod, namespace=namespace_of(pod))
    except AlreadyExists:
        raise PreflightError(
            f"home: pod {namespaced_name(pod)} exists: another command transfers the same volume; "
            "wait for its end"
        ) from None
    except (Forbidden, Invalid) as error:
        raise PreflightError(
            f"home: cannot create pod {namespaced_name(pod)}: {error.message}; it runs as root "
            "with the capabilities that tar needs, which the namespace must permit (Pod Security "
            "level baseline)"
        ) from error


async def _wait_until_running(home: KubeClient, pod: Object) -> None:
    """Kubelets report the start of a container up to a second late, and a virtual node reports it
    later still, but they run commands in it at once. So commands are tried from the time on at
    which the pod's kubelet begins to start it."""
    clock = asyncio.get_running_loop().time
    first = due = 0.0
    while True:
        found = await home.find(PODS, name_of(pod), namespace=namespace_of(pod))
        if found is None:
            raise PreflightError(
                f"home: pod {namespaced_name(pod)} was deleted; run the command again"
            )
        phase = (found.get("status") or {}).get("phase")
        if phase in ("Failed", "Succeeded"):
            raise PreflightError(f"home: pod {namespaced_name(pod)} ended early: {_state(found)}")
        if is_ready(found):
            return
        if _has_kubelet(found) and clock() >= due:
            first = first or clock()
            if await _runs_commands(home, pod):
                return
            due = clock() + _PROBE_PART * (clock() - first)
        await asyncio.sleep(POLL_SECONDS)


def _has_kubelet(pod: Object) -> bool:
    """Whether a kubelet has the pod: only kubelets write the states of containers."""
    return bool((pod.get("status") or {}).get("containerStatuses"))


async def _runs_commands(home: KubeClient, pod: Object) -> bool:
    names = {"namespace": namespace_of(pod), "pod": name_of(pod), "container": CONTAINER}
    with contextlib.suppress(KubeError, TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS), open_shell(home, "true", **names) as running:
            async for _ in running.output():
                pass
            return running.exit_status == 0
    return False


async def _why_not_ready(home: KubeClient, pod: Object, claim: str, timeout: float) -> str:
    reasons = []
    namespace = namespace_of(pod)
    found = await home.find(PODS, name_of(pod), namespace=namespace)
    if found is not None and not is_ready(found):
        event = await _last_warning(home, namespace, name_of(pod))
        reasons.append(f"pod {name_of(pod)}: {event or _state(found)}")
    if event := await _last_warning(home, namespace, claim):
        reasons.append(f"PersistentVolumeClaim {claim}: {event}")
    return (
        f"home: the transfer pods are not Ready after {timeout:.0f} s: {'; '.join(reasons)}; "
        "remove the cause, or allow more time by --timeout, and run the command again"
    )


async def _last_warning(home: KubeClient, namespace: str, name: str) -> str:
    events = (
        await home.list(
            EVENTS, namespace=namespace, fields=f"involvedObject.name={name},type=Warning"
        )
    ).items
    events.sort(key=lambda it: str(it.get("lastTimestamp") or it.get("eventTime") or ""))
    return str(events[-1].get("message") or "") if events else ""


def _state(pod: Object) -> str:
    """Why the pod does not run, as its status has it."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}).values():
            if isinstance(state, dict) and (reason := state.get("reason")):
                return f"{reason} {state.get('message') or ''}".strip()
    parts = [str(status.get(key) or "") for key in ("reason", "message")]
    return " ".join(filter(None, parts)) or str(status.get("phase") or "unknown")
