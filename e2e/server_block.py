"""Fills the placeholders of `manifests/coredns-server-block.conf`, as
docs/how-to/names-of-services.md describes."""

from __future__ import annotations

from pathlib import Path

_TEMPLATE = Path(__file__).parents[1] / "manifests" / "coredns-server-block.conf"
#: The longest name of a namespace (RFC 1123 label).
_MAX_LABEL = 63


def server_block(prefix: str, suffix: str, domain: str = "cluster.local") -> str:
    """The server block for namespaces with this text before and after the home cluster's name."""
    values = {
        "PREFIX": prefix,
        "SUFFIX": suffix,
        "LONGEST": str(_MAX_LABEL - len(prefix) - len(suffix)),
        "cluster.local": domain,
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text
