"""From the names in a request's path to the pod in the remote."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.kubelet.pod_directory import PodDirectory, RemotePod
from bridge.net.error_responses import HttpError
from translators.objects import name_of, namespace_of, uid_of
from translators.pods import synthetic_status


def remote_pod(directory: PodDirectory, parameters: Mapping[str, str]) -> RemotePod:
    """The remote pod of the home pod that the path names. Raises HttpError: 404 when there is none
    on our node or in the remote, or when it has no such container; 400 when the home pod has a
    reason not to be in the remote."""
    namespace, name = parameters["namespace"], parameters["pod"]
    pod = directory.find_remote_pod(namespace, name, parameters.get("uid"))
    if pod is None:
        raise _absent(directory, namespace, name, parameters.get("uid"))
    container = parameters.get("container")
    if container is not None and container not in pod.containers:
        raise HttpError(
            404,
            f"container {container} is not valid for pod {name}; it has "
            + (", ".join(sorted(pod.containers)) or "none"),
        )
    return pod


def _absent(directory: PodDirectory, namespace: str, name: str, uid: str | None) -> HttpError:
    """Why there is no remote pod. A home pod that waits or is skipped gives its own reason, with
    400, as a kubelet answers of a container that waits: of a 404, home's API server drops the text
    (GenericHttpResponseChecker in pkg/registry/generic/rest)."""
    for pod in directory.home_pods():
        same = (namespace_of(pod), name_of(pod)) == (namespace, name)
        if same and (not uid or uid == uid_of(pod)):
            if reason := synthetic_status.creation_blocked_message(pod):
                why = f"pod {namespace}/{name} does not run in the remote cluster: {reason}"
                return HttpError(400, why)
            break
    why = f"pod {namespace}/{name} is not on this node, or not made in the remote cluster yet"
    return HttpError(404, why)
