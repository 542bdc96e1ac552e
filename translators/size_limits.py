"""Measures and cuts parts of the remote's objects before they are copied to home."""

from __future__ import annotations

from typing import Any

#: Entries of a map or list: conditions, containers, resources.
ENTRIES = 256
#: Characters of a key.
KEY_LIMIT = 256
#: Levels of maps and lists; a pod's status has six.
DEPTH = 12
#: Bytes that each part counts beside its text.
_PART = 16


def fits(value: Any, limit: int, text_limit: int) -> bool:
    """Whether a value has at most ``limit`` bytes, and each text ``text_limit`` characters."""
    parts, size = [value], 0
    while parts:
        part = parts.pop()
        size += _PART
        if type(part) is str:
            size += len(part)
            if len(part) > text_limit:
                return False
        elif type(part) is dict:
            size += _PART * len(part)
            parts += part.values()
        elif type(part) is list:
            parts += part
        if size + _PART * len(parts) > limit:
            return False
    return True


def cut(value: Any, text_limit: int, depth: int = DEPTH) -> Any:
    """The value with texts of at most ``text_limit`` bytes, and with the first entries of long maps
    and lists."""
    kind = type(value)
    if kind is str:
        return cut_text(value, text_limit)
    if kind is dict:
        kept = list(value.items())[:ENTRIES] if depth else ()
        return {
            key: cut(part, text_limit, depth - 1) for key, part in kept if len(key) <= KEY_LIMIT
        }
    if kind is list:
        return [cut(part, text_limit, depth - 1) for part in value[:ENTRIES]] if depth else []
    return value


def cut_text(text: str, limit: int) -> str:
    """The beginning of a text, of at most ``limit`` bytes in UTF-8."""
    if len(text) <= limit // 4:
        return text
    raw = text.encode("utf-8", "surrogatepass")
    return text if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
