"""Which namespaces of the remote this home made, as recorded at home.

Labels and annotations of a remote namespace prove nothing: whoever may create namespaces there can
write them. So home keeps a digest of the name and UID of each namespace that a bridge created.

- Before a namespace is created, an *intent* is recorded: a digest of its name and a random nonce,
  which the new namespace carries. Afterwards the UID takes its place. A bridge that was killed in
  between recognizes its namespace by the nonce.
- What other virtual nodes of this home recorded counts too, and is recorded for this one when it
  uses it: several nodes of one home can share a namespace.
- A node without a record, that was served before, had a bridge of an earlier version, or somebody
  deleted the record. Then the namespaces with this home's labels are adopted once, and logged.
- The record is written when a namespace is created or first used, and never by an idle bridge.
  Changes that come together are one write. A record that was deleted while the bridge runs comes
  back with the next write, from memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import cachetools

from sync.cache.informer import Informer
from sync.kube.errors import KubeError, NotLeaderError
from translators.identity import ANNOTATION_NONCE, Identity, is_owned
from translators.objects import Object, is_deleting, metadata, name_of, uid_of

log = logging.getLogger(__name__)

#: Hex digits of a digest: 64 bits, of which the remote chooses the UID and the bridge the nonce.
DIGITS = 16
#: Bytes of a nonce.
_NONCE = 16
#: Begins an intent in the record.
_INTENT = "+"
#: Seconds after which an entry that was read, and of which no namespace has been seen, is left out
#: of the next write: the cache can be behind, and a request of the previous bridge on its way.
STALE_SECONDS = 600.0
#: Seconds between attempts to read or write the record, and between looks at other nodes' records.
RETRY_SECONDS, LOOK_SECONDS = 1.0, 1.0


@dataclass(frozen=True, slots=True)
class OwnershipEntries:
    """The record as it was read."""

    own: frozenset[str] | None
    """What this virtual node recorded; None where it has no record."""
    others: frozenset[str] = frozenset()
    """What other virtual nodes of this home recorded."""
    fresh: bool = False
    """The node is new: there can be no namespaces of an earlier bridge."""


class OwnershipRecord(Protocol):
    """Where home keeps the record."""

    async def read(self) -> OwnershipEntries:
        """Raises KubeError."""
        ...

    async def write(self, entries: Collection[str]) -> None:
        """Replaces what this virtual node recorded. Raises KubeError."""
        ...


class NamespaceOwnership:
    """``namespaces`` is the informer of all namespaces of the remote."""

    def __init__(self, record: OwnershipRecord, namespaces: Informer, identity: Identity) -> None:
        self._record = record
        self._namespaces = namespaces
        self._identity = identity
        self._own: set[str] = set()
        self._others: frozenset[str] = frozenset()
        # Entries that were read and of which no namespace has been seen, and since when.
        self._unseen: frozenset[str] = frozenset()
        self._unseen_since = 0.0
        # By the name of a namespace that is being created.
        self._nonces: dict[str, str] = {}
        # UIDs of namespaces for which other nodes' records were read a moment ago.
        self._looked: cachetools.TTLCache[str, bool] = cachetools.TTLCache(1024, LOOK_SECONDS)
        # Whether the log says that namespaces are adopted.
        self._adopts = False
        self._writing = asyncio.Lock()
        # How many changes there were, and how many of them are in the record.
        self._changes = self._written = 0
        self.on_recognized: Callable[[Object], None] | None = None
        """Called with a namespace of another virtual node that is found to be this home's."""
        namespaces.on_change(self._changed)

    def owns(self, remote: Object) -> bool:
        """Whether a namespace of the remote is one that this home made, by UID or by the nonce of
        an intent. Its labels must say so too: somebody may have taken them off on purpose."""
        if not is_owned(remote, self._identity):
            return False
        return not self._entries_of(remote).isdisjoint(self._own | self._others)

    # -- at start --------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the record, for as long as it takes. The informer must be synced."""
        while True:
            try:
                recorded = await self._record.read()
                break
            except KubeError as error:
                log.warning("the record of namespaces cannot be read yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        self._others = recorded.others
        labelled = [it for it in self._namespaces.store if is_owned(it, self._identity)]
        if recorded.own is None:
            self._own = set() if recorded.fresh else self._adopted(labelled)
            self._changes += 1
            return
        known = [it for it in labelled if not self._entries_of(it).isdisjoint(recorded.own)]
        seen = frozenset().union(*map(self._entries_of, known))
        intents = {it for it in recorded.own & seen if it.startswith(_INTENT)}
        self._own = set(recorded.own - intents).union(map(_by_uid, known))
        self._unseen = recorded.own - seen
        self._unseen_since = asyncio.get_running_loop().time()
        if intents:
            self._changes += 1  # The UID takes the place of the intent.

    def _adopted(self, labelled: list[Object]) -> set[str]:
        if labelled and not self._adopts:
            self._adopts = True
            log.warning(
                "remote: home has no record of the namespaces that it made; these carry its labels "
                "and are taken for its own: %s",
                ", ".join(sorted(map(name_of, labelled))),
            )
        return {_by_uid(it) for it in labelled}

    async def run(self) -> None:
        """Writes what was found at start, once; it fails for as long as home is away."""
        while self._written < self._changes:
            try:
                await self._save()
            except NotLeaderError as error:
                log.debug("the record of namespaces is not ours to write: %s", error)
            except KubeError as error:
                log.warning("the record of namespaces could not be written: %s", error)
            if self._written < self._changes:
                await asyncio.sleep(RETRY_SECONDS)

    # -- a namespace comes -----------------------------------------------------------------

    async def record_intent(self, name: str) -> str:
        """Records that the namespace is about to be created; the nonce to put on it. Raises
        KubeError."""
        nonce = self._nonces.get(name)
        if nonce is None:
            nonce = secrets.token_hex(_NONCE)
            self._add(_by_nonce(name, nonce))
            try:
                await self._save()
            except KubeError:
                self._own.discard(_by_nonce(name, nonce))
                raise
            self._nonces[name] = nonce
        return nonce

    async def record_created(self, remote: Object) -> None:
        """Records the UID of a namespace that was created with the nonce of an intent. Where that
        fails, the intent does for it until the next write."""
        name = name_of(remote)
        nonce = self._nonces.pop(name, None)
        if nonce is not None:
            self._own.discard(_by_nonce(name, nonce))
        self._add(_by_uid(remote))
        try:
            await self._save()
        except KubeError as error:
            log.info("namespace %s: it is recorded by its intent until then: %s", name, error)

    async def verify(self, remote: Object) -> bool:
        """As `has`, after a look at what other virtual nodes of this home recorded meanwhile. What
        is used from now on is recorded for this node. Raises KubeError."""
        if not is_owned(remote, self._identity):
            return False
        if not self.owns(remote) and uid_of(remote) not in self._looked:
            self._looked[uid_of(remote)] = True
            self._others = (await self._record.read()).others
        if not self.owns(remote):
            return False
        if _by_uid(remote) not in self._own:
            self._add(_by_uid(remote))
            if self.on_recognized is not None:
                self.on_recognized(remote)
            await self._save()
        return True

    # -- the record ------------------------------------------------------------------------

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and (new is None or uid_of(new) != uid_of(old)):
            self._own.discard(_by_uid(old))  # The next write leaves it out.

    def _entries_of(self, remote: Object) -> set[str]:
        nonce = (metadata(remote).get("annotations") or {}).get(ANNOTATION_NONCE)
        found = {_by_uid(remote)}
        return found | {_by_nonce(name_of(remote), str(nonce))} if nonce else found

    def _add(self, entry: str) -> None:
        self._own.add(entry)
        self._changes += 1

    async def _save(self) -> None:
        """Writes the record; whoever waits for a write that is under way shares the next one."""
        wanted = self._changes
        async with self._writing:
            if self._written < wanted:
                done = self._changes
                self._forget_stale()
                await self._record.write(sorted(self._own))
                self._written = done

    def _forget_stale(self) -> None:
        if asyncio.get_running_loop().time() - self._unseen_since >= STALE_SECONDS:
            there = map(self._entries_of, self._namespaces.store)
            self._own -= self._unseen.difference(*there)
            self._unseen = frozenset()


def still_existing(own: Collection[str], namespaces: Collection[Object]) -> list[str]:
    """What of a record is of namespaces that are still there."""
    return sorted(set(entries(it for it in namespaces if not is_deleting(it))).intersection(own))


def entries(namespaces: Iterable[Object]) -> list[str]:
    """The entries of these namespaces of the remote."""
    return sorted(map(_by_uid, namespaces))


def _by_uid(remote: Object) -> str:
    return _digest(name_of(remote), uid_of(remote))


def _by_nonce(name: str, nonce: str) -> str:
    return _INTENT + _digest(name, nonce)


def _digest(name: str, secret: str) -> str:
    return hashlib.sha256(f"{name}/{secret}".encode()).hexdigest()[:DIGITS]
