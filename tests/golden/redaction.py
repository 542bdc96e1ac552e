"""Removes from outputs and objects what differs between two runs, and prose.

Prose is the text for people, which may be worded differently: messages, hints, descriptions. A
golden file only records that there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

#: Replaces a text for people.
PROSE = "…"
#: Fields with a text for people, of objects and of outputs.
PROSE_FIELDS = frozenset(
    {
        *("message", "note", "hint", "help", "summary", "text", "description", "title", "found"),
        *("why", "problem", "becomes", "podSecurity", "bridgeUnknown", "detail", "what"),
    }
)
#: Fields of features that the product gives up: they are not recorded.
_OMITTED_FIELDS = frozenset(
    {"policy", "decidedBy", "cost", "tier", "fleet", "python", "cluster-bridge.io/publish-room"}
)
#: Numbers that differ between two runs.
_MEASURED_FIELDS = frozenset({"uptimeSeconds", "silentSeconds", "lagSeconds", "oldestSeconds"})
#: Lists of the product's own parts, of which only the fields of an entry are recorded.
_INTERNAL_FIELDS = frozenset({"queues", "watches"})
#: Metadata that the API server sets.
_SERVER_METADATA = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink"}
)
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
#: A time further from now than this is of the inputs.
_NEAR = timedelta(days=2)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bpid \d+"), "pid <pid>"),
    (re.compile(r"kube-api-access-[0-9a-z]{5}"), "kube-api-access-<random>"),
    (re.compile(r"cluster-bridge-relay-[0-9a-f]{8}"), "cluster-bridge-relay-<random>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<random>"),
    (re.compile(r"issued-token-[0-9a-f]{16}"), "<token>"),
    # `issued-token-` in base64, in each alignment that a Secret can have.
    (re.compile(r"aXNzdWVkLXRva2VuL[A-Za-z0-9+/=]+"), "<token>"),
    (re.compile(r"\b10\.96\.\d+\.\d+\b"), "<cluster-ip>"),
)


class Redaction:
    """Replaces values.

    ``words`` are replaced wherever they stand, the longest first. Texts in ``kept`` are inputs,
    which the bridge passes on: they are no prose.
    """

    def __init__(self, words: Mapping[str, str], *, kept: frozenset[str] = frozenset()) -> None:
        self._words = sorted(words.items(), key=lambda item: -len(item[0]))
        self._kept = kept

    def apply(self, value: Any) -> Any:
        """A copy without what differs, and without prose."""
        if isinstance(value, dict):
            return {
                self.apply(key): PROSE if self._is_prose(key, inner) else self._field(key, inner)
                for key, inner in value.items()
                if key not in _OMITTED_FIELDS
            }
        if isinstance(value, list):
            return [self.apply(inner) for inner in value]
        return self._text(value) if isinstance(value, str) else value

    def _is_prose(self, key: str, inner: Any) -> bool:
        if key not in PROSE_FIELDS or not isinstance(inner, str) or inner in self._kept:
            return False
        # A single word in another field than a message is a value, such as a level or a version.
        return " " in inner or (key == "message" and inner != "")

    def _field(self, key: str, inner: Any) -> Any:
        if key in _MEASURED_FIELDS and isinstance(inner, int | float):
            return "<measured>"
        if key in _INTERNAL_FIELDS and isinstance(inner, list):
            return sorted({name for entry in inner for name in entry})
        if key == "metadata" and isinstance(inner, dict):
            inner = {name: part for name, part in inner.items() if name not in _SERVER_METADATA}
        return self.apply(inner)

    def _text(self, text: str) -> str:
        for word, replacement in self._words:
            text = text.replace(word, replacement)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return _TIME.sub(_time, text)


def _time(match: re.Match[str]) -> str:
    moment = datetime.fromisoformat(match[0].replace("Z", "+00:00"))
    return "<time>" if abs(datetime.now(UTC) - moment) < _NEAR else match[0]
