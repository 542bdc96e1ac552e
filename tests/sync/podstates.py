"""Home and remote pods in the states that a plan tells apart, with no more in them than that."""

from __future__ import annotations

from translators import pod
from translators.naming import Identity
from translators.policy import Policy
from translators.types import HomeUid, Object, RemoteUid

IDENTITY = Identity(home_id="0123456789abcdef", home_name="berlin", node="burst")
ADDRESS = "10.20.0.5"
POLICY = Policy(IDENTITY, ADDRESS)
NOW = "2025-11-03T10:00:00Z"

HOME_UID, FORMER_UID = HomeUid("home-1"), HomeUid("home-0")
REMOTE_UID = RemoteUid("remote-1")
_TIME = "2025-11-03T09:00:00Z"


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
) -> Object:
    """A pod that is bound to the virtual node. ``marked``: it may have run in the remote.
    ``deleting``: its grace in seconds. ``asks``: CPUs that it requests.
    ``kept``: by a finalizer."""
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
    container: Object = {"name": "main", "image": image}
    if asks is not None:
        container["resources"] = {"requests": {"cpu": asks}}
    spec = {"containers": [container], "restartPolicy": policy, "nodeName": "burst"}
    return {"metadata": meta, "spec": spec, "status": status}


def remote(
    *,
    phase: str = "Running",
    deleting: int | None = None,
    of: str = HOME_UID,
    uid: str = REMOTE_UID,
    image: str = "busybox:1",
) -> Object:
    """A remote pod that stands for the home pod with UID ``of``."""
    meta = pod.pod_metadata(home(uid=of, image=image), IDENTITY)
    meta["uid"] = uid
    if deleting is not None:
        meta |= {"deletionTimestamp": _TIME, "deletionGracePeriodSeconds": deleting}
    status: Object = {"phase": phase, "qosClass": "BestEffort"}
    if phase != "Pending":
        status |= {"startTime": _TIME, "hostIP": "192.168.7.12", "podIP": "10.244.3.17"}
    containers = [{"name": "main", "image": image}]
    return {"metadata": meta, "spec": {"containers": containers}, "status": status}
