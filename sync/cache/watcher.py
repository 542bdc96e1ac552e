"""Watches one resource from a resource version on, and stores the object of each event.

- Bookmarks advance the version. A watch that ends or breaks continues from the last version.
- An event whose object the store already has, from the response to a write of the bridge, is
  recognized by its first bytes and not parsed.
- A server that hangs does not close its watches. If the server sends bookmarks, a watch that is
  silent for `SILENCE` seconds ends, so that the next watch is requested; after `SILENT_WATCHES` of
  these in a row the server counts as one that sends no bookmarks.
- A watch that the server does not end in time is ended here.
- A response that contains no watch events raises `BrokenWatchError`, and so does an event that does
  not end; one that is larger than any object raises ResponseTooLarge (`sync.kube.response_limits`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import re
from collections.abc import Callable
from typing import NamedTuple

import aiohttp

from sync.base.resource_version import is_older, version_of
from sync.base.safe_callbacks import expire_now
from sync.cache.store import Key, Store, has_key, key_of
from sync.cache.store_writer import StoreWriter
from sync.kube.api_errors import Gone, MalformedResponse, ResponseTooLarge, from_status
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.kube.http2 import Http2Response
from sync.kube.response_limits import BODY_LIMIT, SMALL_BODY, LargeBodyTurn, next_part
from sync.kube.sockets import use_fast_keepalive
from sync.kube.transport import REQUEST_TIMEOUT
from translators.object_accessors import Object, uid_of

log = logging.getLogger(__name__)

#: The server ends a watch after a random time in this range of seconds, as in client-go.
WATCH_SECONDS = (300, 600)
#: Seconds beyond that time for which the server may be silent before the watch counts as broken.
WATCH_GRACE = 30.0
#: Seconds of silence that end a watch with bookmarks: the server sends one a minute
#: (defaultBookmarkFrequency in storage/cacher/cacher.go of k8s.io/apiserver), and may be busy.
SILENCE = 75.0
#: Contacts move the end of the watch at most this often in that time.
EXTENSIONS = 75
#: Silent watches in a row after which bookmarks are no longer expected: an API server without a
#: watch cache (as for Events) can take the place of one with it.
SILENT_WATCHES = 2
#: Seconds in which a large event must arrive.
LARGE_EVENT_SECONDS = REQUEST_TIMEOUT
#: Bytes of a watch that are buffered. A server ends a watch to which it cannot write for 50 to 100
#: ms (storage/cacher/time_budget.go in k8s.io/apiserver); the kernel buffers megabytes more.
READ_AHEAD = 2**17
#: Seconds: a watch that ends earlier without an event is a failure, as in client-go.
SHORT_WATCH = 1.0
#: Seconds: `Watcher.rewatch` leaves a watch alone to which the server responded more recently.
REWATCH_AGE = 10.0
#: The types of events (k8s.io/apimachinery/pkg/watch).
_EVENT_TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
#: Events handled before other tasks get a turn: about 5 ms of work.
BATCH = 50


class BrokenWatchError(MalformedResponse):
    """Raised if the server closes watches at once or sends no watch events; it is mostly a
    proxy."""


class Watcher:
    """The watches of one informer, one after the other. ``on_alive`` is called when a watch works:
    at its first event, and after `SHORT_WATCH`. With ``shares_connection`` the watch uses a
    connection together with others (`sync.kube.http2`)."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        path: str,
        query: dict[str, str],
        store: Store,
        writer: StoreWriter,
        rng: random.Random,
        on_alive: Callable[[], None],
        fast_keepalive: bool = False,
        shares_connection: bool = False,
    ) -> None:
        self.resource_version = ""
        """The version that the store is at; "" before a list, and when a new list is needed."""
        self.last_contact: float | None = None
        """The loop's time when the server last sent something; None before that."""
        self._client = client
        self._resource = resource
        self._path = path
        self._query = query
        self._store = store
        self._writer = writer
        self._rng = rng
        self._on_alive = on_alive
        self._fast_keepalive = fast_keepalive
        self._open = client.shared_stream if shares_connection else client.stream
        # The timeout that ends the open watch, and the loop's time when the server responded to its
        # request; infinite before that.
        self._timeout: asyncio.Timeout | None = None
        self._answered_at = math.inf
        # The loop's time at which the watch ends at the latest.
        self._end = math.inf
        # The loop's time from which a contact moves the end of the watch.
        self._next_extension = 0.0
        self._in_large_event = False
        self._sends_bookmarks = False
        # How many watches in a row ended because they were silent.
        self._silent = 0

    def rewatch(self) -> None:
        """Ends the watch that is open, unless the server responded to its request less than
        `REWATCH_AGE` ago, or still has to: that response will show whether the server works. The
        timeouts of a request and of a large event remain as they are."""
        age = asyncio.get_running_loop().time() - self._answered_at
        if age >= REWATCH_AGE and not self._in_large_event:
            self.interrupt()

    def interrupt(self) -> None:
        expire_now(self._timeout)

    async def watch(self) -> None:
        """Requests a watch and stores its events until it ends, or until `interrupt`. Raises the
        errors of `KubeClient.stream`, Gone where the server has compacted the version, and
        BrokenWatchError."""
        timeout = self._timeout = asyncio.timeout(None)
        try:
            async with timeout:
                await self._watch()
        except TimeoutError:
            if not timeout.expired():
                raise
            log.debug("%s: %s: ending the watch to request another", self._client.side, self)
            if self._in_large_event:
                self._client.limits.rejected["watch-event"] += 1
                raise self._broken("an event of the watch does not end") from None
            silent_for = asyncio.get_running_loop().time() - (self.last_contact or 0.0)
            if self._sends_bookmarks and silent_for >= SILENCE:
                self._silent += 1
                self._sends_bookmarks = self._silent < SILENT_WATCHES
        finally:
            self._timeout = None
            self._answered_at = math.inf
            self._in_large_event = False

    def __repr__(self) -> str:
        return f"<Watcher {self._resource} from {self.resource_version}>"

    def contact(self) -> None:
        now = self.last_contact = asyncio.get_running_loop().time()
        if self._sends_bookmarks and now >= self._next_extension:
            # Not at each of the thousands of events of a burst.
            step = SILENCE / EXTENSIONS
            self._expire_at(now + SILENCE + step)
            self._next_extension = now + step

    def _expire_at(self, end: float) -> None:
        """Ends the watch at this time of the loop, or at the end of every watch if it is earlier.
        Does nothing if the watch is ending."""
        self._next_extension = 0.0
        timeout = self._timeout
        if timeout is not None and not timeout.expired():
            planned = timeout.when()
            if planned is None or planned > asyncio.get_running_loop().time():
                timeout.reschedule(min(end, self._end))

    async def _watch(self) -> None:
        seconds = self._rng.randint(*WATCH_SECONDS)
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(seconds),
            **self._query,
        }
        self._client.metrics.watches[str(self._resource)] += 1
        loop = asyncio.get_running_loop()
        started, handled = loop.time(), 0
        # Later than the idle timeout of a connection that is dead from the start.
        self._end = started + seconds + 2 * WATCH_GRACE
        self._expire_at(self._end)
        async with self._open(
            self._path,
            query=query,
            answer_timeout=REQUEST_TIMEOUT,
            idle_timeout=seconds + WATCH_GRACE,
            read_ahead=READ_AHEAD,
        ) as response:
            self.contact()
            self._answered_at = loop.time()
            if self._fast_keepalive and isinstance(response, aiohttp.ClientResponse):
                _set_fast_keepalive(response)
            alive = loop.call_later(SHORT_WATCH, self._on_alive)
            turn = self._client.limits.turn()
            try:
                with self._client.map_read_errors(self._path):
                    handled = await self._read(response, turn)
            finally:
                alive.cancel()
                turn.release()
        if not handled and loop.time() - started < SHORT_WATCH:
            raise self._broken("the watch ended at once")

    async def _read(
        self, response: aiohttp.ClientResponse | Http2Response, turn: LargeBodyTurn
    ) -> int:
        """Handles events until the response ends; returns how many."""
        lines, handled = LineSplitter(), 0
        while chunk := await next_part(response.content):
            ended = lines.feed(chunk)
            if ended:  # a line that does not end is no sign of life
                self.contact()
            for line in ended:
                self.handle(line)
                if not handled:
                    self._on_alive()
                handled += 1
                if handled % BATCH == 0:
                    await asyncio.sleep(0)
            if lines.partial > SMALL_BODY:
                await self._await_large_event(lines.partial, turn)
            elif self._in_large_event:
                self._in_large_event = False
                turn.release()
                self._expire_at(self._end)
                self.contact()
        return handled

    async def _await_large_event(self, size: int, turn: LargeBodyTurn) -> None:
        """Waits for the turn of a large event, of which ``size`` bytes have arrived. Raises
        ResponseTooLarge."""
        if size > BODY_LIMIT:
            what = f"watch {self._resource}"
            raise self._client.limits.too_large("watch-event", "an event", BODY_LIMIT, what)
        await turn.take()
        if not self._in_large_event:
            self._in_large_event = True
            self._expire_at(asyncio.get_running_loop().time() + LARGE_EVENT_SECONDS)

    def handle(self, line: bytes) -> None:
        """Stores the event of one line, or skips one that is too large to be decoded. Raises the
        error of an ERROR event, BrokenWatchError, and Gone if a skipped object cannot be
        identified: a list then skips it."""
        if self._is_stored(line):
            return
        what = f"watch {self._resource}"
        try:
            event = self._client.limits.decode(line, what, reason="watch-event")
            kind, obj = event["type"], event["object"]
        except ResponseTooLarge as error:
            header = event_header(line)
            if header is None:
                raise Gone(str(error), code=410, side=self._client.side, what=what) from None
            self._writer.skip_large()
            self.resource_version = header.version
            return
        except (KeyError, TypeError):
            kind, obj = "", None
        if kind not in _EVENT_TYPES or not isinstance(obj, dict):
            # The event in whose place it came is repeated by the next watch. Not chained: the
            # parser's error quotes the line, which can contain a Secret.
            raise self._broken("the watch sent something that is no watch event") from None
        if kind != "ERROR" and not has_key(obj):
            self._writer.skip_malformed("metadata")
            return
        self._store_event(kind, obj, len(line))
        self.resource_version = version_of(obj) or self.resource_version

    def _store_event(self, kind: str, obj: Object, size: int) -> None:
        if kind == "ERROR":
            what = f"watch {self._resource}"
            raise from_status(obj, code=500, side=self._client.side, what=what)
        if kind == "DELETED":
            known = self._store.get(key_of(obj))
            # An object that leaves the selection is reported as deleted, and may have returned.
            if known is not None and uid_of(known) == uid_of(obj) and not is_older(obj, known):
                self._writer.delete(obj, known)
        elif kind in ("ADDED", "MODIFIED"):
            self._writer.put(obj, size=size)
        elif kind == "BOOKMARK":
            self._sends_bookmarks, self._silent = True, 0
            self.contact()

    def _is_stored(self, line: bytes) -> bool:
        """Whether the store already has the state in this event, from the response to a write.
        Parsing, which is most of the cost of an event, is then skipped."""
        header = event_header(line)
        if header is None:
            return False
        known = self._store.get(header.key)
        if known is None or version_of(known) != header.version or uid_of(known) != header.uid:
            return False
        self.resource_version = header.version
        return True

    def _broken(self, message: str) -> BrokenWatchError:
        return BrokenWatchError(message, side=self._client.side, what=f"watch {self._resource}")


