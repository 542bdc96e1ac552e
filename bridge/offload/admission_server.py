"""What answers an API server that asks how a new pod is to be changed.

Every answer allows the pod. One that cannot be read, or of a namespace that is not known yet, is
allowed as it is. Whoever reaches it can ask what it would do to a pod, and learns no more than a
policy's name. Connections are bounded as the kubelet API's are: `bridge.net.server_connections`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from bridge.base.errors import PreflightError
from bridge.net.listening_socket import listening_socket
from bridge.net.server_connections import ServerConnections, TlsConnection
from bridge.offload import admission_policy as objects
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.client import KubeClient
from sync.kube.resources import NAMESPACES
from translators import offload_patch
from translators.objects import Object, metadata, name_of

#: Bytes of a review at the most: a pod of 1.5 MB, which is etcd's bound, and what is around it.
MAX_REVIEW_BYTES = 4 * 2**20

#: Seconds for what is left of a body that nobody reads.
LINGER = 1.0

#: Why it is not ready; "" where it is.
Ready = Callable[[], str]


class AdmissionServer:
    """It, and the offloaded namespaces that it knows: `namespaces.run` is the caller's to run."""

    def __init__(self, home: KubeClient, *, ready: Ready = lambda: "") -> None:
        self.namespaces = Informer(home, NAMESPACES, labels=offload_patch.LABEL_OFFLOAD, slim=_slim)
        self._ready = ready
        self._ending = False
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        # A body that comes byte by byte waits, as a head does: it is read before it is let in.
        self._connections = ServerConnections()

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> int:
        """Listens, and says at which port. Raises PreflightError where that cannot be."""
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        app.router.add_post(objects.PATH, self._review)
        app.router.add_get("/livez", _alive)
        app.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(app, access_log=None, lingering_time=LINGER)
        await runner.setup()
        above = runner.server
        assert above is not None  # noqa: S101  # it was set up

        def accepted() -> TlsConnection:
            return TlsConnection(context, above, self._connections)

        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                accepted, sock=listening_socket(address, port)
            )
        except OSError as error:
            await runner.cleanup()
            raise PreflightError(
                f"the webhook cannot listen on {address}:{port}: {error.strerror}; choose "
                "another with --address or --port"
            ) from error
        self._runner = runner
        listening: int = self._listener.sockets[0].getsockname()[1]
        return listening

    def begin_shutdown(self) -> None:
        """It is about to end: who asks goes elsewhere the next time."""
        self._ending = True

    async def stop(self) -> None:
        """Listens no more."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _readyz(self, _: web.Request) -> web.Response:
        why = "it ends" if self._ending else self._ready()
        why = why or ("" if self.namespaces.synced.is_set() else "the namespaces are not known yet")
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _review(self, request: web.Request) -> web.Response:
        raw = await request.read()
        with self._connections.admitted(request):
            return self._reviewed(raw)

    def _reviewed(self, raw: bytes) -> web.Response:
        try:
            review: Any = json.loads(raw)
            asked: Object = review["request"]
            answer = {"uid": asked["uid"], "allowed": True, **self._answer(asked)}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise web.HTTPBadRequest(text="not an AdmissionReview of admission.k8s.io/v1") from None
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        response = web.json_response(body)
        if self._ending:
            response.force_close()
        return response

    def _answer(self, asked: Object) -> Object:
        namespace = self.namespaces.store.get(Key("", str(asked.get("namespace"))))
        policy = offload_patch.policy_of(namespace) if namespace is not None else None
        if namespace is None or policy is None:
            return {}
        patch = offload_patch.admission_patch(
            asked["object"], policy, offload_patch.selector_of(namespace)
        )
        if not patch:
            return {}
        text = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"patchType": "JSONPatch", "patch": text}


async def _alive(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _slim(namespace: Object) -> Object:
    """What is read of a namespace."""
    meta = metadata(namespace)
    kept = {"name": name_of(namespace), "uid": meta.get("uid")}
    kept |= {"resourceVersion": meta.get("resourceVersion")}
    for part, key in (
        ("labels", offload_patch.LABEL_OFFLOAD),
        ("annotations", offload_patch.ANNOTATION_NODE_SELECTOR),
    ):
        if value := (meta.get(part) or {}).get(key):
            kept[part] = {key: value}
    return {"metadata": kept}
