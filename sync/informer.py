"""Keeps a store equal to what one API server says of one kind, and tells of each change.

Guarantees, after the semantics of client-go's reflector:

- The store is a state that the server had. Between a change and its event it lags; it does not go
  back (an event older than what the store holds for the same object is passed over), unless the
  server itself did and a full list says so.
- Handlers are called in the loop, in order, once for each change that is seen, with the old and
  the new object (None where there is none). Changes in quick succession may be seen as one. A
  handler must not wait, raise, or change an object: it puts a key on a queue.
- `synced` is set when the first full list is in the store *and* its handlers have been called.
- A watch that ends or breaks goes on from the last version, bookmarks included. When the server
  has forgotten that version (410), everything is listed again, and what vanished meanwhile is
  told as deleted. A list that changed nothing calls no handler.
- Failures back off from 0.8 to 30 s with jitter (client-go's numbers); one success resets that: a
  full list, or a watch that said something or lived for `SHORT_WATCH`. While it fails,
  `failing_since` tells since when and `error` why; the store stays as it was.
- A server does not cut a watch whose credential it would no longer accept: `doubt` has it asked for
  anew.
- A server that forgets versions faster than it is listed is listed ever more seldom.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping

import orjson

from sync.backoff import Backoff
from sync.kube.client import KubeClient
from sync.kube.errors import Gone, KubeError, Unreachable, from_status
from sync.kube.resources import Resource
from sync.store import Indexer, Key, Store, key_of
from translators.types import Object, metadata, uid_of

log = logging.getLogger(__name__)

Handler = Callable[[Object | None, Object | None], None]

#: The server ends a watch after a random time in this range of seconds (client-go: 5 to 10
#: minutes), so that the watches of many bridges spread over the API servers.
WATCH_SECONDS = (300, 600)
#: How long after that the server may be silent before its silence counts as a cut.
WATCH_GRACE = 30.0
#: A watch that ends sooner than this, in seconds, without an event is a failure, else a proxy that
#: closes them would be asked in a tight loop (client-go has the same limit).
SHORT_WATCH = 1.0
#: A watch that is younger, in seconds, was asked for recently enough not to be doubted.
DOUBT_AGE = 10.0
#: Events handled before other tasks get a turn: about 5 ms of work.
BATCH = 50


class Informer:
    """One list and watch. `run` is to be a task of the caller's task group.

    ``slim`` says what is kept of an object: at least its name, namespace, UID and version. Handlers
    get no more than that.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        indexers: Mapping[str, Indexer] | None = None,
        slim: Callable[[Object], Object] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.client = client
        self.resource = resource
        self.store = Store(indexers)
        self.synced = asyncio.Event()
        self.error: KubeError | None = None
        """Why it fails now; None while it works."""
        self.failing_since: float | None = None
        """The loop's time of the first failure since it last worked; None while it works."""
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._slim = slim or _slim
        self._version = ""
        self._written: set[Key] = set()
        self._handlers: list[Handler] = []
        self._state_handlers: list[Callable[[Informer], None]] = []
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._backoff = Backoff(first=0.8, cap=30.0, rng=self._rng)
        self._relists = Backoff(first=0.8, cap=30.0, rng=self._rng)
        # The watch that stands, to be ended by `doubt`, and the loop's time of its beginning.
        self._standing: asyncio.Timeout | None = None
        self._standing_since = 0.0
        # Whether a watch has worked since the last list was begun.
        self._watched = False

    def __repr__(self) -> str:
        where = f" in {self._namespace}" if self._namespace else ""
        state = "synced" if self.synced.is_set() else "not synced"
        problem = f", {type(self.error).__name__}" if self.error else ""
        return (
            f"<Informer {self.client.side} {self.resource}{where}: "
            f"{len(self.store)} objects, {state}{problem}>"
        )

    def on_change(self, handler: Handler) -> None:
        """Calls ``handler(old, new)`` for each change from now on. Add handlers before `run`."""
        self._handlers.append(handler)

    def on_state(self, handler: Callable[[Informer], None]) -> None:
        """Calls ``handler(self)`` when it begins to fail, when that has another kind of reason,
        and when it works again."""
        self._state_handlers.append(handler)

    def doubt(self) -> None:
        """Asks for the watch anew, from where it is, since the server may refuse it by now."""
        now = asyncio.get_running_loop().time()
        if self._standing is not None and now - self._standing_since >= DOUBT_AGE:
            self._standing.reschedule(now)

    def observe(self, obj: Object) -> None:
        """Takes what a write of ours returned, so that the next read sees it at once.

        Safe against the watch: the older of two states of an object never wins, and an object
        whose end the watch has already told does not come back.
        """
        key = key_of(obj)
        if not self._version:
            self._written.add(key)
        elif self.store.get(key) is None and not _newer(_version(obj), self._version):
            return
        self._put(self._slim(obj))

    async def run(self) -> None:
        """Lists and watches until cancelled. Raises nothing else."""
        while True:
            try:
                if not self._version:
                    self._version = await self._list()
                await self._stand()
            except Gone:
                log.info("%r: version %s is of no use, listing again", self, self._version)
                self._version = ""
                if not self._watched:
                    await asyncio.sleep(self._relists.next())
            except KubeError as error:
                self._fails(error)
                await asyncio.sleep(self._backoff.next())

    # -- list ------------------------------------------------------------------------------

    async def _list(self) -> str:
        self._written.clear()
        self._watched = False
        self.client.measures.lists[str(self.resource)] += 1
        page = await self.client.list(
            self.resource,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields,
            slim=self._slim,
        )
        present: set[Key] = set()
        for count, item in enumerate(page.items, start=1):
            key = key_of(item)
            present.add(key)
            # A list is the truth even where its versions are lower (a server restored from a
            # backup), but for what a write of ours returned while it was being read.
            self._put(item, back_too=key not in self._written)
            if count % BATCH == 0:
                await asyncio.sleep(0)
        for key in self.store.keys() - present:
            known = self.store.get(key)
            since = key in self._written and _newer(_version(known or {}), page.resource_version)
            if known is not None and not since:
                self._remove(key, known)
        self._works()
        self.synced.set()
        return page.resource_version

    # -- watch -----------------------------------------------------------------------------

    async def _stand(self) -> None:
        """A watch until it ends, or is doubted. Raises what broke it."""
        self._standing_since = asyncio.get_running_loop().time()
        standing = self._standing = asyncio.timeout(None)
        try:
            async with standing:
                await self._watch()
        except TimeoutError:
            if not standing.expired():
                raise
            log.debug("%r: asked for anew", self)
        finally:
            self._standing = None

    async def _watch(self) -> None:
        """Takes events until the server ends the watch. Raises what broke it."""
        seconds = self._rng.randint(*WATCH_SECONDS)
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
            "labelSelector": self._labels,
            "fieldSelector": self._fields,
        }
        path = self.resource.path(namespace=self._namespace)
        query = {key: value for key, value in query.items() if value}
        self.client.measures.watches[str(self.resource)] += 1
        loop = asyncio.get_running_loop()
        started, handled = loop.time(), 0
        async with self.client.stream(path, query=query, idle=seconds + WATCH_GRACE) as response:
            lives = loop.call_later(SHORT_WATCH, self._watch_works)
            try:
                with self.client.reading(path):
                    async for line in _lines(response.content.iter_any()):
                        self._event(line)
                        if not handled:
                            self._watch_works()
                        handled += 1
                        if handled % BATCH == 0:
                            await asyncio.sleep(0)
            finally:
                lives.cancel()
        if not handled and loop.time() - started < SHORT_WATCH:
            raise Unreachable("the watch ended at once", side=self.client.side, what=f"GET {path}")

    def _event(self, line: bytes) -> None:
        try:
            event = orjson.loads(line)
            kind, obj = event["type"], event["object"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            kind, obj = "", None
        if not isinstance(obj, dict):
            # Without its cause: the parser's error quotes the line, which can hold a Secret.
            raise Unreachable(
                "the watch sent something that is no event",
                side=self.client.side,
                what=f"watch {self.resource}",
            )
        if kind == "ERROR":
            raise from_status(obj, code=500, side=self.client.side, what=f"watch {self.resource}")
        if kind == "DELETED":
            known = self.store.get(key_of(obj))
            # Objects that leave the selection are told as deleted too, and can come back to it.
            if known is not None and uid_of(known) == uid_of(obj) and not _older(obj, known):
                self._remove(key_of(obj), self._slim(obj))
        elif kind in ("ADDED", "MODIFIED"):
            self._put(self._slim(obj))
        self._version = _version(obj) or self._version

    # -- state -----------------------------------------------------------------------------

    def _put(self, obj: Object, *, back_too: bool = False) -> None:
        old = self.store.get(key_of(obj))
        if old is not None and not (back_too or _newer(_version(obj), _version(old))):
            return
        if old is not None and uid_of(old) == uid_of(obj):
            if _version(old) == _version(obj):
                return
        elif old is not None:
            # One object took the name of another, and the deletion was not seen: tell both.
            self._remove(key_of(obj), old)
            old = None
        self.store.put(obj)
        self._tell(old, obj)

    def _remove(self, key: Key, last: Object) -> None:
        self.store.remove(key)
        self._tell(last, None)

    def _tell(self, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            handler(old, new)

    def _watch_works(self) -> None:
        self._watched = True
        self._relists.reset()
        self._works()

    def _works(self) -> None:
        self._backoff.reset()
        if self.error is None:
            return
        log.info("%s: %s can be watched again", self.client.side, self.resource)
        self.error = self.failing_since = None
        self._tell_state()

    def _fails(self, error: KubeError) -> None:
        self.client.measures.watch_failures[str(self.resource)] += 1
        known, self.error = self.error, error
        if known is None:
            self.failing_since = asyncio.get_running_loop().time()
        if type(known) is not type(error):
            log.warning("cannot watch %s: %s", self.resource, error)
            self._tell_state()

    def _tell_state(self) -> None:
        for handler in self._state_handlers:
            handler(self)


def _version(obj: Object) -> str:
    return str(metadata(obj).get("resourceVersion") or "")


def _newer(one: str, other: str) -> bool:
    """Whether version ``one`` is a later one than ``other``.

    Versions are decimal numbers that grow in all servers that keep to Kubernetes' conformance
    (KEP-5504); where they are not, any other version counts as later.
    """
    if one.isdecimal() and other.isdecimal():
        return int(one) > int(other)
    return one != other


def _older(one: Object, other: Object) -> bool:
    """Whether object ``one`` is surely of an earlier version than ``other``."""
    versions = _version(one), _version(other)
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])


def _slim(obj: Object) -> Object:
    """Without managed fields, often a third of an object's size and read by nobody here."""
    if "managedFields" in metadata(obj):
        meta = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
        return {**obj, "metadata": meta}
    return obj


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Splits at newlines, whatever the length of a line: an object can have megabytes."""
    parts: list[bytes] = []
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            parts.append(line)
            whole = b"".join(parts)
            parts.clear()
            if whole:
                yield whole
        if rest:
            parts.append(rest)
