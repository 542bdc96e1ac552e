"""Selects the fields of an object that a bug report may contain, by an allowlist. Pure.

- Never included: data of Secrets and ConfigMaps, values of environment variables, commands and
  arguments, values of annotations and labels (except those of `_PUBLIC_KEYS`), termination messages
  of containers (they can be log lines), credentials.
- Free text of a cluster (messages of conditions and Events) is included without anything that
  `Redactor` has learned: it could quote any secret of the report's objects. It is withheld as a
  whole unless all of these were learned.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from translators.object_accessors import Object, metadata
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    ANNOTATION_NODE_NAME,
    DOMAIN,
    LABEL_HOME,
    LABEL_NODE,
    LABEL_VIRTUAL,
)

#: Replaces redacted text.
WITHHELD = "<withheld>"
#: Shorter values are not treated as secrets: they occur in too many words.
MIN_SECRET_LENGTH = 6
#: Words of at least this length are also redacted individually: a message may quote a part.
MIN_WORD_LENGTH = 8
#: The parts of a text such as ``KEY=VALUE``, JSON or a URL with a password, each of which a message
#: may quote.
_PARTS = re.compile(rf"[^\s\"'`,;:=&?@(){{}}<>|\[\]\\]{{{MIN_WORD_LENGTH},}}")
#: Characters of a free text that are included: an Event can have a megabyte.
MAX_TEXT = 4096
#: With more learned values, free text is redacted as a whole.
MAX_LEARNED = 20_000
#: A service account's token: a message may quote one that has been replaced since.
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*")

#: Labels and annotations whose values are included; bridges or Kubernetes set them.
_PUBLIC_KEYS = frozenset(
    {
        LABEL_HOME,
        LABEL_NODE,
        LABEL_VIRTUAL,
        ANNOTATION_HOME_NAMESPACE,
        ANNOTATION_HOME_NAME,
        ANNOTATION_HOME_UID,
        ANNOTATION_NODE_NAME,
        ANNOTATION_ACCEPTS,
        f"{DOMAIN}/remote",
        f"{DOMAIN}/context",
        f"{DOMAIN}/holder",
        f"{DOMAIN}/leaving",
        f"{DOMAIN}/largest-pod",
        f"{DOMAIN}/cpu-seconds",
        "kubernetes.io/hostname",
        "type",
    }
)
_META = (
    *("name", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers"),
)
_POD_SPEC = (
    *("nodeName", "restartPolicy", "serviceAccountName", "priorityClassName", "schedulerName"),
    *("terminationGracePeriodSeconds", "hostNetwork"),
)
_POD_STATUS = ("phase", "reason", "podIP", "hostIP", "startTime", "qosClass")
_CONTAINER_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_CONDITION = ("type", "status", "reason", "lastTransitionTime", "lastHeartbeatTime")


class Redactor:
    """Learns secret values, removes them from text, and selects fields of objects."""

    def __init__(self) -> None:
        self.is_complete = False
        """Whether all values that a text could quote were learned."""
        self._known: set[str] = set()
        self._sorted: list[str] = []
        """`_known` in order; empty until it is needed."""
        self._too_many = False

    def learn(self, value: str) -> None:
        """Redacts this value, and each long word of it, from now on."""
        words = (it for it in value.split() if len(it) >= MIN_WORD_LENGTH)
        for part in (value.strip(), *words):
            if len(part) >= MIN_SECRET_LENGTH:
                self._known.add(part)
        self._sorted.clear()
        self._too_many = self._too_many or len(self._known) > MAX_LEARNED

    def learn_pod(self, pod: Object) -> None:
        """Learns the user's values in a pod."""
        for value in _private(pod):
            self.learn(value)

    def learn_data(self, obj: Object) -> None:
        """Learns the data of a Secret or ConfigMap."""
        encoded = obj.get("kind") == "Secret"
        for field, is_encoded in (("data", encoded), ("binaryData", True)):
            for value in (obj.get(field) or {}).values():
                self.learn(str(value))
                if is_encoded:
                    for part in _with_parts(_decoded(str(value))):
                        self.learn(part)
        for value in _private({"annotations": metadata(obj).get("annotations")}):
            self.learn(value)

    def redact(self, text: Any) -> str:
        """The text of a cluster without learned values."""
        if self._too_many or not self.is_complete:
            return WITHHELD if text else ""
        return self.without_known(text)

    def without_known(self, text: Any) -> str:
        """A text that quotes no object, without learned values."""
        cut = str(text or "")[:MAX_TEXT]
        redacted = _TOKEN.sub(WITHHELD, self._without_cut_value(cut))
        for secret in sorted((it for it in self._known if it in redacted), key=len, reverse=True):
            redacted = redacted.replace(secret, WITHHELD)
        return redacted

    def _without_cut_value(self, text: str) -> str:
        """The text without the beginning of a learned value at its end: messages are cut."""
        self._sorted = self._sorted or sorted(self._known)
        for start in range(len(text) - MIN_WORD_LENGTH + 1):
            end = text[start:]
            place = bisect.bisect_left(self._sorted, end)
            if place < len(self._sorted) and self._sorted[place].startswith(end):
                return text[:start] + WITHHELD
        return text

    # -- objects ---------------------------------------------------------------------------

    def meta(self, obj: Object) -> Object:
        """The object's metadata, with the keys of its labels and annotations."""
        its = metadata(obj)
        owners = its.get("ownerReferences") or ()
        return {
            **_select(its, _META),
            "labels": _pairs(its.get("labels")),
            "annotations": _pairs(its.get("annotations")),
            "ownerReferences": [
                {key: it.get(key) for key in ("kind", "name", "uid")} for it in owners
            ],
        }

    def metadata_only(self, obj: Object) -> Object:
        """An object's kind and metadata."""
        return {"kind": obj.get("kind"), "metadata": self.meta(obj)}

    def pod(self, pod: Object) -> Object:
        """A pod's structure and status."""
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        return {
            "metadata": self.meta(pod),
            "spec": {
                **_select(spec, _POD_SPEC),
                "containers": [_container(it) for it in spec.get("containers") or ()],
                "initContainers": [_container(it) for it in spec.get("initContainers") or ()],
                "volumes": [sorted(set(it) - {"name"}) for it in spec.get("volumes") or ()],
            },
            "status": {
                **_select(status, _POD_STATUS),
                "message": self.redact(status.get("message")),
                "conditions": self.conditions(status),
                **{
                    kind: [self._container_status(it) for it in status.get(kind) or ()]
                    for kind in _CONTAINER_STATUSES
                },
            },
        }

    def node(self, node: Object) -> Object:
        """A Node, virtual or not."""
        spec, status = node.get("spec") or {}, node.get("status") or {}
        taints = spec.get("taints") or ()
        kept = ("capacity", "allocatable", "nodeInfo", "daemonEndpoints", "addresses")
        return {
            "metadata": self.meta(node),
            "spec": {
                "unschedulable": bool(spec.get("unschedulable")),
                "taints": [{"key": it.get("key"), "effect": it.get("effect")} for it in taints],
            },
            "status": {**_select(status, kept), "conditions": self.conditions(status)},
        }

    def event(self, event: Object) -> Object:
        """An Event, with its message redacted."""
        about = event.get("involvedObject") or {}
        kept = ("type", "reason", "count", "firstTimestamp", "lastTimestamp", "eventTime", "source")
        return {
            **_select(event, kept),
            "about": {key: about.get(key) for key in ("kind", "namespace", "name", "uid")},
            "message": self.redact(event.get("message")),
        }

    def lease(self, lease: Object) -> Object:
        """A Lease with its holder and times."""
        return {"metadata": self.meta(lease), "spec": lease.get("spec") or {}}

    def quota(self, quota: Object) -> Object:
        """A ResourceQuota's hard limits and usage."""
        status = quota.get("status") or {}
        return {
            "metadata": self.meta(quota),
            "hard": status.get("hard") or {},
            "used": status.get("used") or {},
        }

    def conditions(self, status: Object) -> list[Object]:
        """The conditions of a status, with their messages redacted."""
        return [
            {**_select(it, _CONDITION), "message": self.redact(it.get("message"))}
            for it in status.get("conditions") or ()
        ]

    def _container_status(self, its: Object) -> Object:
        kept = ("name", "image", "ready", "started", "restartCount")
        return {
            **_select(its, kept),
            **{kind: self._state(its.get(kind) or {}) for kind in ("state", "lastState")},
        }

    def _state(self, state: Object) -> Object:
        found: Object = {}
        for kind, its in state.items():
            kept = ("reason", "exitCode", "signal", "startedAt", "finishedAt")
            found[kind] = _select(its, kept)
            if its.get("message"):
                ended = kind == "terminated"
                found[kind]["message"] = WITHHELD if ended else self.redact(its["message"])
        return found


def _container(container: Object) -> Object:
    kept = ("name", "image", "imagePullPolicy", "resources", "ports")
    return {**_select(container, kept), "env": len(container.get("env") or ())}


def _select(obj: Object, keys: Iterable[str]) -> Object:
    return {key: obj[key] for key in keys if key in obj}


def _pairs(pairs: Any) -> Object:
    return {key: value if key in _PUBLIC_KEYS else WITHHELD for key, value in (pairs or {}).items()}


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _with_parts(text: str) -> Iterator[str]:
    yield text
    yield from _PARTS.findall(text)


def _private(obj: Any) -> Iterator[str]:
    """The user's values in a pod: ``value`` fields, commands, arguments, annotations; of all but
    annotations also the parts."""
    if isinstance(obj, dict):
        for key, value in obj.items():
            if key == "annotations" and isinstance(value, dict):
                yield from (str(it) for name, it in value.items() if name not in _PUBLIC_KEYS)
            elif key in ("command", "args") and isinstance(value, list):
                for argument in value:
                    yield from _with_parts(str(argument))
            elif key == "value" and isinstance(value, str):
                yield from _with_parts(value)
            else:
                yield from _private(value)
    elif isinstance(obj, list):
        for value in obj:
            yield from _private(value)
