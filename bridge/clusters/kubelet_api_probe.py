"""Has home's API server connect to the kubelet API, as for kubectl logs.

``get nodes/proxy`` is the permission. The Roles of `bridge rbac` do not grant it;
`bridge.certificates.automatic_certificate` has the reason.
"""

from __future__ import annotations

import logging

from bridge.rbac import permissions
from sync.kube.api_errors import ApiError, KubeError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient

log = logging.getLogger(__name__)


async def kubelet_api_error(home: KubeClient, node_name: str) -> ApiError | None:
    """The response of home's API server to a request for the kubelet API; None for success. Raises
    KubeError if home does not respond."""
    path = NODES.path(node_name, subresource="proxy/healthz")
    try:
        await home.read(path, timeout=permissions.REQUEST_SECONDS)
    except ApiError as error:
        return error
    return None


async def probe_kubelet_api(home: KubeClient, node_name: str) -> None:
    """Has home's API server connect once, if the credential permits it. The result shows in the
    kubelet API's server. Raises nothing."""
    wanted = [it.for_nodes([node_name]) for it in permissions.HOME_KUBELET_PROXY]
    try:
        if await permissions.are_granted(home, wanted):
            error = await kubelet_api_error(home, node_name)
            log.debug("home: request for the kubelet API: %s", error or "success")
    except KubeError as error:
        log.debug("home: cannot probe the kubelet API: %s", error)
