"""Watches: the changes of one resource through a selector, as a stream of JSON lines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson
from aiohttp import web

from sync.kube.api_resources import Object, Resource
from tests.fakeapi import api_errors
from tests.fakeapi.change_log import Change, Follower
from tests.fakeapi.lists import options_invalid
from tests.fakeapi.resource_registry import Kind
from tests.fakeapi.selectors import Predicate, selection
from tests.fakeapi.store import Store

_INITIAL_END = {"k8s.io/initial-events-end": "true"}


@dataclass(slots=True, eq=False)
class Watch:
    """One open watch."""

    kind: Kind
    namespace: str | None
    query: dict[str, str]
    passes: Predicate
    follower: Follower
    transport: asyncio.Transport | None = None
    closing: bool = False

    @property
    def bookmarks(self) -> bool:
        """Whether the client requested bookmarks."""
        return _true(self.query, "allowWatchBookmarks")

    def send(self, event: Object, *, last: bool = False) -> None:
        """Sends an event that is no change; the stream ends after the ``last`` one."""
        self.follower.pending.append(event)
        self.closing = self.closing or last
        self.follower.wake.set()

    def shown(self, change: Change) -> Object | None:
        """The event of a change for this watch; None if it does not match."""
        if change.kind != self.kind or self.namespace not in (None, change.namespace):
            return None
        before = change.old is not None and self.passes(change.old)
        after = change.new is not None and self.passes(change.new)
        if not before and not after:
            return None
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": change.last}
        shown = change.last
        if change.new is not None and change.old is not None:
            # Left the selection: the last matching state with the version of the change.
            version = {"resourceVersion": str(change.revision)}
            shown = {**change.old, "metadata": {**change.old["metadata"], **version}}
        return {"type": "DELETED", "object": shown}


class Watches:
    """The open watches of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: set[Watch] = set()
        self.streaming_lists = True
        """Whether sendInitialEvents is supported (the WatchList feature gate)."""
        self.gone_in_stream = True
        """Whether 410 is sent as an ERROR event, or as the status code of the response."""
        self.sending = asyncio.Event()
        self.sending.set()
        """While cleared, watches neither send events nor end."""

    def open(self, resource: Resource | None = None) -> list[Watch]:
        """The open watches, of one resource or all."""
        return [w for w in self._open if resource is None or w.kind.resource == resource]

    async def serve(
        self, request: web.Request, kind: Kind, namespace: str | None, query: dict[str, str]
    ) -> web.StreamResponse:
        """Serves a watch until its client disconnects, it times out, or it is broken."""
        self._validate(query)
        passes = selection(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        try:
            follower, initial = self._start(kind, namespace, query, passes)
        except api_errors.ApiErrorResponse as refused:
            if refused.code != 410 or not self.gone_in_stream:
                raise
            follower, initial = Follower(), [{"type": "ERROR", "object": refused.status()}]
        watch = Watch(kind, namespace, query, passes, follower, request.transport)
        watch.closing = bool(initial) and initial[0]["type"] == "ERROR"
        follower.pending.extendleft(reversed(initial))
        follower.wake.set()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._open.add(watch)
        try:
            await response.prepare(request)
            seconds = float(query.get("timeoutSeconds") or 3600)
            try:
                async with asyncio.timeout(seconds):
                    await self._pump(watch, response)
            except TimeoutError:
                await self.sending.wait()
                await response.write_eof()
        finally:
            self._open.discard(watch)
            self._store.history.leave(follower)
        return response

    def bookmark(self, watch: Watch) -> Object:
        """A bookmark with the current version."""
        resource = watch.kind.resource
        version = str(self._store.history.revision)
        metadata: Object = {"resourceVersion": version, "creationTimestamp": None}
        return {
            "type": "BOOKMARK",
            "object": {
                "kind": resource.kind,
                "apiVersion": resource.api_version,
                "metadata": metadata,
            },
        }

    def _start(
        self, kind: Kind, namespace: str | None, query: dict[str, str], passes: Predicate
    ) -> tuple[Follower, list[Object]]:
        version = query.get("resourceVersion", "")
        history = self._store.history
        stream = _true(query, "sendInitialEvents")
        from_now = version in ("", "0") or stream
        if stream and int(version or 0) > history.revision:
            raise api_errors.too_new(int(version), history.revision)
        if not from_now or query.get("sendInitialEvents") == "false":
            return history.follow(history.revision if from_now else int(version)), []
        initial: list[Object] = [
            {"type": "ADDED", "object": obj}
            for obj in self._store.all(kind, namespace)
            if passes(obj)
        ]
        follower = history.follow(history.revision)
        if stream and _true(query, "allowWatchBookmarks"):
            end = self.bookmark(Watch(kind, namespace, query, passes, follower))
            end["object"]["metadata"]["annotations"] = _INITIAL_END
            initial.append(end)
        return follower, initial

    def _validate(self, query: dict[str, str]) -> None:
        match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
        if version and not version.isdecimal():
            raise api_errors.bad_request(f'Invalid value: "{version}": invalid resource version')
        if "sendInitialEvents" in query:
            if match != "NotOlderThan":
                why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
                raise options_invalid("resourceVersionMatch", why)
            if not self.streaming_lists:
                why = (
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate "
                    "is enabled"
                )
                raise options_invalid("sendInitialEvents", why)
        elif match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise options_invalid("resourceVersionMatch", why)

    async def _pump(self, watch: Watch, response: web.StreamResponse) -> None:
        while True:
            await watch.follower.wake.wait()
            await self.sending.wait()
            watch.follower.wake.clear()
            lines = [orjson.dumps(event) + b"\n" for event in self._drain(watch)]
            if lines:
                await response.write(b"".join(lines))
            if watch.closing:
                await response.write_eof()
                return

    def _drain(self, watch: Watch) -> list[Object]:
        events: list[Object] = []
        while watch.follower.pending:
            item = watch.follower.pending.popleft()
            event = watch.shown(item) if isinstance(item, Change) else item
            if event is not None:
                events.append(event)
        return events


def _true(query: dict[str, str], name: str) -> bool:
    return query.get(name, "") in ("1", "true", "True")
