"""Gets, lists, creates, patches and deletes objects of one API server, as plain dicts.

Objects are returned as received; those of the remote only if they have the shape that the API gives
them (`translators.remote_shapes`). Requests, retries and errors are those of `sync.kube.transport`.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sync.kube.api_errors import Conflict, MalformedResponse, NotFound, ResponseTooLarge
from sync.kube.api_resources import Object, Resource
from sync.kube.response_limits import LargeBodyTurn
from sync.kube.response_streams import StreamTransport
from sync.kube.transport import JSON, MERGE_PATCH
from translators.object_accessors import is_deleting, text_or_empty
from translators.remote_shapes import wrong_part

PatchKind = Literal["merge", "strategic"]
_PATCH_TYPES: Mapping[PatchKind, str] = {
    "merge": MERGE_PATCH,
    "strategic": "application/strategic-merge-patch+json",
}
#: Requests the metadata of a list's objects (meta.k8s.io/v1).
_METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
#: Bytes of JSON of a list that is in memory as a whole: in a command, those of 30,000 pods, and in
#: a running bridge what it lists of a remote besides its caches.
LIST_LIMIT, RUNNING_LIST_LIMIT = 2**28, 2**24
#: Bytes that an object of a reduced list counts.
REDUCED_SIZE = 256


class KubeClient(StreamTransport):
    """A client of one API server. Use as an async context manager."""

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """Gets an object. Raises NotFound and the other errors of `sync.kube.api_errors`."""
        path = resource.path(name, namespace=namespace)
        return self.checked(resource, await self.request("GET", path), f"GET {path}")

    async def find(
        self, resource: Resource, name: str, *, namespace: str | None = None
    ) -> Object | None:
        """As `get`; None if the object does not exist."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except NotFound:
            return None

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
        turn: LargeBodyTurn | None = None,
        check: bool = True,
        metadata_only: bool = False,
    ) -> tuple[Page, str]:
        """Lists one page; returns it with the ``continue`` token of the next ("" at the end).

        Fills in the apiVersion and kind of items, which API servers omit. A large page takes
        ``turn`` (`request`). `ListPages` follows the tokens. Objects of the remote with
        the wrong shape are left out, unless the caller checks them itself. With ``metadata_only``
        the objects have no other parts.
        """
        path = resource.path(namespace=namespace)
        accept = _METADATA_LIST if metadata_only else JSON
        body = await self.request("GET", path, query=query or {}, turn=turn, accept=accept)
        meta, items = body.get("metadata") or {}, body.get("items") or []
        if not isinstance(meta, dict) or not isinstance(items, list):
            self.limits.rejected["malformed"] += 1
            message = "the response is not a list of objects"
            raise MalformedResponse(message, side=self.side, what=f"GET {path}")
        objects = self._objects(resource, items, check=check and self._is_remote)
        page = Page(
            items=objects,
            resource_version=text_or_empty(meta.get("resourceVersion")),
            is_metadata_only=metadata_only,
        )
        return page, text_or_empty(meta.get("continue"))

    def _objects(
        self, resource: Resource, items: builtins.list[Any], *, check: bool
    ) -> builtins.list[Object]:
        """The items that are objects, and with ``check`` have the right shape."""
        objects = []
        for item in items:
            if isinstance(item, dict) and not (check and wrong_part(resource.kind, item)):
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
                objects.append(item)
        self.limits.rejected["malformed"] += len(items) - len(objects)
        return objects

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        page_size: int = 500,
        slim: Callable[[Object], Object] | None = None,
        most: int = LIST_LIMIT,
    ) -> Page:
        """Lists all matching objects in pages. All pages have the state of the first.

        ``slim`` reduces each object, so that a long list is never in memory as a whole. Raises
        MalformedResponse as `ListPages` does, and ResponseTooLarge for more than ``most`` bytes, of
        which an object has `REDUCED_SIZE` with ``slim``.
        """
        query = {"limit": str(page_size), "labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in query.items() if value}
        pages = ListPages(self, resource, namespace=namespace, query=query)
        items: list[Object] = []
        version = ""
        while pages.has_next:
            async with pages.next() as page:
                items += page.items if slim is None else map(slim, page.items)
                version = page.resource_version
            if (pages.size if slim is None else REDUCED_SIZE * len(items)) > most:
                what = f"GET {resource.path(namespace=namespace)}"
                raise self.limits.too_large("list", "the list", most, what)
        return Page(items=items, resource_version=version)

    async def create(
        self,
        resource: Resource,
        body: Object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        decode: bool = True,
    ) -> Object:
        """Creates an object. Raises AlreadyExists if the name is taken.

        With ``dry_run`` the server validates and admits the object without storing it. Without
        ``decode`` the response is not parsed, and the result is {}."""
        name = (body.get("metadata") or {}).get("name", "")
        path = resource.path(namespace=namespace)
        created = await self.request(
            "POST",
            path,
            query={"dryRun": "All"} if dry_run else None,
            body=body,
            subject=name,
            decode=decode,
        )
        return self.checked(resource, created, f"POST {path}") if decode else created

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        kind: PatchKind = "merge",
        decode: bool = True,
    ) -> Object:
        """Patches an object. With ``metadata.uid`` in the patch, raises Conflict (`UidMismatch`) if
        another object has the name now. ``decode``: see `create`."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        patched = await self.request(
            "PATCH", path, body=patch, content_type=_PATCH_TYPES[kind], decode=decode
        )
        return self.checked(resource, patched, f"PATCH {path}") if decode else patched

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str,
        namespace: str | None = None,
        grace_seconds: int | None = None,
        resource_version: str | None = None,
        decode: bool = False,
    ) -> Object | None:
        """Deletes the object with this UID; with ``resource_version`` only if it is unchanged.

        Does nothing if the object no longer exists or a precondition fails; a watch shows which of
        the two. Any other conflict, such as an admission webhook's, is raised. With ``decode`` the
        result is the object, if its finalizers keep it; otherwise None.
        """
        preconditions = {"uid": uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        path = resource.path(name, namespace=namespace)
        try:
            deleted = await self._delete(
                path, preconditions, grace_seconds=grace_seconds, decode=decode
            )
        except Conflict as error:
            if not _is_precondition_failure(error):
                raise
            return None
        if deleted.get("kind") != resource.kind:
            return None  # A Status.
        deleted = self.checked(resource, deleted, f"DELETE {path}")
        return deleted if is_deleting(deleted) else None  # Or its last state.

    async def delete_unchanged(self, resource: Resource, obj: Object) -> None:
        """Deletes the object unless it has changed since ``obj``. Raises Conflict if it has. Does
        nothing if it no longer exists."""
        meta = obj["metadata"]
        await self._delete(
            resource.path(meta["name"], namespace=meta.get("namespace")),
            {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        )

    @property
    def _is_remote(self) -> bool:
        return self.side == "remote"

    def checked(self, resource: Resource, obj: Object, what: str) -> Object:
        """The object that `request` returned, if it has the shape of one; that of the home cluster
        is not checked. Raises MalformedResponse."""
        if self._is_remote and (path := wrong_part(resource.kind, obj)):
            self.limits.rejected["malformed"] += 1
            message = f"the response has a part of the wrong type: {path}"
            raise MalformedResponse(message, side=self.side, what=what)
        return obj

    async def _delete(
        self,
        path: str,
        preconditions: Object,
        *,
        grace_seconds: int | None = None,
        decode: bool = False,
    ) -> Object:
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            return await self.request("DELETE", path, body=options, decode=decode)
        except NotFound:
            return {}


def _is_precondition_failure(error: Conflict) -> bool:
    """Whether a precondition of the DELETE failed, by the messages of kube-apiserver
    (registry/rest/delete.go and storage/interfaces.go of k8s.io/apiserver)."""
    return error.message.startswith("Operation cannot be fulfilled on ") and any(
        text in error.message
        for text in (
            "the UID in the precondition",
            "the ResourceVersion in the precondition",
            "Precondition failed: UID in precondition",
            "Precondition failed: ResourceVersion in precondition",
        )
    )


# -- lists ---------------------------------------------------------------------------------------


#: Pages of a list. Kubernetes supports 150,000 pods; with one large object in each page this is
#: still as much as an etcd stores (8 GiB).
MAX_PAGES = 10_000
#: Characters of a ``continue`` token; API servers' have less than a thousand.
TOKEN_LIMIT = 8192
#: A page that is too large is requested with this part of its objects.
_FEWER = 8


@dataclass(frozen=True, slots=True)
class Page:
    """Objects of a list, with the resource version of that state."""

    items: list[Object]
    resource_version: str
    is_metadata_only: bool = False
    """Whether the objects have only their metadata, because they are too large."""


class ListPages:
    """The pages of a list, requested one after the other.

    - A page that exceeds the limits of `sync.kube.response_limits` is requested again with fewer
      objects, down to one: objects may be large, but not all of a list together.
    - One object that exceeds them is an error, or with ``skip_large`` a page of its metadata.
    - A server cannot keep a list going for ever: a repeated or malformed ``continue`` token, and
      more than `MAX_PAGES`, raise MalformedResponse.

    ``query`` includes ``limit``; ``check``: see `KubeClient.list_page`.
    """

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
