"""What of an object may stand in a report: named here, field by field; all else stays out. Pure.

- Never: data of Secrets and ConfigMaps, values of the environment, commands and arguments, values
  of annotations and of labels (but for those of `_TOLD`), messages that containers left as they
  ended (they can be their logs), credentials.
- Words that a cluster writes freely (messages of conditions and Events) are told, without what
  `Redactor` has learned: whatever of the above the report's objects hold could be quoted there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from translators.identity import (
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
from translators.objects import Object, metadata

#: Stands for what is left out.
WITHHELD = "<withheld>"
#: What is shorter is no secret, and is part of too many words.
MIN_SECRET_LENGTH = 6
#: Words of a longer text that are learned by themselves: a message may quote a part.
MIN_WORD_LENGTH = 8
#: More than this is not learned: then free words are left out as a whole.
MAX_LEARNED = 20_000

#: Labels and annotations whose values are told: none of a person's.
_TOLD = frozenset(
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
_CONDITION = ("type", "status", "reason", "lastTransitionTime", "lastHeartbeatTime")


class Redactor:
    """Learns what must not be told, and takes it out of words."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._too_many = False

    def learn(self, value: str) -> None:
        """This, and each long word of it, is not to be told."""
        for part in (value.strip(), *_words(value)):
            if len(part) >= MIN_SECRET_LENGTH:
                self._known.add(part)
        self._too_many = self._too_many or len(self._known) > MAX_LEARNED

    def learn_pod(self, pod: Object) -> None:
        """What of it is a person's."""
        for value in _private(pod):
            self.learn(value)

    def learn_data(self, obj: Object) -> None:
        """What a Secret or ConfigMap holds."""
        for value in (obj.get("data") or {}).values():
            self.learn(str(value))
            if obj.get("kind") == "Secret":
                self.learn(_decoded(str(value)))
        for value in _private({"annotations": metadata(obj).get("annotations")}):
            self.learn(value)

    def redact(self, text: Any) -> str:
        """A message, without what was learned."""
        said = str(text or "")
        if self._too_many:
            return WITHHELD if said else ""
        for secret in sorted((it for it in self._known if it in said), key=len, reverse=True):
            said = said.replace(secret, WITHHELD)
        return said

    # -- objects ---------------------------------------------------------------------------

    def meta(self, obj: Object) -> Object:
        """Its metadata: who it is, and the names of its labels and annotations."""
        its = metadata(obj)
        owners = its.get("ownerReferences") or ()
        return {
            **{key: its[key] for key in _META if key in its},
            "labels": _pairs(its.get("labels")),
            "annotations": _pairs(its.get("annotations")),
            "ownerReferences": [
                {key: it.get(key) for key in ("kind", "name", "uid")} for it in owners
            ],
        }

    def metadata_only(self, obj: Object) -> Object:
        """An object of which nothing but its metadata is told."""
        return {"kind": obj.get("kind"), "metadata": self.meta(obj)}

    def pod(self, pod: Object) -> Object:
        """A pod: what it is made of, and its status."""
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        named = ("nodeName", "restartPolicy", "serviceAccountName", "priorityClassName")
        more = ("schedulerName", "terminationGracePeriodSeconds", "hostNetwork")
        return {
            "metadata": self.meta(pod),
            "spec": {
                **{key: spec[key] for key in (*named, *more) if key in spec},
                "containers": [_container(it) for it in spec.get("containers") or ()],
                "initContainers": [_container(it) for it in spec.get("initContainers") or ()],
                "volumes": [sorted(set(it) - {"name"}) for it in spec.get("volumes") or ()],
            },
            "status": {
                **{
                    key: status[key]
                    for key in ("phase", "reason", "podIP", "hostIP", "startTime", "qosClass")
                    if key in status
                },
                "message": self.redact(status.get("message")),
                "conditions": self.conditions(status),
                **{
                    kind: [self._container_status(it) for it in status.get(kind) or ()]
                    for kind in (
                        "initContainerStatuses",
                        "containerStatuses",
                        "ephemeralContainerStatuses",
                    )
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
            "status": {
                **{key: status[key] for key in kept if key in status},
                "conditions": self.conditions(status),
            },
        }

    def event(self, event: Object) -> Object:
        """An Event."""
        about = event.get("involvedObject") or {}
        kept = ("type", "reason", "count", "firstTimestamp", "lastTimestamp", "eventTime", "source")
        return {
            **{key: event[key] for key in kept if key in event},
            "about": {key: about.get(key) for key in ("kind", "namespace", "name", "uid")},
            "message": self.redact(event.get("message")),
        }

    def lease(self, lease: Object) -> Object:
        """A Lease: who holds it, and when it was renewed."""
        return {"metadata": self.meta(lease), "spec": lease.get("spec") or {}}

    def quota(self, quota: Object) -> Object:
        """A ResourceQuota: numbers."""
        status = quota.get("status") or {}
        return {
            "metadata": self.meta(quota),
            "hard": status.get("hard") or {},
            "used": status.get("used") or {},
        }

    def conditions(self, status: Object) -> list[Object]:
        """Of whatever has them."""
        return [
            {
                **{key: it[key] for key in _CONDITION if key in it},
                "message": self.redact(it.get("message")),
            }
            for it in status.get("conditions") or ()
        ]

    def _container_status(self, its: Object) -> Object:
        kept = ("name", "image", "ready", "started", "restartCount")
        return {
            **{key: its[key] for key in kept if key in its},
            **{kind: self._state(its.get(kind) or {}) for kind in ("state", "lastState")},
        }

    def _state(self, state: Object) -> Object:
        found: Object = {}
        for kind, its in state.items():
            kept = ("reason", "exitCode", "signal", "startedAt", "finishedAt")
            found[kind] = {key: its[key] for key in kept if key in its}
            if its.get("message"):
                ended = kind == "terminated"
                found[kind]["message"] = WITHHELD if ended else self.redact(its["message"])
        return found


def _container(container: Object) -> Object:
    kept = ("name", "image", "imagePullPolicy", "resources", "ports")
    return {
        **{key: container[key] for key in kept if key in container},
        "env": len(container.get("env") or ()),
    }


def _pairs(pairs: Any) -> Object:
    return {key: value if key in _TOLD else WITHHELD for key, value in (pairs or {}).items()}


def _words(text: str) -> Iterator[str]:
    for word in text.split():
        if len(word) >= MIN_WORD_LENGTH:
            yield word


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _private(obj: Any) -> Iterator[str]:
    """What of a pod is a person's: values, commands with their arguments, annotations."""
    if isinstance(obj, dict):
        for key, value in obj.items():
            if key == "annotations" and isinstance(value, dict):
                yield from (str(it) for name, it in value.items() if name not in _TOLD)
            elif key in ("command", "args") and isinstance(value, list):
                yield from map(str, value)
            elif key == "value" and isinstance(value, str):
                yield value
            else:
                yield from _private(value)
    elif isinstance(obj, list):
        for value in obj:
            yield from _private(value)
