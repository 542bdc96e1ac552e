"""What answers an API server that asks how a new pod is to be changed.

Every answer allows the pod. One that cannot be read, or of a namespace that is not known yet, is
allowed as it is. Whoever reaches it can ask what it would do to a pod, and learns no more than a
policy's name.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from bridge.offload import policy as objects
from bridge.preflight.checks import PreflightError
from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.resources import NAMESPACES
from sync.store import Key
from translators import offload
from translators.types import Object, metadata, name_of

#: Bytes of a review at the most: a pod of 1.5 MB, which is etcd's bound, and what is around it.
REVIEW_MAX = 4 * 2**20

#: Why it is not ready; "" where it is.
Ready = Callable[[], str]


class ReviewServer:
    """It, and the offloaded namespaces that it knows: `namespaces.run` is the caller's to run."""

    def __init__(self, home: KubeClient, *, ready: Ready = lambda: "") -> None:
        self.namespaces = Informer(home, NAMESPACES, labels=offload.LABEL, slim=_slim)
        self._ready = ready
        self._ending = False
        self._runner: web.AppRunner | None = None

    async def start(self, address: str, port: int, context: ssl.SSLContext) -> int:
        """Listens, and says at which port. Raises PreflightError where that cannot be."""
        app = web.Application(client_max_size=REVIEW_MAX)
        app.router.add_post(objects.PATH, self._review)
        app.router.add_get("/livez", _alive)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise PreflightError(
                f"the webhook cannot listen on {address}:{port}: {error.strerror}; choose "
                "another with --address or --port"
            ) from error
        listening: int = self._runner.addresses[0][1]
        return listening

    def ending(self) -> None:
        """It is about to end: who asks goes elsewhere the next time."""
        self._ending = True

    async def end(self) -> None:
        """Listens no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _readyz(self, _: web.Request) -> web.Response:
        why = "it ends" if self._ending else self._ready()
        why = why or ("" if self.namespaces.synced.is_set() else "the namespaces are not known yet")
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")

    async def _review(self, request: web.Request) -> web.Response:
        try:
            review: Any = await request.json()
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
        policy = offload.policy_of(namespace) if namespace is not None else None
        if namespace is None or policy is None:
            return {}
        patch = offload.patch(asked["object"], policy, offload.selector_of(namespace))
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
    for part, key in (("labels", offload.LABEL), ("annotations", offload.ANNOTATION_SELECTOR)):
        if value := (meta.get(part) or {}).get(key):
            kept[part] = {key: value}
    return {"metadata": kept}
