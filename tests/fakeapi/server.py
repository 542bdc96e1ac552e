"""The fake API server: its socket, its request log, and what tests can do to it.

Use as an async context manager, or with `start` and `stop`: a restarted server keeps its port and
its objects. `put`, `update`, `delete` and `remove` act as other users of the cluster: watches
report their changes, the request log does not.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from fnmatch import fnmatchcase
from typing import Any

from aiohttp import web

from sync.kube.api_resources import NAMESPACES, PODS, Object, Resource
from tests.fakeapi import api_errors, deletion, http_messages, patching
from tests.fakeapi.faults import Fault, Faults
from tests.fakeapi.request_handlers import Api, bind
from tests.fakeapi.request_log import WRITES, LoggedRequest
from tests.fakeapi.resource_registry import Kind, Registry
from tests.fakeapi.store import Store, copy
from tests.fakeapi.watches import Watch, Watches
from translators.timestamps import parse_time

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

#: A port of 127.0.0.1 that refuses connections, of a server that is away: it is not in the range
#: from which the system chooses the ports of other servers.
CLOSED_PORT = 1
#: Namespaces of a new cluster.
FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-system")


class FakeApi:
    """One API server on 127.0.0.1. The system chooses the port at the first start."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        namespaces_must_exist: bool = True,
    ) -> None:
        self.store = Store(Registry(), namespaces_must_exist=namespaces_must_exist)
        self.api = Api(self.store)
        self.watches = Watches(self.store)
        self.faults = Faults()
        self.log: list[LoggedRequest] = []
        self.token = token
        """The required bearer token; None accepts every request."""
        self.port = 0
        """The port; 0 before a `start` lets the system choose."""
        self.tls = tls
        """The TLS context of the next `start`; None for plain http."""
        self._routes: list[tuple[str, str, Handler]] = []
        self._running = asyncio.Event()
        self._running.set()
        self._changed = asyncio.Event()
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._reservation: socket.socket | None = None
        for name in FIRST_NAMESPACES:
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    @property
    def url(self) -> str:
        """Scheme, address and port."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeApi:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._release_port()

    async def start(self) -> None:
        """Starts to listen; after `stop`, on the same port and with the same objects."""
        self._web = web.Server(self._serve, handler_cancellation=True, access_log=None)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._web, "127.0.0.1", self.port, ssl=self.tls, reuse_address=True
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._release_port()

    async def stop(self) -> None:
        """Refuses connections and resets open ones, as a node that goes down. The port stays
        reserved, so that no server of another test gets it."""
        if self._listener is None or self._web is None:
            return
        for listening in self._listener.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        # Connections that are being accepted must exist first, or they would stay open.
        for _ in range(3):
            await asyncio.sleep(0)
        self._listener.close()
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reservation.bind(("127.0.0.1", self.port))
        for connection in self._web.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._web.shutdown(0)
        await self._listener.wait_closed()
        self._listener = self._web = None

    def _release_port(self) -> None:
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def pause(self) -> None:
        """Accepts connections and requests without responding; watches fall silent, too."""
        self._running.clear()
        self.mute_watches()

    def resume(self) -> None:
        """Ends `pause`."""
        self._running.set()
        self.unmute_watches()

    def fail(self, fault: Fault) -> Fault:
        """Adds a fault, which applies to matching requests from now on."""
        return self.faults.add(fault)

    def heal(self, fault: Fault | None = None) -> None:
        """Removes one fault, or all."""
        self.faults.lift(fault)

    def compact(self) -> None:
        """Compacts the history: watches and continue tokens up to now get 410.

        Uses up one version, since 410 needs a version before the oldest known one."""
        self.store.history.revision += 1
        self.store.history.compact()

    def break_watches(self, resource: Resource | None = None) -> int:
        """Resets the connections of open watches; returns their number."""
        broken = self.watches.open(resource)
        for watch in broken:
            if watch.transport is not None:
                watch.transport.abort()
        return len(broken)

    def end_watches(self, resource: Resource | None = None) -> None:
        """Ends open watches gracefully, as at their timeoutSeconds."""
        for watch in self.watches.open(resource):
            watch.closing = True
            watch.follower.wake.set()

    def expire_watches(self, resource: Resource | None = None) -> None:
        """Sends a 410 ERROR event to open watches and ends them."""
        gone = api_errors.expired("The resourceVersion for the provided watch is too old.")
        for watch in self.watches.open(resource):
            watch.send({"type": "ERROR", "object": gone.status()}, last=True)

    def mute_watches(self) -> None:
        """Holds the events of open watches back until `unmute_watches`."""
        self.watches.sending.clear()

    def unmute_watches(self) -> None:
        """Sends the events that were held back, and later ones."""
        self.watches.sending.set()

    def bookmark(self, resource: Resource | None = None) -> None:
        """Sends a bookmark to the open watches that requested bookmarks."""
        for watch in self.watches.open(resource):
            if watch.bookmarks:
                watch.send(self.watches.bookmark(watch))

    def route(self, method: str, path: str, handler: Handler) -> None:
        """Serves matching requests (path as in `Fault`) with a handler of the test."""
        self._routes.append((method, path, handler))

    def requests(self, method: str = "*", path: str = "*") -> list[LoggedRequest]:
        """The logged requests that match."""
        return [e for e in self.log if method in ("*", e.method) and fnmatchcase(e.path, path)]

    def writes(self, path: str = "*") -> list[LoggedRequest]:
        """The logged requests that change something, without reviews."""
        return [e for e in self.requests(path=path) if e.method in WRITES and not e.review]

    def clear_log(self) -> None:
        """Clears the request log."""
        self.log.clear()

    def open_watches(self, resource: Resource | None = None) -> list[Watch]:
        """The watches that are open now."""
        return self.watches.open(resource)

    async def until(self, condition: Callable[[], object], *, timeout: float = 120.0) -> None:
        """Waits until the condition is true; checks it after each request and each change.

        Raises AssertionError after ``timeout`` seconds: the default only ends a test that hangs.
        """
        # Polls for what no request shows, such as a client that disconnected.
        poll = 0.02
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(poll):
                            await self._changed.wait()
                    except TimeoutError:
                        poll = min(1.2 * poll, 0.25)
        except TimeoutError:
            raise AssertionError(f"not true within {timeout} s") from None

    def register(self, resource: Resource, *, status: bool = True) -> None:
        """Serves another resource, as a CustomResourceDefinition does."""
        kind = Kind(resource, status=status, generation=True, fields=None, builtin=False)
        self.store.registry.add(kind)

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """A copy of the object. Raises ApiErrorResponse (404)."""
        return copy(self.store.get(self._kind(resource), namespace or "", name))

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """A copy of the object, or None."""
        obj = self.store.find(self._kind(resource), namespace or "", name)
        return None if obj is None else copy(obj)

    def objects(self, resource: Resource, namespace: str | None = None) -> list[Object]:
        """Copies of the objects in a namespace, or in all."""
        return [copy(obj) for obj in self.store.all(self._kind(resource), namespace)]

    def put(self, obj: Object) -> Object:
        """Creates or replaces the object, status included, and its namespace if it is missing. The
        server sets uid, resourceVersion and the like."""
        kind = self.store.registry.of_object(obj)
        meta = obj["metadata"]
        namespace = meta.get("namespace", "default") if kind.resource.namespaced else ""
        if namespace and self.find(NAMESPACES, namespace) is None:
            self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        old = self.store.find(kind, namespace, meta.get("name", ""))
        if old is None:
            body = {**obj, "metadata": {**meta, "resourceVersion": ""}}
            old = self.store.create(kind, namespace, body)
            if "status" not in obj or obj["status"] == old.get("status"):
                return self._notify(old)
            return self.update(
                kind.resource, old["metadata"]["name"], {"status": obj["status"]}, namespace
            )
        kept = {k: v for k, v in old["metadata"].items() if k not in ("labels", "annotations")}
        status = {"status": old["status"]} if "status" in old else {}
        return self._notify(
            self._commit(kind, old, {**status, **obj, "metadata": {**meta, **kept}})
        )

    def update(
        self, resource: Resource, name: str, change: Object, namespace: str | None = None
    ) -> Object:
        """Applies a merge patch to spec and status alike, without validation."""
        kind = self._kind(resource)
        old = self.store.get(kind, namespace or "", name)
        return self._notify(self._commit(kind, old, patching.merge(old, change)))

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
    ) -> Object:
        """Deletes as a user does: with grace period and finalizers."""
        kind = self._kind(resource)
        options: Object = {}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        old = self.store.get(kind, namespace or "", name)
        return self._notify(deletion.delete(self.store, kind, old, options))

    def remove(self, resource: Resource, name: str, namespace: str | None = None) -> Object:
        """Removes the object at once, without grace period and finalizers."""
        kind = self._kind(resource)
        return self._notify(self.store.remove(kind, self.store.get(kind, namespace or "", name)))

    def bind(self, name: str, node: str, namespace: str = "default") -> Object:
        """Binds a pod to a node, as the scheduler does."""
        kind = self._kind(PODS)
        pod = self.store.get(kind, namespace, name)
        return self._notify(bind(self.store, kind, pod, node))

    def _kind(self, resource: Resource) -> Kind:
        return self.store.registry.of(resource)

    def _commit(self, kind: Kind, old: Object, new: Object) -> Object:
        new = copy(new)
        if new == old:
            return old
        if kind.generation and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        return self.store.commit(kind, old, new)

    def _notify(self, obj: Object) -> Object:
        self._changed.set()
        return copy(obj)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        entry = await http_messages.entry(request)
        self.log.append(entry)
        self._changed.set()
        await self._running.wait()
        try:
            response = await self._answer(request, entry)
        except api_errors.ApiErrorResponse as refused:
            response = http_messages.as_json(refused.code, refused.status())
        if not response.prepared:
            now = parse_time(self.api.clock()).timestamp()
            response.headers["Date"] = formatdate(now, usegmt=True)
        entry.code.append(response.status)
        self._changed.set()
        return response

    async def _answer(self, request: Any, entry: LoggedRequest) -> web.StreamResponse:
        fault = self.faults.for_request(entry)
        if fault is not None and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault is not None and (fault.drop == "before" or fault.answers):
            return http_messages.cut(request) if fault.drop else http_messages.failure(fault)
        if self.token is not None and entry.authorization != f"Bearer {self.token}":
            raise api_errors.ApiErrorResponse(401, "Unauthorized", "Unauthorized")
        for method, path, handler in self._routes:
            if method in ("*", entry.method) and fnmatchcase(entry.path, path):
                return await handler(request)
        if entry.watch:
            target, query = self.store.registry.resolve(entry.path), dict(entry.query)
            if target.name is not None:
                query["fieldSelector"] = f"metadata.name={target.name}"
            return await self.watches.serve(request, target.kind, target.namespace, query)
        code, body = self.api.answer(entry)
        if fault is not None and fault.drop == "after":
            return http_messages.cut(request)
        return http_messages.as_json(code, body)
