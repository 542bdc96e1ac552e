"""Handles ``/pods``, ``/runningpods`` and ``/configz``: the node's pods and its configuration."""

from __future__ import annotations

import orjson
from aiohttp import web

from bridge.kubelet.authn import TOKEN_LIFETIME
from bridge.kubelet.authz import ALLOWED_LIFETIME, DENIED_LIFETIME
from bridge.kubelet.pod_lookup import PodDirectory
from bridge.kubelet.routing import RoutedRequest
from bridge.net.splice import IDLE_TIMEOUT
from sync.kube.api_resources import Object


class NodeEndpoints:
    """Handlers for one node."""

    def __init__(self, directory: PodDirectory) -> None:
        self._directory = directory

    async def pods(self, _: RoutedRequest) -> web.StreamResponse:
        """A PodList of all home pods on the node, terminating pods included."""
        return _pod_list(self._directory.home_pods())

    async def running_pods(self, _: RoutedRequest) -> web.StreamResponse:
        """A PodList of the pods that have a running container and are not terminating."""
        return _pod_list([pod for pod in self._directory.home_pods() if is_running(pod)])

    async def config(self, _: RoutedRequest) -> web.StreamResponse:
        """The KubeletConfiguration with the fields that apply to a virtual node."""
        config = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "enableServer": True,
            "streamingConnectionIdleTimeout": f"{IDLE_TIMEOUT / 3600:.0f}h0m0s",
            "authentication": {
                "x509": {},
                "webhook": {"enabled": True, "cacheTTL": _duration(TOKEN_LIFETIME)},
                "anonymous": {"enabled": False},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {
                    "cacheAuthorizedTTL": _duration(ALLOWED_LIFETIME),
                    "cacheUnauthorizedTTL": _duration(DENIED_LIFETIME),
                },
            },
        }
        return _json({"kubeletconfig": config})


def is_running(pod: Object) -> bool:
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return False
    status = pod.get("status") or {}
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    containers = [container for kind in kinds for container in status.get(kind) or []]
    return any("running" in (container.get("state") or {}) for container in containers)


def _duration(seconds: float) -> str:
    """Formats a metav1.Duration of minutes and seconds: ``2m0s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


def _pod_list(pods: list[Object]) -> web.Response:
    return _json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})


def _json(body: Object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
