"""What may stand in a path: names of namespaces, pods and containers, and UIDs.

A segment is decoded once and then has to be such a name, so that no encoded slash, dot or percent
sign can make another path out of it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from bridge.net.error_responses import HttpError

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"

#: What each parameter of a path must be. A namespace and a container are DNS labels, a pod is a
#: DNS subdomain; the UID of a static pod is a hash, with no hyphens.
_SHAPES: Mapping[str, tuple[re.Pattern[str], int]] = {
    "namespace": (re.compile(_LABEL), 63),
    "pod": (re.compile(rf"{_LABEL}(?:\.{_LABEL})*"), 253),
    "uid": (re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?"), 63),
    "container": (re.compile(_LABEL), 63),
}
_ESCAPES = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")


def checked(parameter: str, segment: str) -> str:
    """The name that a segment of a path stands for. Raises HttpError (400) when it is none."""
    shape, length = _SHAPES[parameter]
    name = decoded(segment)
    if len(name) > length or not shape.fullmatch(name):
        raise HttpError(400, f"{name[:length]!r} in the path is not a valid {parameter} name")
    return name


def decoded(text: str) -> str:
    """Percent-decoded once; bytes that are no UTF-8 become surrogate escapes.

    Raises HttpError (400) for a percent sign that begins no escape.
    """
    if not _ESCAPES.fullmatch(text):
        raise HttpError(400, "the address has a malformed percent-escape")
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode(
        "utf-8", "surrogateescape"
    )
