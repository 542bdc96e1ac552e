"""Objects of one API server: get, list, create, patch and delete, plain dicts in and out.

An object comes out as it came over the wire; no field is dropped, no timestamp rewritten. How a
request is made, its retries and its errors: `sync.kube.transport`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sync.kube.errors import ApiError, Conflict, NotFound
from sync.kube.request import MERGE_PATCH
from sync.kube.resources import Object, Resource
from sync.kube.streams import StreamTransport

PatchKind = Literal["merge", "strategic"]
_PATCH_TYPES: Mapping[PatchKind, str] = {
    "merge": MERGE_PATCH,
    "strategic": "application/strategic-merge-patch+json",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A list of objects and the resource version that it is the state of."""

    items: list[Object]
    resource_version: str


class KubeClient(StreamTransport):
    """A client of the API server behind ``access``. Use as an async context manager."""

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """The object. Raises NotFound and the other errors of `sync.kube.errors`."""
        return await self.request("GET", resource.path(name, namespace=namespace))

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> tuple[Page, str]:
        """One page and the ``continue`` token of the next ("" at the end).

        Items of a list carry no kind; ours get theirs, as every other object has one.
        """
        body = await self.request("GET", resource.path(namespace=namespace), query=query or {})
        meta = body.get("metadata") or {}
        items: list[Object] = body.get("items") or []
        for item in items:
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        page = Page(items=items, resource_version=str(meta.get("resourceVersion") or ""))
        return page, str(meta.get("continue") or "")

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        page_size: int = 500,
        slim: Callable[[Object], Object] | None = None,
    ) -> Page:
        """All objects that match, read in pages. The state is that of the first page.

        ``slim`` is what is kept of each, so that a long list is never whole in memory.
        """
        query = {"limit": str(page_size), "labelSelector": labels, "fieldSelector": fields}
        query = {key: value for key, value in query.items() if value}
        items: list[Object] = []
        while True:
            page, token = await self.list_page(resource, namespace=namespace, query=query)
            items += page.items if slim is None else map(slim, page.items)
            if not token:
                return Page(items=items, resource_version=page.resource_version)
            query["continue"] = token

    async def create(
        self,
        resource: Resource,
        body: Object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        decode: bool = True,
    ) -> Object:
        """Creates the object. Raises AlreadyExists where one of that name is there. ``dry_run``:
        the server checks and admits it as ever, and does not keep it. Whoever does not need the
        answer says so with ``decode`` and gets {}."""
        name = (body.get("metadata") or {}).get("name", "")
        return await self.request(
            "POST",
            resource.path(namespace=namespace),
            query={"dryRun": "All"} if dry_run else None,
            body=body,
            subject=name,
            decode=decode,
        )

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
        """Changes what the patch names. With ``metadata.uid`` in it, the server refuses
        (Conflict) to change an object that has since taken the name. ``decode``: see `create`."""
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self.request(
            "PATCH", path, body=patch, content_type=_PATCH_TYPES[kind], decode=decode
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        uid: str,
        namespace: str | None = None,
        grace_seconds: int | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Deletes the object with this UID, and no other that has since taken its name; with
        ``resource_version`` only while nobody has changed it since then.

        Already gone, or another by now: nothing to do, no error. A watch tells which. Any other
        conflict, such as an admission webhook's, is raised: the object is still to be deleted.
        """
        preconditions = {"uid": uid}
        if resource_version is not None:
            preconditions["resourceVersion"] = resource_version
        try:
            await self._delete(
                resource.path(name, namespace=namespace), preconditions, grace_seconds=grace_seconds
            )
        except Conflict as error:
            if not _is_of_precondition(error):
                raise

    async def delete_unchanged(self, resource: Resource, obj: Object) -> None:
        """Deletes the object if it is still in this state, by its UID and resource version.

        Raises Conflict where it has changed since. Already gone: nothing to do, no error.
        """
        meta = obj["metadata"]
        await self._delete(
            resource.path(meta["name"], namespace=meta.get("namespace")),
            {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        )

    async def _delete(
        self, path: str, preconditions: Object, *, grace_seconds: int | None = None
    ) -> None:
        """Sends a DELETE on these conditions. Already gone: no error. Raises Conflict."""
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            await self.request("DELETE", path, body=options, decode=False)
        except NotFound as error:
            if _is_of_admission(error):
                raise


def _is_of_precondition(error: Conflict) -> bool:
    """Whether the object is not the one that a DELETE was for, in the words of kube-apiserver
    (registry/rest/delete.go and storage/interfaces.go of k8s.io/apiserver)."""
    return error.message.startswith("Operation cannot be fulfilled on ") and any(
        words in error.message
        for words in (
            "the UID in the precondition",
            "the ResourceVersion in the precondition",
            "Precondition failed: UID in precondition",
            "Precondition failed: ResourceVersion in precondition",
        )
    )


def _is_of_admission(error: ApiError) -> bool:
    """Whether a webhook or a policy answered, whose code says nothing of the object."""
    return error.message.startswith(("admission webhook ", "ValidatingAdmissionPolicy "))
