"""Events: what the remote says of a pod, as home's Event about the home pod.

All is carried as the remote has it (who says so, why, when and how often; fields of the future
too), but for what names the remote's objects: the pod that it is about, an object that it is
related to, and the pod's name in the message.
"""

from __future__ import annotations

import re

from translators.identity import LABEL_NODE, Identity, Origin
from translators.names import hashed_name
from translators.objects import Object, namespace_of, uid_of

#: The API's limit on an Event's message, in characters. It holds for those with ``eventTime``
#: (legacyValidateEvent in kubernetes pkg/apis/core/validation/events.go), and for ours.
MESSAGE_MAX = 1024
#: The longest name of an Event of the bridge: 200 characters of the object's name, and the hash.
_NAME_MAX = 217

#: What changes while an event goes on (client-go, tools/record eventLogger and tools/events).
_PROGRESS = ("count", "lastTimestamp", "message", "series")

#: ``NAMESPACE/NAME`` as a word of its own.
_NAMED = re.compile(r"(?<![\w./-])[a-z0-9-]+/[a-z0-9.-]*[a-z0-9](?![\w/-]|\.\w)")


def event_name(about: str, content: str) -> str:
    """The name of the Event about the object called ``about`` that is told apart from others by
    ``said``: the same whenever it is computed, so that nothing is told twice."""
    return hashed_name(about, content, max_length=_NAME_MAX, separator=".")


def mirrored_events_selector(identity: Identity) -> str:
    """The label selector of the Events at home that stand for events of the remote."""
    return f"{LABEL_NODE}={identity.node_label}"


def involved_uid(event: Object) -> str:
    """The UID of the object that the event is about; "" where it names none."""
    return str((event.get("involvedObject") or {}).get("uid") or "")


def compact(remote: Object) -> Object:
    """The event without what is empty and without metadata that nothing here reads."""
    meta = remote["metadata"]
    kept = {key: value for key, value in remote.items() if value not in (None, "", {})}
    kept["metadata"] = {
        key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in meta
    }
    return kept


def home_event_name(remote: Object) -> str:
    """The name that the event has at home: it follows from the remote event's UID."""
    about = remote.get("involvedObject") or {}
    return event_name(str(about.get("name") or ""), uid_of(remote))


def translate_event(remote: Object, origin: Origin, identity: Identity) -> Object:
    """Home's Event for an event about the remote pod that stands for ``origin``.

    ``source.host`` stays the remote's node: it is where the pod runs.
    """
    about = remote.get("involvedObject") or {}
    event = {key: value for key, value in remote.items() if value is not None}
    event["metadata"] = {
        "name": home_event_name(remote),
        "namespace": origin.namespace,
        "labels": {LABEL_NODE: identity.node_label},
    }
    event["involvedObject"] = _at_home(about, origin)
    if related := event.get("related"):
        if related.get("uid") == about.get("uid"):
            event["related"] = _at_home(related, origin)
        elif related.get("namespace") == namespace_of(remote):
            # Another pod, by its name: of which UID it is at home is not known here.
            named = {k: v for k, v in related.items() if k not in ("uid", "resourceVersion")}
            event["related"] = {**named, "namespace": origin.namespace}
    if message := event.get("message"):
        message = _retold(message, about, origin)
        event["message"] = message[:MESSAGE_MAX] if "eventTime" in event else message
    return event


def progress_fields(event: Object) -> Object:
    """How far the event has gone; None where it says nothing. From one to the next, `merge_patch`
    gives what to write."""
    return {key: event.get(key) or None for key in _PROGRESS}


def _at_home(reference: Object, origin: Origin) -> Object:
    """A reference to the remote pod as one to its home pod; ``fieldPath`` is the same in both."""
    here = {"namespace": origin.namespace, "name": origin.name, "uid": origin.uid}
    return {key: value for key, value in {**reference, **here}.items() if key != "resourceVersion"}


def _retold(message: str, about: Object, origin: Origin) -> str:
    """The message with the pod's home names, in the two forms in which Kubernetes writes a pod:
    ``NAMESPACE/NAME``, and the kubelet's ``NAME_NAMESPACE(UID)`` (format.Pod)."""
    namespace, name, uid = (str(about.get(key) or "") for key in ("namespace", "name", "uid"))
    if namespace not in message:
        return message
    message = message.replace(
        f"{name}_{namespace}({uid})", f"{origin.name}_{origin.namespace}({origin.uid})"
    )
    there, here = f"{namespace}/{name}", f"{origin.namespace}/{origin.name}"
    return _NAMED.sub(lambda it: here if it.group() == there else it.group(), message)
