"""Escapes control characters in text for terminals and logs, such as API servers' messages, and
shortens lists of names.

An escape sequence can move the cursor, rewrite the screen or set the title of a terminal; a newline
can forge a log line; a bidirectional override can reorder one. Objects and messages of API servers
may contain all of them. Characters that `str.isprintable` does not count as printable are written
as Python escapes (``\\x1b``, ``\\u202e``).
"""

from __future__ import annotations

from collections.abc import Iterable


def summarize_names(names: Iterable[str], limit: int = 5, *, separator: str = ", ") -> str:
    """The first ``limit`` names, and the number of the others."""
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return separator.join(found[:limit]) + more


def escape_line(text: str) -> str:
    """Escapes all non-printable characters, newlines included."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def escape_lines(text: str) -> str:
    """Escapes all non-printable characters except newlines."""
    return "\n".join(map(escape_line, text.split("\n")))


def escape_json(encoded: str) -> str:
    """Escapes non-printable characters except newlines in encoded JSON; the decoded value is the
    same."""
    if encoded.isprintable():
        return encoded
    return "".join(it if it == "\n" or it.isprintable() else _json_escaped(it) for it in encoded)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high << 8 | low:04x}" for high, low in pairs)
