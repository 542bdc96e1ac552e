"""Validation of objects: names, labels, and immutable fields.

Only rules that a bridge can violate. A failure is a 422 with the path of the field and
the server's message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from sync.kube.api_resources import Object, Resource
from tests.fakeapi import api_errors

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?")
_SHORT_NAMES = {"Namespace", "Service"}

_ONLY = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)

Problem = tuple[str, str]
IMMUTABLE = "field is immutable"


def check_create(resource: Resource, obj: Object) -> None:
    """Raises ApiErrorResponse (422) if the object is invalid."""
    _refuse(resource, obj, [*_metadata(resource, obj), *_pod_shape(obj), *_event(obj)])


def check_update(resource: Resource, old: Object, new: Object, subresource: str) -> None:
    """Raises ApiErrorResponse (422) if ``old`` may not become ``new``."""
    problems = list(_metadata(resource, new))
    for field in ("uid", "name", "namespace"):
        value = new["metadata"].get(field)
        if value != old["metadata"].get(field):
            problems.append((f"metadata.{field}", f'Invalid value: "{value}": {IMMUTABLE}'))
    if old.get("immutable") and any(
        old.get(field) != new.get(field) for field in ("data", "binaryData", "immutable")
    ):
        problems.append(("data", "Forbidden: field is immutable when `immutable` is set"))
    if resource.kind == "Secret" and old.get("type") != new.get("type"):
        problems.append(("type", f'Invalid value: "{new.get("type")}": {IMMUTABLE}'))
    if resource.kind == "Service":
        problems += _service(old, new)
    if resource.kind == "Pod" and not subresource:
        problems += _pod(old["spec"], new["spec"])
    _refuse(resource, new, problems)


def _refuse(resource: Resource, obj: Object, problems: list[Problem]) -> None:
    if problems:
        raise api_errors.invalid(resource, obj["metadata"]["name"], *problems)


def _metadata(resource: Resource, obj: Object) -> Iterator[Problem]:
    meta = obj["metadata"]
    name = meta["name"]
    short = resource.kind in _SHORT_NAMES
    longest = 63 if short else 253
    if resource.group == "rbac.authorization.k8s.io":  # any segment of a path
        return
    if not _SUBDOMAIN.fullmatch(name) or len(name) > longest or (short and "." in name):
        what = "RFC 1123 label" if short else "RFC 1123 subdomain"
        yield "metadata.name", f'Invalid value: "{name}": a lowercase {what} is expected'
    for key, value in (meta.get("labels") or {}).items():
        if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            yield "metadata.labels", f'Invalid value: "{value}": not a valid label value ({key})'
        if len(key.rpartition("/")[2]) > 63:
            yield "metadata.labels", f'Invalid value: "{key}": name part must be 63 bytes or less'


def _pod_shape(obj: Object) -> Iterator[Problem]:
    if obj["kind"] != "Pod":
        return
    spec = obj.get("spec") or {}
    if not spec.get("containers"):
        yield "spec.containers", "Required value"
    if spec.get("ephemeralContainers"):
        yield "spec.ephemeralContainers", "Forbidden: cannot be set on create"
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for kind in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(kind) or []):
            for j, mount in enumerate(container.get("volumeMounts") or []):
                if mount["name"] not in volumes:
                    yield (
                        f"spec.{kind}[{i}].volumeMounts[{j}].name",
                        f'Not found: "{mount["name"]}"',
                    )


def _event(obj: Object) -> Iterator[Problem]:
    """As legacyValidateEvent (kubernetes pkg/apis/core/validation/events.go)."""
    if obj["kind"] != "Event":
        return
    about = (obj.get("involvedObject") or {}).get("namespace") or "default"
    if not obj.get("eventTime"):
        if about != obj["metadata"]["namespace"]:
            yield "involvedObject.namespace", f'Invalid value: "{about}": does not match'
        return
    for field in ("reportingComponent", "reportingInstance", "action", "reason"):
        if not obj.get(field):
            yield field, "Required value"
    if len(obj.get("message") or "") > 1024:
        yield "message", "Invalid value: can have at most 1024 characters"


def _service(old: Object, new: Object) -> Iterator[Problem]:
    before, after = old["spec"].get("clusterIP"), new["spec"].get("clusterIP")
    if before and before != after and new["spec"].get("type") != "ExternalName":
        yield "spec.clusterIPs[0]", f'Invalid value: "{after}": {IMMUTABLE}'


def _pod(old: Object, new: Object) -> Iterator[Problem]:
    tolerations = new.get("tolerations") or []
    if any(toleration not in tolerations for toleration in old.get("tolerations") or []):
        yield "spec.tolerations", "Forbidden: existing tolerations can not be modified except ..."
    before, after = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if before is not None and (after is None or after > before):
        yield "spec.activeDeadlineSeconds", "Invalid value: must be less than or equal to previous"
    gates = old.get("schedulingGates") or []
    if any(gate not in gates for gate in new.get("schedulingGates") or []):
        yield "spec.schedulingGates", "Forbidden: only deletion is allowed"
    if old.get("schedulingGates") and new.get("nodeSelector") != old.get("nodeSelector"):
        new = {**new, "nodeSelector": old.get("nodeSelector")}
    if _fixed(old) != _fixed(new):
        yield "spec", _ONLY


def _fixed(spec: Object) -> Object:
    """The part of a pod's spec that is immutable except through subresources."""
    loose = ("activeDeadlineSeconds", "tolerations", "schedulingGates")
    fixed: Object = orjson.loads(
        orjson.dumps({k: v for k, v in spec.items() if k not in loose and v not in (None, [])})
    )
    for kind in ("initContainers", "containers"):
        for container in fixed.get(kind) or []:
            container.pop("image", None)
    return fixed


def resized(resource: Resource, old: Object, new: Object) -> Object:
    """The pod that /resize stores. Raises ApiErrorResponse for changes beside resources."""
    result: Object = orjson.loads(orjson.dumps(old))
    for kind in ("initContainers", "containers"):
        wanted = {c["name"]: c for c in new["spec"].get(kind) or []}
        for container in result["spec"].get(kind) or []:
            requested = wanted.get(container["name"], container)
            for field in ("resources", "resizePolicy"):
                if field in requested:
                    container[field] = requested[field]
    if result["spec"] != new["spec"]:
        why = "Forbidden: only cpu and memory resources are mutable"
        raise api_errors.invalid(resource, old["metadata"]["name"], ("spec", why))
    return result


def debugged(resource: Resource, old: Object, new: Object) -> Object:
    """The pod that /ephemeralcontainers stores: containers can only be added."""
    before = old["spec"].get("ephemeralContainers") or []
    after = new["spec"].get("ephemeralContainers") or []
    if any(container not in after for container in before):
        why = "Forbidden: existing ephemeral containers may not be changed or removed"
        name = old["metadata"]["name"]
        raise api_errors.invalid(resource, name, ("spec.ephemeralContainers", why))
    return {**old, "spec": {**old["spec"], "ephemeralContainers": after}}
