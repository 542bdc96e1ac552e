"""Opens a port-forward to one pod of the remote, through its API server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os

import orjson

from bridge.net.port_forward import PROTOCOL
from sync.kube.credentials import ClientConfig
from sync.kube.errors import KubeError, Unreachable, from_status
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.resources import PODS
from translators.relay.forward import Backend

#: Seconds for a way to a pod. The API server has half a minute for its own way to the node: a
#: client at home is to get another pod long before.
DIAL_SECONDS = 4.0
#: What a server puts behind the key that it proves to have read (RFC 6455, 1.3).
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def dial(access: ClientConfig, backend: Backend) -> UpgradeResponse:
    """A connection that is to be a `Channels`. Raises KubeError where there is no way to the pod.

    Whether anything listens on the pod's port is not known then: the kubelet tells that later, in
    the channel for errors.
    """
    path = PODS.path(backend.name, namespace=backend.namespace, subresource="portforward")
    what = f"GET {path} (port {backend.port})"
    key = base64.b64encode(os.urandom(16))
    headers = [
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key.decode()),
        ("Sec-WebSocket-Protocol", PROTOCOL),
    ]
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            upgraded = await open_upgrade(
                access, "GET", path, [("ports", str(backend.port))], headers
            )
    except TimeoutError as error:
        raise Unreachable(
            f"no way to the pod in {DIAL_SECONDS:.0f} s", side=access.side, what=what
        ) from error
    if upgraded.status != 101:
        raise _refused(access, upgraded, what)
    proof = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
    said = upgraded.head.values("Sec-WebSocket-Accept")
    spoken = upgraded.head.values("Sec-WebSocket-Protocol")
    if said != [proof] or spoken != [PROTOCOL]:
        upgraded.close()
        raise Unreachable(
            f"the API server answers a port-forward with something else than {PROTOCOL}",
            side=access.side,
            what=what,
        )
    return upgraded


def _refused(access: ClientConfig, upgraded: UpgradeResponse, what: str) -> KubeError:
    try:
        body = orjson.loads(upgraded.body)
    except orjson.JSONDecodeError:
        body = None
    status = body if isinstance(body, dict) else {"message": f"answered {upgraded.status}"}
    return from_status(status, code=upgraded.status, side=access.side, what=what)
