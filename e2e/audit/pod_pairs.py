"""Pods: each home pod of the virtual node has one remote pod, and both have the same state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from e2e.audit.findings import (
    DOMAIN,
    HOME_NAME,
    HOME_NAMESPACE,
    HOME_UID,
    MUTATED,
    Finding,
    Json,
    Kind,
    annotations_of,
    field_differences,
    is_daemon,
    is_deleting,
    is_terminal,
    is_unmanaged,
    meta,
    metadata_differences,
    phase,
    subject_of,
    uid,
)

#: Fields of the specs of a pod and its containers that are equal in both, updates included.
_SPEC = ("activeDeadlineSeconds", "restartPolicy", "terminationGracePeriodSeconds")
_CONTAINER = ("args", "command", "image", "resources")
#: Fields of the statuses of a pod and its containers that the remote determines.
_STATUS = ("podIP", "podIPs", "reason", "message")
#: A restarted kubelet removes these from ended pods; home, which no longer updates an ended pod,
#: keeps them.
_ADDRESSES = ("podIP", "podIPs")
_CONTAINER_STATUS = (
    *("allocatedResources", "containerID", "image", "imageID", "ready", "resources"),
    *("restartCount", "started", "state"),
)
_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
#: Reason of a pod that waits for the removal of an unmanaged object.
_CLASH = "RemoteClash"
#: Reason of a DaemonSet's pod that counts as available without a remote pod.
_SKIPPED = "DaemonSetSkipped"


def check_pods(
    home: Sequence[Json], remote: Sequence[Json], *, all_remote: Sequence[Json], address: str
) -> Iterator[Finding]:
    """``home``: the pods bound to the node; ``remote``: those created for it. ``all_remote``: all
    remote objects. ``address``: the virtual node's."""
    standing = defaultdict(list)
    for pod in remote:
        standing[annotations_of(pod).get(HOME_UID, "")].append(pod)
    for pod in home:
        yield from _check(pod, standing.pop(uid(pod), []), all_remote, address)
    for home_uid, left in standing.items():
        for pod in left:
            yield Finding(
                Kind.LEAKED,
                subject_of(pod),
                f"home has no pod {home_uid or '(it names none)'} on the node",
            )


def _check(
    home: Json, standing: list[Json], all_remote: Sequence[Json], address: str
) -> Iterator[Finding]:
    subject = f"{subject_of(home)} ({uid(home)})"
    if len(standing) > 1:
        names = ", ".join(f"{subject_of(pod)} {uid(pod)}" for pod in standing)
        yield Finding(Kind.DUPLICATED, subject, f"the remote has {names}")
    if not standing:
        if is_deleting(home):
            yield Finding(Kind.STUCK, subject, "is being deleted without a remote pod")
        elif is_daemon(home):
            yield from _skipped(home, subject)
        elif not is_terminal(home) and not _is_blocked(home, all_remote):
            status = home.get("status") or {}
            yield Finding(
                Kind.LOST,
                subject,
                f"no remote pod; phase {phase(home)}, reason {status.get('reason')!r}, "
                f"{status.get('message')!r}",
            )
    for remote in standing:
        # Ended pods are not updated.
        follows = not is_terminal(home) and not is_terminal(remote) and not is_deleting(home)
        for detail in (
            *_origin(home, remote),
            *(metadata_differences(home, remote) if follows else ()),
            *(_spec(home, remote) if follows else ()),
            *_ends(home, remote),
            *_status(home, remote, address),
        ):
            yield Finding(Kind.DISAGREES, subject, detail)


def _skipped(home: Json, subject: str) -> Iterator[Finding]:
    """A DaemonSet's pod without a remote pod is Running only with the reason `DaemonSetSkipped`,
    and has no address for Services."""
    status = home.get("status") or {}
    if phase(home) == "Running" and status.get("reason") != _SKIPPED:
        yield Finding(Kind.DISAGREES, subject, "is Running without a remote pod, and not skipped")
    if status.get("podIP"):
        yield Finding(Kind.DISAGREES, subject, f"has {status['podIP']}, and no remote pod")


