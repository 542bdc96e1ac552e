"""The HTTPS server that answers AdmissionReviews with the patch for a new pod.

Every answer admits the pod. A pod that cannot be parsed, or whose namespace is unknown, is admitted
unmodified. The server does not authenticate clients: a request reveals no more than a namespace's
policy. Connections are limited as those of the kubelet API (`bridge.net.accepted_connections`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.net.accepted_connections import ServerConnections, TlsConnection
from bridge.net.listening_socket import listening_socket
from bridge.offload.webhook_configuration import MUTATE_PATH
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_resources import NAMESPACES
from sync.kube.client import KubeClient
from translators import offload_admission_patch
from translators.object_accessors import Object, metadata, name_of

#: Size limit of a review in bytes: etcd's limit for an object is 1.5 MB.
MAX_REVIEW_BYTES = 4 * 2**20
#: Seconds for reading the rest of a request body that the handler did not read.
LINGER_SECONDS = 1.0


class AdmissionServer:
    """The server. Its informer of the offloaded namespaces, `namespaces`, is run by the caller.
    ``not_ready`` returns why the server is not ready; "" if it is."""

    def __init__(self, home: KubeClient, *, not_ready: Callable[[], str] = lambda: "") -> None:
        self.namespaces = Informer(
            home, NAMESPACES, labels=offload_admission_patch.LABEL_OFFLOAD, slim=_slim
        )
        self._not_ready = not_ready
        self._is_shutting_down = False
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        # Requests are admitted after their body is read, so that a slow body counts as waiting.
        self._connections = ServerConnections()

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> int:
        """Listens, and returns the port. Raises PreflightError if it cannot listen."""
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        app.router.add_post(MUTATE_PATH, self._review)
        app.router.add_get("/livez", _livez)
        app.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(app, access_log=None, lingering_time=LINGER_SECONDS)
        await runner.setup()
        handler = runner.server
        assert handler is not None  # noqa: S101  # set by setup()

        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: TlsConnection(context, handler, self._connections),
                sock=listening_socket(address, port),
            )
        except OSError as error:
            await runner.cleanup()
            raise PreflightError(
                f"webhook: cannot listen on {address}:{port}: {error.strerror}; choose "
                "another with --address or --port"
            ) from error
        self._runner = runner
        listening: int = self._listener.sockets[0].getsockname()[1]
        return listening

    def begin_shutdown(self) -> None:
        """Reports not ready and closes connections after each answer, so that clients reconnect to
        another replica."""
        self._is_shutting_down = True

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = "shutting down" if self._is_shutting_down else self._not_ready()
        if not reason and not self.namespaces.synced.is_set():
            reason = "the namespaces are not listed yet"
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    async def _review(self, request: web.Request) -> web.Response:
        raw = await request.read()
        with self._connections.admitted(request):
            return self._answer(raw)

    def _answer(self, raw: bytes) -> web.Response:
        try:
            review: Any = json.loads(raw)
            admission: Object = review["request"]
            answer = {"uid": admission["uid"], "allowed": True, **self._patch(admission)}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise web.HTTPBadRequest(text="not an AdmissionReview of admission.k8s.io/v1") from None
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        response = web.json_response(body)
        if self._is_shutting_down:
            response.force_close()
        return response

    def _patch(self, admission: Object) -> Object:
        namespace = self.namespaces.store.get(Key("", str(admission.get("namespace"))))
        policy = offload_admission_patch.policy_of(namespace) if namespace is not None else None
        if namespace is None or policy is None:
            return {}
        patch = offload_admission_patch.admission_patch(
            admission["object"], policy, offload_admission_patch.selector_of(namespace)
        )
        if not patch:
            return {}
        text = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"patchType": "JSONPatch", "patch": text}


async def _livez(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _slim(namespace: Object) -> Object:
    """The fields of a namespace that are kept."""
    meta = metadata(namespace)
    kept = {"name": name_of(namespace), "uid": meta.get("uid")}
    kept |= {"resourceVersion": meta.get("resourceVersion")}
    for part, key in (
        ("labels", offload_admission_patch.LABEL_OFFLOAD),
        ("annotations", offload_admission_patch.ANNOTATION_NODE_SELECTOR),
    ):
        if value := (meta.get(part) or {}).get(key):
            kept[part] = {key: value}
    return {"metadata": kept}
