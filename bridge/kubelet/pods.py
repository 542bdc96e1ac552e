"""From the names in a request's path to the pod in the remote."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.kubelet.directory import PodDirectory, RemotePod
from bridge.kubelet.refusals import Refusal


def remote_pod(directory: PodDirectory, parameters: Mapping[str, str]) -> RemotePod:
    """The remote pod of the home pod that the path names. Raises Refusal: 404 when there is none
    on our node or in the remote, or when it has no such container."""
    namespace, name = parameters["namespace"], parameters["pod"]
    pod = directory.find(namespace, name, parameters.get("uid"))
    if pod is None:
        raise Refusal(
            404,
            f"pod {namespace}/{name} is not on this node, or not made in the remote cluster yet",
        )
    container = parameters.get("container")
    if container is not None and container not in pod.containers:
        raise Refusal(
            404,
            f"container {container} is not valid for pod {name}; it has "
            + (", ".join(sorted(pod.containers)) or "none"),
        )
    return pod
