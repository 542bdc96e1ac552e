"""``/bridge/``: the tree of `bridge status` as an HTML page that refreshes itself.

- Rendered as an element tree, so that text and attributes are always escaped. The page has one
  inline script and one inline style; the Content-Security-Policy allows only their hashes, and
  blocks everything else.
- Read-only. While visible, the page fetches itself every `REFRESH_SECONDS`; without scripts the
  browser reloads it.
- All links are relative, so the page works below any path, such as `/api/v1/nodes/NAME/proxy/` of
  home's API server. Authorization is the same as for ``/metrics``.
"""

from __future__ import annotations

import base64
import hashlib
from xml.etree.ElementTree import Element, SubElement, tostring

from aiohttp import web

from bridge.status.status_tree import Branch, build_tree, printable
from translators.object_accessors import Object

#: Seconds between two refreshes.
REFRESH_SECONDS = 3

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --dim: #777; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
ul { list-style: none; margin: 0; padding: 0 0 0 1.2rem; border-left: 1px solid var(--line); }
main > ul { border: 0; padding: 0; }
main > ul > li { margin: .8rem 0; }
main > ul > li > b { font-size: 1.05rem; }
li { overflow-wrap: anywhere; }
.good { color: #1a7f37; } .warn { color: #9a6700; } .bad { color: #cf222e; }
.dim, footer { color: var(--dim); }
progress { width: 8rem; margin-left: .6rem; vertical-align: middle; }
footer { margin-top: 2rem; font-size: .85rem; }
@media (prefers-color-scheme: dark) {
  .good { color: #57ab5a; } .warn { color: #c69026; } .bad { color: #f47067; }
}
"""
#: Replaces the main element with its next state, which keeps the scroll position.
_SCRIPT = """
setInterval(async () => {
  if (document.hidden) return;
  const note = document.getElementById('note');
  try {
    const answer = await fetch(location.href, {cache: 'no-store'});
    if (!answer.ok) throw new Error(answer.status + ' ' + (await answer.text()).slice(0, 300));
    const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
    document.querySelector('main').replaceWith(next.querySelector('main'));
    document.title = next.title;
    note.textContent = '';
  } catch (error) { note.textContent = 'This state is outdated. ' + error.message; }
}, SECONDS * 1000);
""".replace("SECONDS", str(REFRESH_SECONDS))


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(_SCRIPT)}",
            f"style-src {_hash(_STYLE)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def redirect_to_folder() -> web.Response:
    """Redirects to the path with a trailing slash, which the relative links require."""
    return web.Response(status=301, headers={"Location": "bridge/"})


def response(status: Object) -> web.Response:
    """The response with the page of one node."""
    return web.Response(
        body=render(status), content_type="text/html", charset="utf-8", headers=HEADERS
    )


def render(status: Object) -> bytes:
    """The page of one node, as HTML."""
    root = build_tree(status)
    html = Element("html", lang="en")
    head = SubElement(html, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "title").text = printable(f"{root.label}: {root.text}")
    SubElement(head, "link", rel="icon", href="data:,")
    SubElement(head, "style").text = _STYLE
    SubElement(SubElement(head, "noscript"), "meta", {"http-equiv": "refresh", "content": "5"})
    body = SubElement(html, "body")
    main = SubElement(body, "main")
    title = SubElement(main, "h1")
    title.text = printable(f"{root.label} ")
    _add_text(title, root)
    resources = status.get("resources") or {}
    _add_list(main, root, {name: it["requestedPercent"] for name, it in resources.items()})
    footer = SubElement(body, "footer")
    note = SubElement(footer, "p", {"id": "note", "class": "bad", "role": "status"})
    note.text = ""
    foot = SubElement(footer, "p")
    foot.text = "Read-only; the same as "
    SubElement(foot, "code").text = "bridge status"
    SubElement(foot, "a", href="v1/status").text = "as JSON"
    foot[0].tail = ", also "
    foot[1].tail = "."
    SubElement(body, "script").text = _SCRIPT
    text: str = tostring(html, encoding="unicode", method="html")
    return f"<!DOCTYPE html>\n{text}".encode()


def _add_list(parent: Element, branch: Branch, percents: dict[str, int | None]) -> None:
    items = SubElement(parent, "ul")
    for below in branch.children:
        item = SubElement(items, "li")
        label = SubElement(item, "b" if below.children else "span")
        label.text = printable(below.label)
        if below.text:
            label.tail = ": "
            _add_text(item, below)
        percent = percents.get(below.label)
        if branch.label == "capacity and use" and percent is not None:
            SubElement(item, "progress", max="100", value=str(min(percent, 100)))
        if below.children:
            _add_list(item, below, percents)


def _add_text(parent: Element, branch: Branch) -> None:
    span = SubElement(parent, "span")
    span.text = printable(branch.text)
    if branch.tone:
        span.set("class", branch.tone)
