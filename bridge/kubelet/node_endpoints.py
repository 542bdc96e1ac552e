"""What the node says of itself: its pods, whether it is well, and how it is configured."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp import web

from bridge.kubelet.authz import ALLOWED_LIFETIME, DENIED_LIFETIME, TOKEN_LIFETIME
from bridge.kubelet.pod_directory import PodDirectory
from bridge.kubelet.routing import RoutedRequest
from bridge.net.error_responses import HttpError, text_response
from bridge.net.tunnel import IDLE_TIMEOUT
from sync.kube.resources import Object


class NodeEndpoints:
    """Answers ``/pods``, ``/runningpods/``, ``/healthz`` and ``/configz``.

    ``trouble`` says in a sentence why the bridge does not follow the pods just now, or nothing.
    """

    def __init__(
        self, directory: PodDirectory, trouble: Callable[[], str], *, anonymous: bool
    ) -> None:
        self._directory = directory
        self._trouble = trouble
        self._anonymous = anonymous

    async def pods(self, _: RoutedRequest) -> web.StreamResponse:
        """All home pods of the node, those that are being deleted among them."""
        return _pod_list(self._directory.home_pods())

    async def running_pods(self, _: RoutedRequest) -> web.StreamResponse:
        """The pods with a container that runs, and no deletion under way."""
        return _pod_list([pod for pod in self._directory.home_pods() if is_running(pod)])

    async def ping(self, _: RoutedRequest) -> web.StreamResponse:
        """That this answers is the answer."""
        return text_response(200, "ok")

    async def healthy(self, _: RoutedRequest) -> web.StreamResponse:
        """ok, or 500 with what is wrong."""
        if trouble := self._trouble():
            raise HttpError(500, trouble)
        return text_response(200, "ok")

    async def config(self, _: RoutedRequest) -> web.StreamResponse:
        """What a kubelet's configuration would say of this one."""
        config = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "enableServer": True,
            "streamingConnectionIdleTimeout": f"{IDLE_TIMEOUT / 3600:.0f}h0m0s",
            "authentication": {
                "x509": {},
                "webhook": {"enabled": True, "cacheTTL": _duration(TOKEN_LIFETIME)},
                "anonymous": {"enabled": self._anonymous},
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
    """Whether one of its containers runs, and nobody has asked for its end."""
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return False
    status = pod.get("status") or {}
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    containers = [container for kind in kinds for container in status.get(kind) or []]
    return any("running" in (container.get("state") or {}) for container in containers)


def _duration(seconds: float) -> str:
    """As in a configuration file: ``2m0s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


def _pod_list(pods: list[Object]) -> web.Response:
    return _json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})


def _json(body: Object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
