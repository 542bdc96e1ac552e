"""Records at home which remote namespaces this home created.

Labels and annotations of a remote namespace prove nothing: every client that may create namespaces
there can write them. So home keeps a digest of the name and UID of each namespace that a bridge
created.

- Before a namespace is created, an *intent* is recorded: a digest of its name and a random nonce,
  which the new namespace carries. Afterwards an entry with the UID replaces the intent.
- Entries of other virtual nodes of this home count too, and are recorded for this node when it uses
  the namespace.
- For a node that was served before and has no record, the namespaces with this home's labels are
  adopted once, with a log line: an earlier version kept none, or it was deleted. The same applies
  where an administrator took the remote over from a home with the same identity: that home created
  namespaces that this home's record lacks.
- The record is written when a namespace is created or first used. Concurrent changes share one
  write. A record that is deleted while the bridge runs is restored by the next write.
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
from sync.kube.api_errors import KubeError, NotLeaderError
from translators.object_accessors import Object, is_deleting, metadata, name_of, uid_of
from translators.ownership_labels import ANNOTATION_NONCE, is_owned
from translators.virtual_node_identity import Identity

log = logging.getLogger(__name__)

#: Hex digits of a digest. No client can choose the digest's input: the API server chooses the UID,
#: the bridge the nonce.
DIGITS = 16
#: Bytes of a nonce.
_NONCE_BYTES = 16
#: Prefix of an intent.
_INTENT_PREFIX = "+"
#: Seconds after which an entry whose namespace was never seen is dropped: the cache can lag.
STALE_SECONDS = 600.0
#: Seconds between attempts to read or write the record, and between reads of other nodes' records.
RETRY_SECONDS, LOOK_SECONDS = 1.0, 1.0


@dataclass(frozen=True, slots=True)
class OwnershipEntries:
    """The entries of a record."""

    own: frozenset[str] | None
    """The entries of this virtual node; None if it has no record."""
    others: frozenset[str] = frozenset()
    """The entries of other virtual nodes of this home."""
    fresh: bool = False
    """The node is new: an earlier bridge cannot have created namespaces."""
    adopts: bool = False
    """The remote was taken over: a home with the same identity created namespaces meanwhile."""


class OwnershipRecord(Protocol):
    """Stores the entries at home."""

    async def read(self) -> OwnershipEntries:
        """Raises KubeError."""

    async def write(self, entries: Collection[str]) -> None:
        """Replaces the entries of this virtual node. Raises KubeError."""


class NamespaceOwnership:
    """``namespaces`` is the informer of all remote namespaces."""

    def __init__(self, record: OwnershipRecord, namespaces: Informer, identity: Identity) -> None:
        self._record = record
        self._namespaces = namespaces
        self._identity = identity
        self._own: set[str] = set()
        self._others: frozenset[str] = frozenset()
        # Entries that were read and whose namespace was never seen, and since when.
        self._unseen: frozenset[str] = frozenset()
        self._unseen_since = 0.0
        # By the name of a namespace that is being created.
        self._nonces: dict[str, str] = {}
        # UIDs of namespaces for which other nodes' records were read within LOOK_SECONDS.
        self._recently_read: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            1024, LOOK_SECONDS
        )
        # Whether the adoption of unrecorded namespaces was logged.
        self._adoption_logged = False
        self._writing = asyncio.Lock()
        # How often the entries were changed, and how many of these changes are written.
        self._changes = self._written = 0
        self.on_recognized: Callable[[Object], None] | None = None
        """Called with a namespace that is found in the record of another virtual node."""
        namespaces.on_change(self._changed)

    def owns(self, remote: Object) -> bool:
        """Whether this home created the namespace, by UID or by the nonce of an intent, and the
        namespace has its labels: an administrator may have removed them on purpose."""
        if not is_owned(remote, self._identity):
            return False
        return not _entries_of(remote).isdisjoint(self._own | self._others)

    async def load(self) -> None:
        """Reads the record, with retries until it succeeds. The informer must be synced."""
        while True:
            try:
                recorded = await self._record.read()
                break
            except KubeError as error:
                log.warning("cannot read the record of remote namespaces: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        self._others = recorded.others
        labelled = [it for it in self._namespaces.store if is_owned(it, self._identity)]
        if recorded.own is None:
            self._own = set()
            self._changes += 1
        else:
            self._use_record(recorded.own, labelled)
        if recorded.adopts or (recorded.own is None and not recorded.fresh):
            self._adopt([it for it in labelled if not self.owns(it)])

    def _use_record(self, recorded: frozenset[str], labelled: list[Object]) -> None:
        known = [each for each in labelled if not _entries_of(each).isdisjoint(recorded)]
        seen = frozenset().union(*map(_entries_of, known))
        intents = {it for it in recorded & seen if it.startswith(_INTENT_PREFIX)}
        self._own = set(recorded - intents).union(map(_uid_entry, known))
        self._unseen = recorded - seen
        self._unseen_since = asyncio.get_running_loop().time()
        if intents:
            self._changes += 1  # The entry with the UID replaces the intent.

    def _adopt(self, unrecorded: list[Object]) -> None:
        if unrecorded and not self._adoption_logged:
            self._adoption_logged = True
            log.warning(
                "remote: home has no record that it created these namespaces; they have its labels "
                "and are taken for its own: %s",
                ", ".join(sorted(map(name_of, unrecorded))),
            )
        for namespace in unrecorded:
            self._add(_uid_entry(namespace))

    async def run(self) -> None:
        """Writes the changes found by `load`, with retries until that succeeds."""
        while self._written < self._changes:
            try:
                await self._save()
            except NotLeaderError as error:
                log.debug("the record of remote namespaces is not written: %s", error)
            except KubeError as error:
                log.warning("cannot write the record of remote namespaces: %s", error)
            if self._written < self._changes:
                await asyncio.sleep(RETRY_SECONDS)

    async def record_intent(self, name: str) -> str:
        """Records the intent to create the namespace, and returns the nonce to put on it. Raises
        KubeError."""
        nonce = self._nonces.get(name)
        if nonce is None:
            nonce = secrets.token_hex(_NONCE_BYTES)
            self._add(_intent_entry(name, nonce))
            try:
                await self._save()
            except KubeError:
                self._own.discard(_intent_entry(name, nonce))
                raise
            self._nonces[name] = nonce
        return nonce

    async def record_created(self, remote: Object) -> None:
        """Records the UID of a namespace that was created with a nonce. If that fails, the intent
        identifies the namespace until the next write."""
        name = name_of(remote)
        nonce = self._nonces.pop(name, None)
        if nonce is not None:
            self._own.discard(_intent_entry(name, nonce))
        self._add(_uid_entry(remote))
        try:
            await self._save()
        except KubeError as error:
            log.info("namespace %s: recorded by its intent until the next write: %s", name, error)

    async def verify(self, remote: Object) -> bool:
        """As `owns`, with a fresh read of the entries of other virtual nodes. An owned namespace is
        recorded for this node. Raises KubeError."""
        if not is_owned(remote, self._identity):
            return False
        if not self.owns(remote) and uid_of(remote) not in self._recently_read:
            self._recently_read[uid_of(remote)] = True
            self._others = (await self._record.read()).others
        if not self.owns(remote):
            return False
        if _uid_entry(remote) not in self._own:
            self._add(_uid_entry(remote))
            if self.on_recognized is not None:
                self.on_recognized(remote)
            await self._save()
        return True

    def _changed(self, old: Object | None, new: Object | None) -> None:
        if old is not None and (new is None or uid_of(new) != uid_of(old)):
            self._own.discard(_uid_entry(old))  # Dropped by the next write.

    def _add(self, entry: str) -> None:
        self._own.add(entry)
        self._changes += 1

    async def _save(self) -> None:
        """Writes the record. Callers that wait for a running write share the next one."""
        required = self._changes
        async with self._writing:
            if self._written < required:
                written = self._changes
                if asyncio.get_running_loop().time() - self._unseen_since >= STALE_SECONDS:
                    existing = map(_entries_of, self._namespaces.store)
                    self._own -= self._unseen.difference(*existing)
                    self._unseen = frozenset()
                await self._record.write(sorted(self._own))
                self._written = written


def still_existing(own: Collection[str], namespaces: Collection[Object]) -> list[str]:
    """The entries of ``own`` whose namespaces exist and are not being deleted."""
    return sorted(set(entries(it for it in namespaces if not is_deleting(it))).intersection(own))


def is_recorded(remote: Object, recorded: Collection[str]) -> bool:
    """Whether ``recorded`` has the namespace, by its UID or by the nonce of an intent."""
    return not _entries_of(remote).isdisjoint(recorded)


def entries(namespaces: Iterable[Object]) -> list[str]:
    """The entries that record these namespaces as created by this home."""
    return sorted(map(_uid_entry, namespaces))


def _entries_of(remote: Object) -> set[str]:
    nonce = (metadata(remote).get("annotations") or {}).get(ANNOTATION_NONCE)
    uid_entry = {_uid_entry(remote)}
    return uid_entry | {_intent_entry(name_of(remote), str(nonce))} if nonce else uid_entry


def _uid_entry(remote: Object) -> str:
    return _digest(name_of(remote), uid_of(remote))


def _intent_entry(name: str, nonce: str) -> str:
    return _INTENT_PREFIX + _digest(name, nonce)


def _digest(name: str, secret: str) -> str:
    return hashlib.sha256(f"{name}/{secret}".encode()).hexdigest()[:DIGITS]
