"""Derives names and label values; those that are too long are truncated and end with a hash.

The derived names are stored in both clusters: a change to a function here is a change of the wire
format.
"""

from __future__ import annotations

import hashlib
import re

#: The longest namespace name, label value and Service name (RFC 1123 label).
DNS_LABEL_MAX = 63
#: The longest name of other objects (RFC 1123 subdomain).
OBJECT_NAME_MAX = 253
#: Hex digits of a hash in a name. With 64 bits, a user who may choose names in the home cluster
#: cannot find two that collide.
HASH_DIGITS = 16

#: Matches a label of the maximum length that ends like one that `label_value` truncated.
_TRUNCATED = re.compile(rf".{{{DNS_LABEL_MAX - HASH_DIGITS - 1}}}-[0-9a-f]{{{HASH_DIGITS}}}")


def short_hash(text: str) -> str:
    """The first `HASH_DIGITS` hex digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def hashed_name(
    stem: str, unique: str, *, max_length: int = OBJECT_NAME_MAX, separator: str = "-"
) -> str:
    """``stem``, truncated so that the name has at most ``max_length`` characters, and the hash of
    ``unique``, which distinguishes names with the same stem."""
    truncated = stem[: max_length - len(separator) - HASH_DIGITS].rstrip("-.")
    return f"{truncated}{separator}{short_hash(unique)}"


def truncated_name(name: str, *, max_length: int = OBJECT_NAME_MAX, unique: str = "") -> str:
    """``name``, or if it exceeds ``max_length`` its `hashed_name` with the hash of ``unique``
    (default: the name)."""
    if len(name) <= max_length:
        return name
    return hashed_name(name, unique or name, max_length=max_length)


def label_value(text: str) -> str:
    """``text`` as a label value, truncated with a hash of ``text`` if it is too long. A text
    that looks like a truncated one is hashed too: it could be chosen to equal a truncated label
    value."""
    if _TRUNCATED.fullmatch(text):
        return hashed_name(text, text, max_length=DNS_LABEL_MAX)
    return truncated_name(text, max_length=DNS_LABEL_MAX)


def dns_label(text: str) -> str:
    """``text`` as a DNS label: ``admin@Prod_1`` → ``admin-prod-1``; ``cluster`` if nothing is
    left."""
    plain = re.sub(r"[^-a-z0-9]+", "-", text.lower()).strip("-")
    return label_value(plain or "cluster")
