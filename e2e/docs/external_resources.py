"""External resources that the pages of a built site load; links for readers do not count."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

#: Tag → attribute whose address a browser loads.
_LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "script": "src",
    "source": "src",
    "video": "src",
}
#: Relations of links in the head that load nothing.
_NOT_LOADED = frozenset({"canonical", "next", "prev", "alternate"})


def external_addresses(site: Path) -> list[str]:
    """One line ``PAGE: ADDRESS`` for each resource. Raises ValueError if there is no page."""
    pages = sorted(site.rglob("*.html"))
    if not pages:
        raise ValueError(f"no page in {site}")
    found = []
    for page in pages:
        parser = _Parser()
        parser.feed(page.read_text("utf-8"))
        found += [f"{page.relative_to(site)}: {address}" for address in parser.found]
    return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        address = has.get(_LOADED.get(tag, "")) or ""
        if tag == "link" and has.get("rel") in _NOT_LOADED:
            return
        if address.startswith(("http://", "https://", "//")):
            self.found.append(address)
