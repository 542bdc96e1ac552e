"""Text for terminals and logs: names and messages of API servers without their control characters.

An escape sequence can move the cursor, rewrite what a terminal shows or set its title, a newline
can forge a log line, and a bidirectional override can reorder one. Objects and API servers'
messages may hold each of them. Characters that `str.isprintable` does not count as printable are
written as Python escapes them (``\\x1b``, ``\\u202e``).
"""

from __future__ import annotations


def escape_line(text: str) -> str:
    """The text with all such characters escaped, newlines too."""
    if text.isprintable():
        return text
    return "".join(map(_escaped, text))


def escape_lines(text: str) -> str:
    """The same for text of several lines, which it keeps."""
    return "\n".join(map(escape_line, text.split("\n")))


def escape_json(encoded: str) -> str:
    """Encoded JSON, whose newlines it keeps, with such characters as JSON escapes them. The decoded
    value is the same."""
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
