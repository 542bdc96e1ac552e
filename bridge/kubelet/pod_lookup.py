"""Finds the remote pod that a request of the kubelet API is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.stream_limits import ActiveStreams
from sync.kube.api_resources import Object
from sync.kube.client import KubeClient
from translators.object_accessors import name_of, namespace_of, uid_of
from translators.ownership_labels import Origin
from translators.pods import synthetic_status


@dataclass(frozen=True, slots=True)
class RemotePod:
    """The remote pod of a home pod."""

    namespace: str
    name: str
    containers: frozenset[str]
    """Names of all containers, init and ephemeral containers included."""
    home_uid: str
    """The UID of the home pod."""


@dataclass(frozen=True, slots=True)
class ScheduledPod:
    """A remote pod that is bound to a node of the remote, and its home pod."""

    home: Origin
    namespace: str
    name: str
    node: str
    """The remote's node. A pod of the same name on another node is a different pod."""
    since: int = 0
    """When the remote's scheduler bound the pod, in milliseconds since the epoch; 0: unknown."""


class PodDirectory(Protocol):
    """Finds pods by their home names. Answers from caches; called on the event loop."""

    def find_remote_pod(self, namespace: str, name: str, uid: str | None) -> RemotePod | None:
        """The remote pod of a home pod on this node; None if there is none (yet).

        With ``uid``, only the home pod with this UID matches, not a later one of the same name.
        """

    def home_pods(self) -> list[Object]:
        """The home pods on this node."""

    def scheduled_pods(self) -> list[ScheduledPod]:
        """The remote pods of this node that the remote's scheduler has bound."""


@dataclass(frozen=True, slots=True)
class PodAccess:
    """The dependencies that all handlers of pod requests share."""

    node: str
    """The name of the virtual node."""
    remote: KubeClient
    directory: PodDirectory
    streams: ActiveStreams

    def requested_pod(self, parameters: Mapping[str, str]) -> RemotePod:
        """The remote pod of the home pod that a path names.

        Raises HttpError: 404 where the pod is not on this node or not in the remote, or lacks the
        container; 400 where the home pod's status has the reason why it is not in the remote.
        """
        namespace, name = parameters["namespace"], parameters["pod"]
        pod = self.directory.find_remote_pod(namespace, name, parameters.get("uid"))
        if pod is None:
            raise _missing_pod_error(self.directory, namespace, name, parameters.get("uid"))
        container = parameters.get("container")
        if container is not None and container not in pod.containers:
            raise HttpError(
                404,
                f"container {container} is not valid for pod {name}; it has "
                + (", ".join(sorted(pod.containers)) or "none"),
            )
        return pod


def _missing_pod_error(
    directory: PodDirectory, namespace: str, name: str, uid: str | None
) -> HttpError:
    """Why there is no remote pod. The reason of a pod that waits or was rejected comes with 400, as
    a kubelet's for a waiting container: home's API server drops the text of a 404
    (GenericHttpResponseChecker in pkg/registry/generic/rest)."""
    for pod in directory.home_pods():
        same = (namespace_of(pod), name_of(pod)) == (namespace, name)
        if same and (not uid or uid == uid_of(pod)):
            if reason := synthetic_status.creation_blocked_message(pod):
                text = f"pod {namespace}/{name} does not run in the remote cluster: {reason}"
                return HttpError(400, text)
            break
    text = f"pod {namespace}/{name} is not on this node, or not created in the remote cluster yet"
    return HttpError(404, text)
