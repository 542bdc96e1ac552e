"""Handles API requests: from a target and a body to a status code and a response body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sync.kube.api_resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    DEPLOYMENTS,
    PODS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Object,
)
from tests.fakeapi import api_errors, patching, tokens
from tests.fakeapi.deletion import delete
from tests.fakeapi.lists import Lister
from tests.fakeapi.request_log import LoggedRequest
from tests.fakeapi.resource_registry import Kind, Target
from tests.fakeapi.selectors import selection
from tests.fakeapi.store import Store, timestamp

Answer = tuple[int, Object]

_APPLY = "application/apply-patch+yaml"
_STRATEGIC = "application/strategic-merge-patch+json"
_SPECIAL = {"resize", "ephemeralcontainers"}
_REVIEWS = {
    resource.path(): resource
    for resource in (SELF_SUBJECT_ACCESS_REVIEWS, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS)
}


class Api:
    """Handles all requests except watches; knows nothing of faults and sockets."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lister = Lister(store)
        self.version = "v1.34.4"
        self.clock: Callable[[], str] = timestamp
        """The server's clock in RFC 3339, for the Date of responses and the lifetime of tokens."""
        self.authorize: Callable[[Object], bool] = lambda _spec: True
        """Answers SubjectAccessReviews and SelfSubjectAccessReviews by their ``spec``."""
        self.authenticate: Callable[[str], Object | None] = lambda _token: {"username": "someone"}
        """Answers TokenReviews: the user of the token, or None."""
        self.budget: Callable[[Object], str] = lambda _pod: ""
        """Why a PodDisruptionBudget prevents the eviction of the pod; "" if none does."""

    def answer(self, entry: LoggedRequest) -> Answer:
        """Returns status code and body. Raises ApiErrorResponse."""
        if entry.method == "POST" and entry.path in _REVIEWS:
            return 201, self._review(entry)
        if entry.method == "GET" and (found := self._about(entry.path)) is not None:
            return 200, found
        target = self.store.registry.resolve(entry.path)
        if target.subresource and not _has(target):
            raise api_errors.unknown_path()
        if entry.method not in _METHODS:
            raise _not_allowed()
        return _METHODS[entry.method](self, target, entry)

    def get(self, target: Target, entry: LoggedRequest) -> Answer:
        if target.name is None:
            return 200, self.lister.answer(target.kind, target.namespace, entry.query)
        return 200, self._old(target)

    def post(self, target: Target, entry: LoggedRequest) -> Answer:
        body = _body(entry)
        if target.subresource == "binding":
            return 201, self._bind(target, body)
        if target.subresource == "eviction":
            return 201, self._evict(target, body, dry=_dry(entry))
        if target.kind.resource == SERVICE_ACCOUNTS and target.subresource == "token":
            return 201, tokens.issue(self.store, self._old(target), body, now=self.clock())
        if target.name is not None:
            raise _not_allowed()
        if target.kind.resource.namespaced and target.namespace is None:
            raise _not_allowed()
        namespace = target.namespace or ""
        return 201, self.store.create(target.kind, namespace, body, dry=_dry(entry))

    def put(self, target: Target, entry: LoggedRequest) -> Answer:
        old, body, resource = self._old(target), _body(entry), target.kind.resource
        meta, name = body.get("metadata") or {}, old["metadata"]["name"]
        if meta.get("name") != name:
            message = f"the name of the object ({meta.get('name')}) does not match the name on the "
            raise api_errors.bad_request(message + f"URL ({name})")
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
            raise api_errors.conflict(resource, name, why + old["metadata"]["uid"])
        if not meta.get("resourceVersion") and not target.kind.blind_put:
            problem = ("metadata.resourceVersion", "Invalid value: 0: must be specified")
            raise api_errors.invalid(resource, name, problem)
        return 200, self._update(target, old, body, entry)

    def patch(self, target: Target, entry: LoggedRequest) -> Answer:
        kind, body = entry.content_type, entry.body
        if kind == _APPLY:
            return self._apply(target, entry)
        old = self._old(target)
        if kind == "application/json-patch+json" and isinstance(body, list):
            new = patching.json_patch(old, body)
        elif kind == "application/merge-patch+json":
            new = patching.merge(old, _body(entry))
        elif kind == _STRATEGIC and target.kind.builtin:
            new = patching.strategic(old, _body(entry))
        else:
            raise api_errors.unsupported_media(kind)
        return 200, self._update(target, old, new, entry)

    def _apply(self, target: Target, entry: LoggedRequest) -> Answer:
        """Server-side apply by one field manager: creates or merges, replaces lists. Unlike a real
        server it keeps fields that the manager no longer applies."""
        body, namespace = _body(entry), target.namespace or ""
        if not entry.query.get("fieldManager"):
            raise api_errors.bad_request("fieldManager is required for apply patch")
        old = self.store.find(target.kind, namespace, target.name or "")
        if old is None:
            return 201, self.store.create(target.kind, namespace, body, dry=_dry(entry))
        return 200, self._update(target, old, patching.merge(old, body), entry)

    def delete(self, target: Target, entry: LoggedRequest) -> Answer:
        options: Object = {**(entry.body if isinstance(entry.body, dict) else {})}
        if "gracePeriodSeconds" in entry.query:
            options["gracePeriodSeconds"] = int(entry.query["gracePeriodSeconds"])
        if target.name is None:
            return 200, self._delete_all(target, options, entry)
        old = self._old(target)
        result = delete(self.store, target.kind, old, options, dry=_dry(entry))
        if target.kind.resource == PODS or "deletionTimestamp" in result["metadata"]:
            return 200, result
        details = {"name": target.name, "kind": target.kind.resource.plural}
        details["uid"] = old["metadata"]["uid"]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return 200, {**status, "details": details}

    def _old(self, target: Target) -> Object:
        if target.name is None:
            raise _not_allowed()
        return self.store.get(target.kind, target.namespace or "", target.name)

    def _update(self, target: Target, old: Object, new: Object, entry: LoggedRequest) -> Object:
        dry = _dry(entry)
        return self.store.update(target.kind, old, new, target.subresource, dry=dry)

    def _delete_all(self, target: Target, options: Object, entry: LoggedRequest) -> Object:
        found = self.lister.answer(target.kind, target.namespace, entry.query)
        passes = selection(
            target.kind, entry.query.get("labelSelector", ""), entry.query.get("fieldSelector", "")
        )
        for obj in self.store.all(target.kind, target.namespace):
            if passes(obj):
                delete(self.store, target.kind, obj, options, dry=_dry(entry))
        return found

    def _bind(self, target: Target, body: Object) -> Object:
        old, resource = self._old(target), target.kind.resource
        name = old["metadata"]["name"]
        if (body.get("metadata") or {}).get("uid", "") not in ("", old["metadata"]["uid"]):
            raise api_errors.conflict(resource, name, "Precondition failed: UID in precondition")
        if old["spec"].get("nodeName") or "deletionTimestamp" in old["metadata"]:
            why = f"pod {name} is already assigned to a node, or is being deleted"
            raise api_errors.conflict(resource, name, why)
        bind(self.store, target.kind, old, body["target"]["name"])
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _evict(self, target: Target, body: Object, *, dry: bool) -> Object:
        pod = self._old(target)
        if why := self.budget(pod):
            raise api_errors.ApiErrorResponse(429, "TooManyRequests", why)
        delete(self.store, target.kind, pod, body.get("deleteOptions") or {}, dry=dry)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _review(self, entry: LoggedRequest) -> Object:
        body = _body(entry)
        spec = body.get("spec") or {}
        if _REVIEWS[entry.path] == TOKEN_REVIEWS:
            user = self.authenticate(spec.get("token", ""))
            status: Object = {"authenticated": user is not None}
            if user is not None:
                status["user"] = user
            return {**body, "status": status}
        allowed = self.authorize(spec)
        return {**body, "status": {"allowed": allowed, "reason": "" if allowed else "not allowed"}}

    def _about(self, path: str) -> Object | None:
        """Version, health and discovery documents; None for other paths."""
        if path in ("/healthz", "/livez", "/readyz"):
            return {"status": "ok"}
        if path == "/version":
            major, minor, _ = self.version.removeprefix("v").split(".")
            return {"major": major, "minor": minor, "gitVersion": self.version}
        groups = self.store.registry.groups()
        if path == "/apis":
            versions = [{"groupVersion": name} for name in groups if "/" in name]
            named = [
                {"name": version["groupVersion"].partition("/")[0], "preferredVersion": version}
                for version in versions
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}
        for api_version, kinds in groups.items():
            if path == ("/apis/" if "/" in api_version else "/api/") + api_version:
                return {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": api_version,
                    "resources": [
                        {
                            "name": kind.resource.plural,
                            "kind": kind.resource.kind,
                            "namespaced": kind.resource.namespaced,
                            "verbs": ["create", "delete", "get", "list", "patch", "watch"],
                        }
                        for kind in kinds
                    ],
                }
        return None


