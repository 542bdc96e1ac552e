"""Home and remote pods in the states that a plan distinguishes, with no other fields."""

from __future__ import annotations

from translators.object_accessors import HomeUid, Object, RemoteUid
from translators.pods import remote_pod, restart_policy_never
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
ADDRESS = "10.20.0.5"
POLICY = Policy(IDENTITY, ADDRESS, unschedulable_timeout=300.0)
NOW = "2025-11-03T10:00:00Z"
#: Less and more than the timeout before `NOW`.
RECENTLY, LONG_AGO = "2025-11-03T09:56:00Z", "2025-11-03T09:54:00Z"
WAITS = "cluster-bridge.io/RemoteScheduled"
VERSION = "4711"

HOME_UID, PREVIOUS_UID = HomeUid("home-1"), HomeUid("home-0")
REMOTE_UID = RemoteUid("remote-1")
_TIME = "2025-11-03T09:00:00Z"
_NO_NODE = {"status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}


def home(
    *,
    phase: str = "Pending",
    marked: bool = False,
    deleting: int | None = None,
    policy: str = "Always",
    daemon: bool = False,
    uid: str = HOME_UID,
    image: str = "busybox:1",
    asks: str | None = None,
    kept: bool = False,
    waits: str | None = None,
    timed_out: bool = False,
    refused: str | None = None,
    deadline: int | None = None,
    ready: bool = False,
) -> Object:
    """A pod bound to the virtual node. ``marked``: it may have run in the remote. ``deleting``: its
    grace period in seconds. ``asks``: its CPU request. ``kept``: it has a finalizer. ``waits``:
    since when it is reported as unschedulable; ``timed_out``: and withdrawn for that. ``refused``:
    since when its creation is blocked. ``deadline``: its activeDeadlineSeconds. ``ready``: its
    container is running and ready."""
    meta: Object = {"name": "web", "namespace": "shop", "uid": uid}
    if deleting is not None:
        meta |= {"deletionTimestamp": _TIME, "deletionGracePeriodSeconds": deleting}
    if kept:
        meta["finalizers"] = ["example.com/look"]
    if daemon:
        meta["ownerReferences"] = [{"kind": "DaemonSet", "name": "log", "controller": True}]
    status: Object = {"phase": phase, "qosClass": "BestEffort"}
    if marked or phase != "Pending":
        status["startTime"] = _TIME
    if waits is not None:
        found = {**_NO_NODE, "reason": "TimedOut"} if timed_out else _NO_NODE
        status["conditions"] = [{**found, "type": WAITS, "lastTransitionTime": waits}]
    if refused is not None:
        condition = {"type": "cluster-bridge.io/Accepted", "status": "False"}
        status["conditions"] = [{**condition, "lastTransitionTime": refused}]
    if ready:
        status["conditions"] = [{"type": "Ready", "status": "True"}]
        status["podIP"] = "10.244.3.17"
        status["containerStatuses"] = [{"name": "main", "ready": True, "state": {"running": {}}}]
    container: Object = {"name": "main", "image": image}
    if asks is not None:
        container["resources"] = {"requests": {"cpu": asks}}
    spec: Object = {"containers": [container], "restartPolicy": policy, "nodeName": "burst"}
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    return {"metadata": meta, "spec": spec, "status": status}


def remote(
    *,
    phase: str = "Running",
    deleting: int | None = None,
    of: str = HOME_UID,
    uid: str = REMOTE_UID,
    image: str = "busybox:1",
    waits: bool = False,
    held: bool = False,
    deadline: int | None = None,
) -> Object:
    """The remote pod of the home pod with UID ``of``. ``waits``: the remote's scheduler finds no
    node. ``held``: it has the scheduling gate (`translators.pods.restart_policy_never`)."""
    stood_for = home(uid=of, image=image, deadline=deadline)
    meta = remote_pod.remote_pod_metadata(stood_for, POLICY)
    meta |= {"uid": uid, "resourceVersion": VERSION}
    if deleting is not None:
        meta |= {"deletionTimestamp": _TIME, "deletionGracePeriodSeconds": deleting}
    status: Object = {"phase": phase, "qosClass": "BestEffort"}
    if phase != "Pending":
        status |= {"startTime": _TIME, "hostIP": "192.168.7.12", "podIP": "10.244.3.17"}
    spec: Object = {"containers": [{"name": "main", "image": image}]}
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    if waits:
        condition = {
            **_NO_NODE,
            "type": "PodScheduled",
            "lastTransitionTime": "2025-11-03T02:00:00Z",
        }
        status["conditions"] = [condition]
    elif held:
        spec["schedulingGates"] = [{"name": restart_policy_never.GATE}]
    else:
        spec["nodeName"] = "worker"
    return {"metadata": meta, "spec": spec, "status": status}
