"""The pages of one list, requested one after the other.

- A page that exceeds the limits of `sync.kube.response_limits` is requested again with fewer
  objects, down to one: objects may be large, but not all of a list at once.
- One object that exceeds them is an error, or with ``skip_large`` a page of its metadata.
- A server cannot keep a list going for ever: a repeated or malformed ``continue`` token, and more
  than `MAX_PAGES`, raise MalformedResponse.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sync.kube.api_errors import MalformedResponse, ResponseTooLarge
from sync.kube.api_resources import Object, Resource

if TYPE_CHECKING:
    from sync.kube.client import KubeClient

#: Pages of a list. Kubernetes supports 150,000 pods; with one large object in each page this is
#: still as much as an etcd stores (8 GiB).
MAX_PAGES = 10_000
#: Characters of a ``continue`` token; API servers' have less than a thousand.
TOKEN_LIMIT = 8192
#: Bytes of JSON of a list that is in memory as a whole: in a command, those of 30,000 pods, and in
#: a running bridge what it lists of a remote besides its caches.
LIST_LIMIT, RUNNING_LIST_LIMIT = 2**28, 2**24
#: Bytes that an object of a reduced list counts.
REDUCED_SIZE = 256
#: A page that is too large is requested with this part of its objects.
_FEWER = 8


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of a list, with the resource version of that state."""

    items: list[Object]
    resource_version: str
    is_metadata_only: bool = False
    """Whether the objects have their metadata alone, because they are too large."""


class ListPages:
    """The pages of a list. ``query`` includes ``limit``; ``check``: see `KubeClient.list_page`."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None,
        query: Mapping[str, str],
        check: bool = True,
        skip_large: bool = False,
    ) -> None:
        self.has_next = True
        """Whether the list has further pages."""
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._query = dict(query)
        self._check_shapes = check
        self._skip_large = skip_large
        self._limit = self._query["limit"]
        self._turn = client.limits.turn("page")
        # Hashes of the tokens so far.
        self._tokens: set[int] = set()
        self._count = 0

    def __repr__(self) -> str:
        return f"<ListPages {self._resource}: {self._count} pages>"

    @property
    def size(self) -> int:
        """Bytes of JSON so far."""
        return self._turn.size

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Page]:
        """Requests the next page; a large one holds its turn until the context ends."""
        try:
            page, token = await self._request()
            self._count += 1
            self.has_next = bool(token)
            if token:
                self._check(token)
                self._query["continue"] = token
            yield page
        finally:
            self._turn.release()

    async def _request(self) -> tuple[Page, str]:
        metadata_only = False
        while True:
            try:
                found = await self._client.list_page(
                    self._resource,
                    namespace=self._namespace,
                    query=self._query,
                    turn=self._turn,
                    check=self._check_shapes,
                    metadata_only=metadata_only,
                )
            except ResponseTooLarge:
                self._turn.release()
                limit = int(self._query["limit"])
                if limit > 1:
                    self._query["limit"] = str(max(1, limit // _FEWER))
                elif self._skip_large and not metadata_only:
                    metadata_only = True
                else:
                    self._client.limits.rejected["body"] += 1
                    raise
            else:
                if metadata_only:  # Only this object needed a page of its own.
                    self._query["limit"] = self._limit
                return found

    def _check(self, token: str) -> None:
        key = hash(token)
        if len(token) > TOKEN_LIMIT:
            problem = "the continue token is too long"
        elif key in self._tokens:
            problem = "the continue token repeats: the list would not end"
        elif self._count >= MAX_PAGES:
            problem = f"the list has more than {MAX_PAGES} pages"
        else:
            self._tokens.add(key)
            return
        self._client.limits.rejected["list"] += 1
        what = f"GET {self._resource.path(namespace=self._namespace)}"
        raise MalformedResponse(problem, side=self._client.side, what=what)
