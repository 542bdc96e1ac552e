"""Translates Events of the remote about a remote pod into Events about its home pod.

Reporter, reason, times, count and unknown fields are kept. References to the remote pod, to related
objects, and the pod's name in the message are translated.
"""

from __future__ import annotations

import re

from translators.derived_names import hashed_name
from translators.object_accessors import Object, namespace_of, uid_of
from translators.ownership_labels import LABEL_NODE, Origin
from translators.size_limits import cut, fits
from translators.virtual_node_identity import Identity

#: The maximum length of an Event's message: legacyValidateEvent in kubernetes
#: pkg/apis/core/validation/events.go enforces it for Events with ``eventTime``. Others are cut too:
#: components of Kubernetes send no longer ones.
MESSAGE_MAX = 1024
#: The maximum length of the other texts, from the same place; a node's name may be longer.
TEXT_MAX = 128
_HOST_MAX = 253
#: The maximum length of the bridge's Event names.
_NAME_MAX = 217

#: Fields that change while an event repeats (client-go, tools/record eventLogger and tools/events).
_PROGRESS = ("count", "lastTimestamp", "message", "series")

#: The longest text by field; other fields are kept if they have at most `_OTHER_MAX` bytes.
_TEXTS = {
    "message": MESSAGE_MAX,
    **dict.fromkeys(
        ("reason", "action", "reportingComponent", "reportingInstance", "type"), TEXT_MAX
    ),
}
_PARTS = ("involvedObject", "related", "source", "series")
_OTHER_MAX = 4096

#: ``NAMESPACE/NAME`` as a separate word.
_NAMED = re.compile(r"(?<![\w./-])[a-z0-9-]+/[a-z0-9.-]*[a-z0-9](?![\w/-]|\.\w)")


def event_name(about: str, content: str) -> str:
    """The name of the Event about the object named ``about``, with a hash of ``content``, so that a
    repeated Event has the same name."""
    return hashed_name(about, content, max_length=_NAME_MAX, separator=".")


def mirrored_events_selector(identity: Identity) -> str:
    """Selects the Events at home that are translated from events of the remote."""
    return f"{LABEL_NODE}={identity.node_label}"


def involved_uid(event: Object) -> str:
    """The UID of the involved object; "" if the event has none."""
    return str((event.get("involvedObject") or {}).get("uid") or "")


def compact(remote: Object) -> Object:
    """The event without empty fields and unused metadata, and within the limits of the API."""
    meta = remote["metadata"]
    kept = {}
    for key, value in remote.items():
        if value in (None, "", {}) or key == "metadata":
            continue
        limit = _TEXTS.get(key)
        limited = value[:limit] if limit else cut(value, _HOST_MAX) if key in _PARTS else value
        if fits(limited, _OTHER_MAX, _OTHER_MAX):
            kept[key] = limited
    kept["metadata"] = {
        key: meta[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in meta
    }
    return kept


def home_event_name(remote: Object) -> str:
    """The name of the Event at home, derived from the remote event's UID."""
    about = remote.get("involvedObject") or {}
    return event_name(str(about.get("name") or ""), uid_of(remote))


def translate_event(remote: Object, origin: Origin, identity: Identity) -> Object:
    """Home's Event for an event about the remote pod of ``origin``.

    ``source.host`` remains the node of the remote where the pod runs.
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
            # Another pod: its UID at home is unknown here.
            named = {k: v for k, v in related.items() if k not in ("uid", "resourceVersion")}
            event["related"] = {**named, "namespace": origin.namespace}
    if message := event.get("message"):
        message = _translate_message(message, about, origin)
        event["message"] = message[:MESSAGE_MAX]
    return event


def progress_fields(event: Object) -> Object:
    """The fields that change while an event repeats; None for missing ones. `merge_patch` compares
    them."""
    return {key: event.get(key) or None for key in _PROGRESS}


def _at_home(reference: Object, origin: Origin) -> Object:
    """A reference to the remote pod as reference to its home pod, with the same ``fieldPath``."""
    here = {"namespace": origin.namespace, "name": origin.name, "uid": origin.uid}
    return {key: value for key, value in {**reference, **here}.items() if key != "resourceVersion"}


def _translate_message(message: str, about: Object, origin: Origin) -> str:
    """The message with the home pod's name, in the two formats of Kubernetes: ``NAMESPACE/NAME``,
    and the kubelet's ``NAME_NAMESPACE(UID)`` (format.Pod)."""
    namespace, name, uid = (str(about.get(key) or "") for key in ("namespace", "name", "uid"))
    if namespace not in message:
        return message
    message = message.replace(
        f"{name}_{namespace}({uid})", f"{origin.name}_{origin.namespace}({origin.uid})"
    )
    there, here = f"{namespace}/{name}", f"{origin.namespace}/{origin.name}"
    return _NAMED.sub(lambda it: here if it.group() == there else it.group(), message)