def _set_fast_keepalive(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        use_fast_keepalive(sock)


# Parsing is most of the cost of an event, and about a third of the events of a pod repeat the
# response to a write of the bridge. So the identity comes from the first bytes of the line, and the
# full parse (orjson) runs only for events that the store does not have.

#: How an API server serializes an event (WatchEvent, TypeMeta and ObjectMeta in
#: k8s.io/apimachinery): these fields in this order; valid names need no JSON escapes.
_HEAD = re.compile(
    rb'\{"type":"(?:ADDED|MODIFIED)","object":\{"kind":"\w+","apiVersion":"[\w./-]+",'
    rb'"metadata":\{"name":"([^"\\]+)",(?:"generateName":"[^"\\]*",)?'
    rb'(?:"namespace":"([^"\\]+)",)?"uid":"([^"\\]+)","resourceVersion":"(\d+)"'
)


class EventHeader(NamedTuple):
    """Identity and version of the object in an ADDED or MODIFIED event."""

    key: Key
    uid: str
    version: str


def event_header(line: bytes) -> EventHeader | None:
    """The header of an ADDED or MODIFIED event; None for others, and for an unusual field order."""
    match = _HEAD.match(line)
    if match is None:
        return None
    name, namespace, uid, version = (str(part or b"", "utf-8") for part in match.groups())
    return EventHeader(Key(namespace, name), uid, version)


class LineSplitter:
    """Splits a stream into lines; the caller bounds `partial`."""

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def partial(self) -> int:
        """Bytes of the line that has not ended."""
        return len(self._partial)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The non-empty lines that the next chunk completes."""
        *ended, rest = chunk.split(b"\n")
        if ended and self._partial:
            ended[0] = bytes(self._partial) + ended[0]
            self._partial.clear()
        self._partial += rest
        return [line for line in ended if line]