_METHODS: dict[str, Callable[[Api, Target, LoggedRequest], Answer]] = {
    "GET": Api.get,
    "POST": Api.post,
    "PUT": Api.put,
    "PATCH": Api.patch,
    "DELETE": Api.delete,
}


def bind(store: Store, kind: Kind, pod: Object, node: str) -> Object:
    """Binds the pod to the node, without a new generation. Raises ApiErrorResponse for a gated pod
    (setPodNodeAndMetadata in registry/core/pod/storage)."""
    if pod["spec"].get("schedulingGates"):
        why = "pod has non-empty .spec.schedulingGates"
        raise api_errors.conflict(kind.resource, pod["metadata"]["name"], why)
    status = pod.get("status") or {}
    conditions = [c for c in status.get("conditions") or [] if c["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp()}
    status = {**status, "conditions": [*conditions, scheduled]}
    spec = {**pod["spec"], "nodeName": node}
    return store.commit(kind, pod, {**pod, "spec": spec, "status": status})


def _has(target: Target) -> bool:
    if target.subresource == "status":
        return target.kind.status
    if target.kind.resource == CERTIFICATE_SIGNING_REQUESTS:
        return target.subresource == "approval"
    if target.kind.resource == SERVICE_ACCOUNTS:
        return target.subresource == "token"
    if target.kind.resource == DEPLOYMENTS:
        return target.subresource == "scale"
    return target.kind.resource == PODS and target.subresource in {*_SPECIAL, "binding", "eviction"}


def _dry(entry: LoggedRequest) -> bool:
    return entry.query.get("dryRun") == "All"


def _body(entry: LoggedRequest) -> Any:
    if not isinstance(entry.body, dict):
        raise api_errors.bad_request("the body is not a JSON object")
    return entry.body


def _not_allowed() -> api_errors.ApiErrorResponse:
    message = "the server does not allow this method on the requested resource"
    return api_errors.ApiErrorResponse(405, "MethodNotAllowed", message)
