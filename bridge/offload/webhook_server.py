"""The HTTPS server that answers AdmissionReviews with the patch for a new pod.

Every answer admits the pod. A pod that cannot be parsed, or whose namespace is unknown, is admitted
unmodified. The server does not authenticate clients: a request reveals no more than a namespace's
policy. Connections are limited as those of the kubelet API (`bridge.net.accepted_connections`), and
the bytes that all requests hold to `MAX_HELD_BYTES`.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.net.accepted_connections import ServerConnections, TlsConnection
from bridge.net.http_server import HttpServer
from bridge.net.listening_socket import listening_socket
from bridge.net.memory_budget import MemoryBudget, MemoryShare
from bridge.offload.webhook_configuration import MUTATE_PATH
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_resources import NAMESPACES
from sync.kube.client import KubeClient
from translators import offload_admission_patch
from translators.object_accessors import Object, metadata, name_of

#: Size limit of a review in bytes: API servers accept requests of 3 MiB.
MAX_REVIEW_BYTES = 3 * 2**20
#: Limit of the bytes that all reviews and answers hold. A pod has some KiB, and an API server sends
#: as many reviews at a time as it creates pods.
MAX_HELD_BYTES = 32 * 2**20
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
        self._http: HttpServer | None = None
        self._listener: asyncio.Server | None = None
        # Requests are admitted after their body is read, so that a slow body counts as waiting.
        self._connections = ServerConnections()
        self._memory = MemoryBudget(MAX_HELD_BYTES)

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> int:
        """Listens, and returns the port. Raises PreflightError if it cannot listen."""
        http = HttpServer(self._respond, lingering_time=LINGER_SECONDS)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: TlsConnection(context, http, self._connections),
                sock=listening_socket(address, port),
            )
        except OSError as error:
            raise PreflightError(
                f"webhook: cannot listen on {address}:{port}: {error.strerror}; choose "
                "another with --address or --port"
            ) from error
        self._http = http
        listening: int = self._listener.sockets[0].getsockname()[1]
        return listening

    def begin_shutdown(self) -> None:
        """Reports not ready and closes connections after each answer, so that clients reconnect to
        another replica."""
        self._is_shutting_down = True

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._http is not None:
            await self._http.shutdown(LINGER_SECONDS)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        methods = {MUTATE_PATH: "POST", "/livez": "GET", "/readyz": "GET"}
        method = methods.get(request.path)
        if method is None:
            return web.Response(status=404, text=f"use {', '.join(methods)}\n")
        if request.method != method:
            return web.Response(status=405, text=f"use {method}\n", headers={"Allow": method})
        if request.path == MUTATE_PATH:
            return await self._review(request)
        reason = self._unready_reason() if request.path == "/readyz" else ""
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    def _unready_reason(self) -> str:
        if self._is_shutting_down:
            return "shutting down"
        synced = self.namespaces.synced.is_set()
        return self._not_ready() or ("" if synced else "the namespaces are not listed yet")

    async def _review(self, request: web.BaseRequest) -> web.StreamResponse:
        with self._memory.share(request) as share:
            raw = await _read_body(request, share)
            with self._connections.admitted(request):
                body = self._answer(raw)
            if body is None:
                return web.Response(status=400, text="not an AdmissionReview\n")
            response = web.Response(body=body, content_type="application/json")
            if self._is_shutting_down:
                response.force_close()
            share.hold(len(body))
            await response.prepare(request)
            await response.write_eof()
            return response

    def _answer(self, raw: bytes) -> bytes | None:
        """The answer to an AdmissionReview of admission.k8s.io/v1; None if it is none. (orjson
        limits the depth of what it reads and writes.)"""
        try:
            review: Any = orjson.loads(raw)
            admission: Object = review["request"]
            answer = {"uid": admission["uid"], "allowed": True, **self._patch(admission)}
            kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
            return orjson.dumps({**kind, "response": answer})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _patch(self, admission: Object) -> Object:
        name = admission.get("namespace") or ""
        if not isinstance(name, str):
            raise TypeError("a review's namespace is no text")
        namespace = self.namespaces.store.get(Key("", name))
        offloading = offload_admission_patch.offloading_of(namespace or {})
        if offloading is None:
            return {}
        patch = offload_admission_patch.admission_patch(admission["object"], offloading)
        if not patch:
            return {}
        text = base64.b64encode(orjson.dumps(patch)).decode()
        return {"patchType": "JSONPatch", "patch": text}


async def _read_body(request: web.BaseRequest, share: MemoryShare) -> bytes:
    """Raises HTTPRequestEntityTooLarge above `MAX_REVIEW_BYTES`."""
    body = bytearray()
    if (request.content_length or 0) > MAX_REVIEW_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_REVIEW_BYTES)
    async for part in request.content.iter_any():
        body += part
        if len(body) > MAX_REVIEW_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_REVIEW_BYTES)
        share.hold(len(body))
    return bytes(body)


def _slim(namespace: Object) -> Object:
    """The fields of a namespace that are kept."""
    meta = metadata(namespace)
    kept = {"name": name_of(namespace), "uid": meta.get("uid")}
    kept |= {"resourceVersion": meta.get("resourceVersion")}
    annotations = meta.get("annotations") or {}
    kept["annotations"] = {
        key: annotations[key] for key in offload_admission_patch.ANNOTATIONS if key in annotations
    }
    label = (meta.get("labels") or {}).get(offload_admission_patch.LABEL_OFFLOAD)
    kept["labels"] = {offload_admission_patch.LABEL_OFFLOAD: label}
    return {"metadata": kept}
