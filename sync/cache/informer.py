"""Lists and watches one resource of an API server into a store, and notifies handlers of changes.

Guarantees, after client-go's reflector:

- The store has a state that the server had. It may lag, but does not go back: an event that is
  older than the stored object is skipped. Only a full list may replace an object by an older one,
  after the server itself went back.
- Unchanged parts of an object remain the same Python objects (`sync.cache.interning`).
- Handlers run in the event loop, in order, once per observed change, with the old and the new
  object (None if there is none). Quick successive changes may be observed as one. A handler must
  not wait, raise, or change an object: it puts a key on a queue.
- `synced` is set when the first full list is in the store *and* its handlers have run.
- A watch that ends or breaks continues from the last version (`sync.cache.watcher`). If the server
  has compacted that version (410), the informer lists again, and reports objects that are missing
  in the list as deleted.
- An object for which a handler, an indexer or ``slim`` raises is counted, and does not affect other
  objects. The first of each place that raises is logged by name, further ones at debug level.
- An object of the remote that has the wrong shape, or exceeds the memory for all objects of the
  remote, is skipped and counted; the store keeps the previous state. `is_complete` is false then,
  and after an indexer or ``slim`` raised: an object that the store lacks may exist.
- Nothing waits after the normal end of a watch. If a version expires, or a watch ends in less than
  `SHORT_WATCH` seconds, for the second time in `STEADY` seconds, the next request waits, each time
  longer: a server whose watches all end so would otherwise be asked as fast as it responds.
- Failures of any kind are retried with backoff (`sync.cache.informer_health`); the store stays as
  it is. `retry_now` and a renewed credential end the wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from sync.base.backoff import Backoff
from sync.base.resource_version import is_newer, version_of
from sync.base.safe_callbacks import Callbacks, expire_now
from sync.cache.cache_share import CacheShare
from sync.cache.informer_health import InformerHealth
from sync.cache.interning import InternPool
from sync.cache.store import Indexer, Key, Store, has_key, key_of
from sync.cache.store_writer import Handler, StoreWriter
from sync.cache.stub import Stub
from sync.cache.watcher import BATCH, SHORT_WATCH, Watcher
from sync.kube.api_errors import Gone, KubeError
from sync.kube.api_resources import CONFIG_MAPS, SECRETS, Resource
from sync.kube.client import RUNNING_LIST_LIMIT, KubeClient, ListPages, Page
from translators.object_accessors import Object

log = logging.getLogger(__name__)

#: Objects per page of a list: some 2 MB of pods, parsed in 5 ms.
PAGE = 250
#: For resources whose objects can be larger than a megabyte: a page is in memory as a whole.
SHORT_PAGES = {CONFIG_MAPS: 20, SECRETS: 20}
#: Seconds without an early end of a watch after which the next one has no wait again.
STEADY = 60.0


class Informer:
    """One list and watch. `run` is a task of the caller's task group.

    ``slim`` reduces an object to what is stored, at least its name, namespace, UID and version;
    handlers get no more. It may change the object in place. ``indexed`` names the parts that
    ``indexers`` read (`Store`). ``pool`` interns parts of objects that resemble each other
    (`sync.cache.interning`). ``shape`` names the shape of a remote's objects, if it is not that of
    their kind (`translators.remote_shapes`). ``stub`` reduces an object for
    which there is no memory (`sync.cache.stub`); without it, such an object is skipped. ``share``
    bounds the memory of a store of the home cluster's objects; a store of the remote's has one of
    its own. ``watch_path`` is the path of the watch, if it is not that of the list. With
    ``fast_keepalive`` a dead server is detected in `sync.kube.sockets.FAST_KEEPALIVE_SECONDS`
    instead of 20 s. For ``shares_connection`` see `Watcher`. Errors of the types ``quiet`` are
    logged at debug level: the owner reports them.
    """

    #: Whether a watch that ends is followed by a list, and not by a watch from the last version.
    _lists_after_watch = False

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
        store: Store | None = None,
        slim: Callable[[Object], Object] | None = None,
        pool: InternPool | None = None,
        shape: str = "",
        stub: Callable[[Object], Stub] | None = None,
        share: CacheShare | None = None,
        watch_path: str = "",
        fast_keepalive: bool = False,
        shares_connection: bool = False,
        quiet: tuple[type[KubeError], ...] = (),
        rng: random.Random | None = None,
    ) -> None:
        self.client = client
        self.resource = resource
        self.labels = labels
        self.store = Store(indexers, reads=indexed) if store is None else store
        self.synced = asyncio.Event()
        rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._namespace = namespace
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        self._query = {key: value for key, value in selectors.items() if value}
        self._writer = StoreWriter(
            client,
            resource,
            self.store,
            slim=slim,
            pool=pool,
            shape=shape,
            stub=stub,
            share=share,
        )
        self._health = InformerHealth(client, resource, namespace=namespace, quiet=quiet, rng=rng)
        self._watcher = Watcher(
            client,
            resource,
            path=watch_path or resource.path(namespace=namespace),
            query=self._query,
            store=self.store,
            writer=self._writer,
            rng=rng,
            on_alive=self._health.succeeded,
            fast_keepalive=fast_keepalive,
            shares_connection=shares_connection,
        )
        self._synced_handlers: Callbacks[[]] = Callbacks(
            f"{client.side}: {resource} listed", on_defect=self._health.count_defect
        )
        # The waits after early ends of watches, and the loop's time of the last one.
        self._early_ends = Backoff(first=0.8, cap=30.0, rng=rng)
        self._ended_early_at = -math.inf
        # Objects that were written while a list was being read.
        self._written: set[Key] = set()
        # Ends the wait after a failure.
        self._waiting: asyncio.Timeout | None = None
        # Callers of `refresh`, which wait for a list that begins from now on.
        self._refreshing: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        where = f" in {self._namespace}" if self._namespace else ""
        state = "synced" if self.synced.is_set() else "not synced"
        problem = f", {type(self.error).__name__}" if self.error else ""
        return (
            f"<Informer {self.client.side} {self.resource}{where}: "
            f"{len(self.store)} objects, {state}{problem}>"
        )

    @property
    def error(self) -> KubeError | None:
        """Why the informer fails; None while it works."""
        return self._health.error

    @property
    def is_complete(self) -> bool:
        """Whether the store has all objects: none was skipped since the last list began."""
        return not self._writer.has_skipped

    @property
    def failing_since(self) -> float | None:
        """The loop's time of the first failure since it last worked; None while it works."""
        return self._health.failing_since

    def fails_for(self, seconds: float) -> bool:
        """Whether the informer has failed for at least so long."""
        since = self.failing_since
        return since is not None and asyncio.get_running_loop().time() - since >= seconds

    @property
    def last_contact(self) -> float | None:
        """The loop's time when the server last sent something, bookmarks included; None before the
        first list."""
        return self._watcher.last_contact

    @property
    def resource_version(self) -> str:
        """The version that the store is at; "" before the first list."""
        return self._watcher.resource_version

    def on_change(self, handler: Handler) -> None:
        """Calls ``handler(old, new)`` for each change from now on. Add handlers before `run`."""
        self._writer.on_change(handler)

    def on_state(self, handler: Callable[[Informer], None]) -> None:
        """Calls ``handler(self)`` when the informer begins to fail, when it fails with another type
        of error, and when it works again."""
        self._health.on_change(lambda: handler(self))

    def on_synced(self, handler: Callable[[], None]) -> None:
        """Calls ``handler`` when `synced` is set."""
        self._synced_handlers.add(handler)

    def rewatch(self) -> None:
        """Ends the watch, and requests it again from the last version: servers do not end a watch
        whose credential they would no longer accept."""
        self._watcher.rewatch()

    def retry_now(self) -> None:
        """Ends the wait after a failure, because the cause of the failure may be gone."""
        expire_now(self._waiting)

    async def refresh(self) -> None:
        """Lists again, and returns when the store has a state that the server had after this call.
        Waits while the server cannot be reached."""
        waiter = asyncio.get_running_loop().create_future()
        self._refreshing.append(waiter)
        self._watcher.interrupt()
        if self.error is None:
            self.retry_now()  # ends the wait after an early end
        await waiter

    def observe_write(self, obj: Object) -> None:
        """Stores the response to a write, so that the next read sees it at once. The informer owns
        the object from now on. The older of two states never replaces the newer, and an object
        whose deletion was observed does not return."""
        key = key_of(obj)
        if not self.resource_version:
            self._written.add(key)
        elif self.store.get(key) is None and not is_newer(version_of(obj), self.resource_version):
            return
        self._writer.put(obj, checked=True)

    async def list_now(self) -> list[Object]:
        """The objects as the server has them now, past the store. Raises KubeError."""
        page = await self.client.list(
            self.resource, namespace=self._namespace, labels=self.labels, most=RUNNING_LIST_LIMIT
        )
        return page.items

    def compact(self, obj: Object, less: Object) -> None:
        """Replaces ``obj`` by ``less``, the same state without parts that are no longer needed,
        unless the store has another state by now. Calls no handler."""
        if self.store.get(key_of(obj)) is obj:
            self.store.put(less)
            self._writer.resize(less)

    async def run(self) -> None:
        """Lists and watches until cancelled. Raises nothing else."""
        remove = self.client.credentials.renewed.add(self.retry_now)
        try:
            await self._run()
        finally:
            remove()
            self._writer.close()

    async def _run(self) -> NoReturn:
        while True:
            try:
                if not self.resource_version or self._refreshing:
                    waiters = list(self._refreshing)
                    self._watcher.resource_version = await self._list()
                    for waiter in waiters:
                        self._refreshing.remove(waiter)
                        if not waiter.done():
                            waiter.set_result(None)
                if not self._refreshing:
                    await self._watch()
            except Gone:
                log.info("%r: version %s expired, listing again", self, self.resource_version)
                self._watcher.resource_version = ""
                await self._ended_early()
            except KubeError as error:
                await self._wait(self._health.failed(error))
            except Exception as error:  # noqa: BLE001  # no response may end the informer
                await self._wait(self._health.failed_to_parse(error))

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._watcher.watch()
        finally:
            if self._lists_after_watch:
                self._watcher.resource_version = ""
        if loop.time() - began < SHORT_WATCH and not self._refreshing:
            await self._ended_early()

    async def _ended_early(self) -> None:
        """Waits, unless this has not happened for a while."""
        now = asyncio.get_running_loop().time()
        last, self._ended_early_at = self._ended_early_at, now
        if now - last < STEADY:
            await self._wait(self._early_ends.next())
        else:
            self._early_ends.reset()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds) as self._waiting:
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            pass
        finally:
            self._waiting = None

    async def _list(self) -> str:
        """Lists in pages, and stores each as it arrives. Returns the version of the list, which all
        pages share."""
        self._written.clear()
        self._writer.has_skipped = False
        self.client.metrics.lists[str(self.resource)] += 1
        limit = min(PAGE, SHORT_PAGES.get(self.resource, PAGE))
        query = {"limit": str(limit), **self._query}
        present: set[Key] = set()
        version = ""
        # The writer checks the shapes.
        pages = ListPages(
            self.client,
            self.resource,
            namespace=self._namespace,
            query=query,
            check=False,
            skip_large=True,
        )
        size = 0
        while pages.has_next:
            async with pages.next() as page:
                average = (pages.size - size) // (len(page.items) or 1)
                size = pages.size
                await self._store_page(page, present, average)
                version = page.resource_version
        for key in self.store.keys() - present:
            if self._namespace is not None and key.namespace != self._namespace:
                continue  # Other informers fill the same store.
            known = self.store.get(key)
            is_written_since = key in self._written and is_newer(version_of(known or {}), version)
            if known is not None and not is_written_since:
                self._writer.remove(key, known)
        self._listed()
        return version

    def _listed(self) -> None:
        """Records that the store has a full list."""
        self._health.succeeded()
        self._watcher.contact()
        if not self.synced.is_set():
            self.synced.set()
            self._synced_handlers()

    async def _store_page(self, page: Page, present: set[Key], size: int) -> None:
        """Stores the items, of ``size`` bytes each on average, and adds the keys of those that the
        store has to ``present``; empties the page."""
        # Popped from the end, so that parts that the store does not keep are freed at once.
        items = page.items
        items.reverse()
        for count in range(1, len(items) + 1):
            if count % BATCH == 0:
                await asyncio.sleep(0)
            item = items.pop()
            if not has_key(item):
                self._writer.skip_malformed("metadata")
                continue
            key = key_of(item)
            if page.is_metadata_only:
                self._writer.skip_large()
            else:
                # A list counts even if its versions are lower (a server restored from a backup),
                # except for what the bridge wrote while the list was being read.
                self._writer.put(item, size=size, allow_older=key not in self._written)
            if self.store.get(key) is not None:
                present.add(key)
