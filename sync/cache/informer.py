"""Keeps a store equal to what one API server says of one kind, and tells of each change.

Guarantees, after the semantics of client-go's reflector:

- The store is a state that the server had. Between a change and its event it lags; it does not go
  back (an event older than what the store holds for the same object is passed over), unless the
  server itself did and a full list says so.
- Parts of an object that did not change are the same objects as before (`sync.cache.interning`).
- Handlers are called in the loop, in order, once for each change that is seen, with the old and
  the new object (None where there is none). Changes in quick succession may be seen as one. A
  handler must not wait, raise, or change an object: it puts a key on a queue.
- `synced` is set when the first full list is in the store *and* its handlers have been called.
- A watch that ends or breaks goes on from the last version, bookmarks included. When the server
  has forgotten that version (410), everything is listed again, and what vanished meanwhile is
  told as deleted. A list that changed nothing calls no handler.
- An object that handlers, indexers or ``slim`` stumble over is logged by its name and counted; what
  these make of it is lost until it changes, and nothing else is. A state handler that raises is
  logged and counted (`sync.base.callbacks`); the watch and the other handlers go on.
- An answer that is no list or event of the API is a failure like any other, and counted.
- Failures back off from 0.8 to 30 s with jitter (client-go's numbers), to `AWAY_CAP` where nobody
  answered: a server that is away cannot be asked too much, and is to be found soon when it is
  back. One success resets that: a full list, or a watch that said something or lived for
  `SHORT_WATCH`. While it fails,
  `failing_since` tells since when and `error` why; the store stays as it was.
- `hurry` ends the wait after a failure: what it failed for may have changed. So does a credential
  that was read again.
- A server does not cut a watch whose credential it would no longer accept: `doubt` has it asked for
  anew. One that hangs does not cut it either: a watch whose bookmarks stay away is asked for anew,
  `SILENT_WATCHES` times in a row.
- `refresh` lists anew and returns when the store is no older than the call: for whoever must know
  what another process wrote until then.
- A server that forgets versions faster than it is listed is listed ever more seldom.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import aiohttp
import orjson

from sync.base import exceptions
from sync.base.backoff import Backoff
from sync.base.callbacks import Callbacks, expire_now
from sync.base.resource_version import newer, older, version_of
from sync.cache.interning import InternPool
from sync.cache.store import Indexer, Key, Store, key_of
from sync.cache.store_writer import Handler, StoreWriter
from sync.cache.watch_stream import LineSplitter, event_header
from sync.kube.client import KubeClient
from sync.kube.errors import (
    ApiServerCertificateError,
    Forbidden,
    Gone,
    KubeError,
    Unreachable,
    from_status,
)
from sync.kube.resources import CONFIG_MAPS, SECRETS, Resource
from sync.kube.sockets import use_fast_keepalive
from sync.kube.transport import REQUEST_TIMEOUT
from sync.runtime.log_fields import name_fields
from translators.objects import Object, uid_of

log = logging.getLogger(__name__)

#: The server ends a watch after a random time in this range of seconds (client-go: 5 to 10
#: minutes), so that the watches of many bridges spread over the API servers.
WATCH_SECONDS = (300, 600)
#: How long after that the server may be silent before its silence counts as a cut.
WATCH_GRACE = 30.0
#: Seconds of silence after which a watch is asked for anew, where the server sends bookmarks: it
#: sends one a minute (defaultBookmarkFrequency in storage/cacher/cacher.go of k8s.io/apiserver),
#: and may be busy.
SILENCE = 75.0
#: Watches in a row that may stay silent for as long without one bookmark; after that the server is
#: taken for one that sends none: one without a watch cache (as of Events) can take the place of
#: another.
SILENT_WATCHES = 2
#: Bytes of a watch that are read while its events wait for their turn. A server ends a watch to
#: which it cannot write for 50 to 100 ms (storage/cacher/time_budget.go in k8s.io/apiserver); of
#: one that selects by ``spec.nodeName`` it keeps no more than ten events (watch_cache.go).
READ_AHEAD = 2**20
#: A watch that ends sooner than this, in seconds, without an event is a failure, else a proxy that
#: closes them would be asked in a tight loop (client-go has the same limit).
SHORT_WATCH = 1.0
#: A watch that is younger, in seconds, was asked for recently enough not to be doubted.
DOUBT_AGE = 10.0
#: The longest wait, in seconds, before a server that does not answer is asked again.
AWAY_CAP = 5.0
#: Objects in a page of a list: some 2 MB of pods, which are parsed in 5 ms.
PAGE = 250
#: Of kinds whose objects can have more than a megabyte each: a page is in memory as a whole.
SHORT_PAGES = {CONFIG_MAPS: 20, SECRETS: 20}
#: Events handled before other tasks get a turn: about 5 ms of work.
BATCH = 50


class BrokenWatchError(Unreachable):
    """Something answers that does not hold a watch, or does not know its format."""


class Informer:
    """One list and watch. `run` is to be a task of the caller's task group.

    ``slim`` says what is kept of an object: at least its name, namespace, UID and version. Handlers
    get no more than that. It may change the object, which is nobody else's.
    ``indexed`` are the parts of what is kept that ``indexers`` read (`Store`), ``pool`` is for
    objects that are much alike (`sync.cache.interning`). ``lost_soon``: a server that is gone
    without a word is noticed in `sync.kube.sockets.FAST_KEEPALIVE_SECONDS` seconds, not in 20.
    ``warns_forbidden`` is False where the owner reports a 403: then it is logged at debug level
    here.
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
        indexed: Iterable[str] | None = None,
        slim: Callable[[Object], Object] | None = None,
        pool: InternPool | None = None,
        fast_keepalive: bool = False,
        warns_forbidden: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self.client = client
        self.resource = resource
        self.store = Store(indexers, reads=indexed)
        self.synced = asyncio.Event()
        self.error: KubeError | None = None
        """Why it fails now; None while it works."""
        self.failing_since: float | None = None
        """The loop's time of the first failure since it last worked; None while it works."""
        self.last_contact: float | None = None
        """The loop's time when the server last said something, be it the beginning of a watch or a
        bookmark; None before the first list."""
        self._namespace = namespace
        self.labels = labels
        self._fields = fields
        self._keeper = StoreWriter(client, resource, self.store, slim=slim, pool=pool)
        self._lost_soon = fast_keepalive
        self._warns_forbidden = warns_forbidden
        self._version = ""
        self._written: set[Key] = set()
        self._state_handlers: Callbacks[Informer] = Callbacks(
            f"{client.side}: watch of {resource}", on_defect=self._count_defect
        )
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._backoff = Backoff(first=0.8, cap=30.0, rng=self._rng)
        self._away = Backoff(first=0.8, cap=AWAY_CAP, rng=self._rng)
        self._relists = Backoff(first=0.8, cap=30.0, rng=self._rng)
        # The watch that stands, to be ended by `doubt`, and the loop's time of its beginning.
        self._standing: asyncio.Timeout | None = None
        self._standing_since = 0.0
        # The wait after a failure, to be ended by `hurry`.
        self._resting: asyncio.Timeout | None = None
        # Who waits for a list that is begun from now on.
        self._refreshing: list[asyncio.Future[None]] = []
        # Whether a watch has worked since the last list was begun.
        self._watched = False
        # Whether the server is known to send bookmarks.
        self._bookmarks = False
        # How many watches in a row were ended for their silence.
        self._silent = 0

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
        self._keeper.on_change(handler)

    def on_state(self, handler: Callable[[Informer], None]) -> None:
        """Calls ``handler(self)`` when it begins to fail, when that has another kind of reason,
        and when it works again."""
        self._state_handlers.add(handler)

    def rewatch(self) -> None:
        """Asks for the watch anew, from where it is, since the server may refuse it by now."""
        if asyncio.get_running_loop().time() - self._standing_since >= DOUBT_AGE:
            expire_now(self._standing)

    def retry_now(self) -> None:
        """Tries again now, where it waits after a failure."""
        expire_now(self._resting)

    async def refresh(self) -> None:
        """Waits until the store is a state that the server had after this call. While `run` runs;
        where the server cannot be asked, that is when it can be again."""
        waiter = asyncio.get_running_loop().create_future()
        self._refreshing.append(waiter)
        expire_now(self._standing)
        await waiter

    def observe_write(self, obj: Object) -> None:
        """Takes what a write of ours returned, so that the next read sees it at once. The object is
        the informer's from now on.

        Safe against the watch: the older of two states of an object never wins, and an object
        whose end the watch has already told does not come back.
        """
        key = key_of(obj)
        if not self._version:
            self._written.add(key)
        elif self.store.get(key) is None and not newer(version_of(obj), self._version):
            return
        self._keeper.put(obj)

    def compact(self, obj: Object, less: Object) -> None:
        """Keeps ``less`` in the place of ``obj``, if that is still in the store: what is left out
        has been dealt with. It is the same state of the same object, and no change."""
        if self.store.get(key_of(obj)) is obj:
            self.store.put(less)

    async def run(self) -> None:
        """Lists and watches until cancelled. Raises nothing else."""
        forget = self.client.config.renewed.add(self.retry_now)
        try:
            await self._run()
        finally:
            forget()

    async def _run(self) -> NoReturn:
        while True:
            try:
                if not self._version or self._refreshing:
                    waiters = list(self._refreshing)
                    self._version = await self._list()
                    self._refreshed(waiters)
                if not self._refreshing:
                    await self._stand()
            except Gone:
                log.info("%r: version %s is of no use, listing again", self, self._version)
                self._version = ""
                if not self._watched:
                    await asyncio.sleep(self._relists.next())
            except KubeError as error:
                self._fails(error)
                # While nobody answers, what an answer would be given does not grow.
                backoff = self._away if _is_away(error) else self._backoff
                await self._rest(backoff.next())
            except Exception as error:  # noqa: BLE001  # no answer may end the watch
                self._stumbles(error)
                await self._rest(self._backoff.next())

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds) as self._resting:
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            pass
        finally:
            self._resting = None

    # -- list ------------------------------------------------------------------------------

    async def _list(self) -> str:
        """Reads all in pages, each put into the store as it comes, so that a long list is never
        whole in memory. The state is that of the first page."""
        self._written.clear()
        self._watched = False
        self.client.metrics.lists[str(self.resource)] += 1
        query = {
            "limit": str(min(PAGE, SHORT_PAGES.get(self.resource, PAGE))),
            "labelSelector": self.labels,
            "fieldSelector": self._fields,
        }
        query = {key: value for key, value in query.items() if value}
        present: set[Key] = set()
        while True:
            page, token = await self.client.list_page(
                self.resource, namespace=self._namespace, query=query
            )
            await self._take(page.items, present)
            if not token:
                break
            query["continue"] = token
        for key in self.store.keys() - present:
            known = self.store.get(key)
            since = key in self._written and newer(version_of(known or {}), page.resource_version)
            if known is not None and not since:
                self._keeper.remove(key, known)
        self._works()
        self.last_contact = asyncio.get_running_loop().time()
        self.synced.set()
        return page.resource_version

    def _refreshed(self, waiters: list[asyncio.Future[None]]) -> None:
        """The list that these waited for is in the store."""
        for waiter in waiters:
            self._refreshing.remove(waiter)
            if not waiter.done():
                waiter.set_result(None)

    async def _take(self, items: list[Object], present: set[Key]) -> None:
        # From the end, so that what the store does not keep is gone as soon as it was looked at.
        items.reverse()
        for count in range(1, len(items) + 1):
            item = items.pop()
            key = key_of(item)
            present.add(key)
            # A list is the truth even where its versions are lower (a server restored from a
            # backup), but for what a write of ours returned while it was being read.
            self._keeper.put(item, back_too=key not in self._written)
            if count % BATCH == 0:
                await asyncio.sleep(0)

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
            self._was_silent()
        finally:
            self._standing = None

    def _was_silent(self) -> None:
        """Counts a watch that was ended, if that was for its silence."""
        silent_for = asyncio.get_running_loop().time() - (self.last_contact or 0.0)
        if self._bookmarks and silent_for >= SILENCE:
            self._silent += 1
            self._bookmarks = self._silent < SILENT_WATCHES

    async def _watch(self) -> None:
        """Takes events until the server ends the watch. Raises what broke it."""
        seconds = self._rng.randint(*WATCH_SECONDS)
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
            "labelSelector": self.labels,
            "fieldSelector": self._fields,
        }
        path = self.resource.path(namespace=self._namespace)
        query = {key: value for key, value in query.items() if value}
        self.client.metrics.watches[str(self.resource)] += 1
        loop = asyncio.get_running_loop()
        started, handled = loop.time(), 0
        async with self.client.stream(
            path,
            query=query,
            answer_timeout=REQUEST_TIMEOUT,
            idle_timeout=seconds + WATCH_GRACE,
            read_ahead=READ_AHEAD,
        ) as response:
            self._hears()
            if self._lost_soon:
                _lose_soon(response)
            lives = loop.call_later(SHORT_WATCH, self._watch_works)
            try:
                with self.client.map_read_errors(path):
                    lines = LineSplitter()
                    while chunk := await response.content.readany():
                        self._hears()
                        for line in lines.feed(chunk):
                            self._event(line)
                            if not handled:
                                self._watch_works()
                            handled += 1
                            if handled % BATCH == 0:
                                await asyncio.sleep(0)
            finally:
                lives.cancel()
        if not handled and loop.time() - started < SHORT_WATCH:
            raise BrokenWatchError(
                "the watch ended at once", side=self.client.side, what=f"GET {path}"
            )

    def _hears(self) -> None:
        now = self.last_contact = asyncio.get_running_loop().time()
        standing = self._standing
        if not self._bookmarks or standing is None or standing.expired():
            return
        ends = standing.when()
        if ends is None or ends > now:  # else it is to end now, by `doubt`
            standing.reschedule(now + SILENCE)

    def _event(self, line: bytes) -> None:
        if self._is_known(line):
            return
        try:
            event = orjson.loads(line)
            kind, obj = event["type"], event["object"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            kind, obj = "", None
        if not isinstance(obj, dict):
            # Without its cause: the parser's error quotes the line, which can hold a Secret.
            raise BrokenWatchError(
                "the watch sent something that is no event",
                side=self.client.side,
                what=f"watch {self.resource}",
            )
        if kind == "ERROR":
            raise from_status(obj, code=500, side=self.client.side, what=f"watch {self.resource}")
        if kind == "DELETED":
            known = self.store.get(key_of(obj))
            # Objects that leave the selection are told as deleted too, and can come back to it.
            if known is not None and uid_of(known) == uid_of(obj) and not older(obj, known):
                self._keeper.delete(obj, known)
        elif kind in ("ADDED", "MODIFIED"):
            self._keeper.put(obj)
        elif kind == "BOOKMARK":
            self._bookmarks, self._silent = True, 0
            self._hears()
        self._version = version_of(obj) or self._version

    def _is_known(self, line: bytes) -> bool:
        """Whether it tells what a write of ours returned and the store has: then it is not parsed,
        which is most of what an event costs."""
        head = event_header(line)
        if head is None:
            return False
        known = self.store.get(head.key)
        if known is None or version_of(known) != head.version or uid_of(known) != head.uid:
            return False
        self._version = head.version
        return True

    # -- state -----------------------------------------------------------------------------

    def _watch_works(self) -> None:
        self._watched = True
        self._relists.reset()
        self._works()

    def _works(self) -> None:
        self._backoff.reset()
        self._away.reset()
        if self.error is None:
            return
        what = (self.client.side, self.resource)
        level = logging.INFO if self._warns(self.error) else logging.DEBUG
        log.log(level, "%s: %s can be watched again", *what, extra=self._about())
        self.error = self.failing_since = None
        self._tell_state()

    def _fails(self, error: KubeError) -> None:
        self.client.metrics.watch_failures[str(self.resource)] += 1
        known, self.error = self.error, error
        if known is None:
            self.failing_since = asyncio.get_running_loop().time()
        if type(known) is not type(error):
            level = logging.WARNING if self._warns(error) else logging.DEBUG
            log.log(level, "cannot watch %s: %s", self.resource, error, extra=self._about())
            self._tell_state()

    def _stumbles(self, error: Exception) -> None:
        """An answer that is no list and no event of the API, in a way that nobody expected."""
        self._count_defect()
        level = logging.DEBUG if isinstance(self.error, BrokenWatchError) else logging.ERROR
        said = "%r: an answer that cannot be read: %s"
        log.log(level, said, self, exceptions.traced_summary(error), extra=self._about())
        # Without its cause: it can quote what was read.
        why = "the answer has another shape than an API server's"
        self._fails(BrokenWatchError(why, side=self.client.side, what=f"watch {self.resource}"))

    def _warns(self, error: KubeError) -> bool:
        return self._warns_forbidden or not isinstance(error, Forbidden)

    def _about(self) -> Mapping[str, Mapping[str, str]]:
        where = self._namespace or ""
        return name_fields(self.resource.kind, namespace=where, cluster=self.client.side)

    def _tell_state(self) -> None:
        self._state_handlers(self)

    def _count_defect(self) -> None:
        self.client.metrics.defects[str(self.resource)] += 1


def _lose_soon(response: aiohttp.ClientResponse) -> None:
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None:
        use_fast_keepalive(sock)


def _is_away(error: KubeError) -> bool:
    """Whether nobody answered."""
    answered = isinstance(error, ApiServerCertificateError | BrokenWatchError)
    return isinstance(error, Unreachable) and not answered