def _is_blocked(home: Json, all_remote: Sequence[Json]) -> bool:
    """Whether the pod reports truthfully which unmanaged object blocks it."""
    status = home.get("status") or {}
    message = str(status.get("message"))
    return status.get("reason") == _CLASH and any(
        is_unmanaged(obj) and f"{meta(obj).get('namespace')}/{meta(obj)['name']} " in message
        for obj in all_remote
    )


def _origin(home: Json, remote: Json) -> Iterator[str]:
    origin = (annotations_of(remote).get(HOME_NAMESPACE), annotations_of(remote).get(HOME_NAME))
    if origin != (meta(home).get("namespace"), meta(home)["name"]):
        yield f"{subject_of(remote)} belongs to {origin}"
    if meta(remote)["name"] != meta(home)["name"]:
        yield f"its remote pod has the name {meta(remote)['name']}"


def _spec(home: Json, remote: Json) -> Iterator[str]:
    ours, theirs = home["spec"], remote["spec"]
    # The remote's admission determined these requests at the pod's creation.
    mutated = MUTATED in annotations_of(remote)
    kept = [key for key in _CONTAINER if not (mutated and key == "resources")]
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from _each(field, ours, theirs, kept)
    yield from field_differences("", ours, theirs, _SPEC)
    for toleration in ours.get("tolerations") or ():
        # One without a key is replaced: it would tolerate the remote's control plane.
        key, kept_there = str(toleration.get("key", "")), theirs.get("tolerations") or ()
        if key and not key.startswith(f"{DOMAIN}/") and toleration not in kept_there:
            yield f"the remote lacks the toleration {toleration}"


def _each(field: str, ours: Json, theirs: Json, keys: Sequence[str]) -> Iterator[str]:
    """The differences in a list of named items."""
    here = {item["name"]: item for item in ours.get(field) or ()}
    there = {item["name"]: item for item in theirs.get(field) or ()}
    if here.keys() != there.keys():
        yield f"{field}: home {sorted(here)}, remote {sorted(there)}"
    for name in sorted(here.keys() & there.keys()):
        yield from field_differences(f"{field} {name}: ", here[name], there[name], keys)


def _ends(home: Json, remote: Json) -> Iterator[str]:
    if is_deleting(home) and not is_deleting(remote):
        yield "is being deleted at home alone"
    if is_deleting(remote) and not is_deleting(home) and not is_terminal(home):
        yield "is being deleted in the remote alone"
    if is_terminal(home) and not is_terminal(remote) and not is_deleting(remote):
        yield f"ended at home ({phase(home)}) and is {phase(remote)} in the remote"


def _status(home: Json, remote: Json, address: str) -> Iterator[str]:
    ours, theirs = home.get("status") or {}, remote.get("status") or {}
    if is_terminal(home) and not is_terminal(remote):
        return  # NB: `_ends` reports this; the status of a pod that is being deleted is final.
    if phase(home) != phase(remote):
        yield f"phase: home {phase(home)}, remote {phase(remote)}"
    taken_back = is_terminal(home) and not theirs.get("podIP")
    yield from field_differences(
        "", ours, theirs, [key for key in _STATUS if not (taken_back and key in _ADDRESSES)]
    )
    for field in _STATUSES:
        yield from _each(field, ours, theirs, _CONTAINER_STATUS)
    gates = home["spec"].get("readinessGates")
    kinds = ("ContainersReady", "Initialized", *(() if gates else ("Ready",)))
    yield from field_differences("condition ", _conditions(home), _conditions(remote), kinds)
    if theirs.get("hostIP") and ours.get("hostIP") != address:
        yield f"hostIP: {ours.get('hostIP')!r} is not the virtual node's {address}"
    if theirs.get("startTime") and not ours.get("startTime"):
        yield "has no startTime at home"


def _conditions(pod: Json) -> dict[str, str]:
    found = (pod.get("status") or {}).get("conditions") or ()
    return {condition["type"]: condition["status"] for condition in found}
