"""Links and anchors of a Markdown page, as on GitHub and on the site. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_FENCE = re.compile(r"^\s*(```|~~~)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_TAG = re.compile(r"<[^>]*>")
_ID = re.compile(r'<a id="([^"]+)">')
_CODE = re.compile(r"`[^`]*`")
#: The end of a link, whose text may begin on an earlier line.
_TARGET = re.compile(r"\]\(([^()\s]+)\)")
_LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s]+)\)")


class Link(NamedTuple):
    """A link and its line."""

    line: int
    target: str

    @property
    def path(self) -> str:
        """Path of the linked file; "" for the page itself."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        """The anchor; "" for the start of the page."""
        return self.target.partition("#")[2]

    @property
    def is_external(self) -> bool:
        """Whether it leads out of the repository."""
        return bool(re.match(r"[a-z][a-z0-9+.-]*:", self.target))


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading. MkDocs calls it with the second parameter."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", _TAG.sub("", heading)).lower()
    return re.sub(r"[^\w\s-]", "", text).strip().replace(" ", separator)


def heading_anchors(page: str) -> list[str]:
    """The anchors of all headings, and manual ones, in order."""
    found = []
    for _, line in _prose(page):
        found += _ID.findall(line)
        if match := _HEADING.match(line):
            found.append(slug(match[1]))
    return found


def links(page: str) -> Iterator[Link]:
    """All links outside code."""
    for number, line in _prose(page):
        # The text of a link may be code, its address never is.
        for match in _TARGET.finditer(_without_links_in_code(line)):
            yield Link(number, match[1])


def rewrite_links(page: str, change: Callable[[str], str | None]) -> str:
    """The page with each target replaced by ``change(target)``; None replaces a link by its
    text."""

    def changed(match: re.Match[str]) -> str:
        target = change(match["target"])
        return f"{match['text']}({target})" if target is not None else match["text"][1:-1]

    lines = page.split("\n")
    for number, line in _prose(page):
        lines[number - 1] = _LINK.sub(changed, line)
    return "\n".join(lines)


def _without_links_in_code(line: str) -> str:
    return _CODE.sub(lambda it: it[0].replace("](", "] ("), line)


def _prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines outside of code blocks, numbered from 1."""
    fence = ""
    for number, line in enumerate(page.split("\n"), start=1):
        match = _FENCE.match(line)
        if match and fence in ("", match[1]):
            fence = "" if fence else match[1]
        elif not fence:
            yield number, line
