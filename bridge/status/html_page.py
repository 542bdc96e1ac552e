"""``/bridge/``: the tree of `bridge status` as a page that renews itself, for a browser.

- Rendered here, as a tree of elements that is written out at the end: what stands in text and
  attributes is escaped by that, whatever it holds. One script and one style stand in the page; the
  Content-Security-Policy names them by their hashes and lets nothing else run, load or be sent.
- Read-only: nothing on it changes anything. It asks for itself again every `RENEW` seconds while
  somebody looks at it; without scripts the browser does so.
- All links are relative, so it works below any path, such as `/api/v1/nodes/NAME/proxy/` of home's
  API server. Guarded as ``/metrics``.
"""

from __future__ import annotations

import base64
import hashlib
from xml.etree.ElementTree import Element, SubElement, tostring

from aiohttp import web

from bridge.status import tree
from bridge.status.tree import Branch
from translators.objects import Object

#: Seconds between two looks.
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
#: Puts the page's next state in the place of this one, and keeps where the reader is.
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
  } catch (error) { note.textContent = 'This is an old state. ' + error.message; }
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
    """To the folder, whose relative links are meant."""
    return web.Response(status=301, headers={"Location": "bridge/"})


def response(status: Object) -> web.Response:
    """The page of one node, as it is sent."""
    return web.Response(
        body=render(status), content_type="text/html", charset="utf-8", headers=HEADERS
    )


def render(status: Object) -> bytes:
    """The page of one node."""
    root = tree.build_tree(status)
    html = Element("html", lang="en")
    head = SubElement(html, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "title").text = _clean(f"{root.label}: {root.text}")
    SubElement(head, "link", rel="icon", href="data:,")
    SubElement(head, "style").text = _STYLE
    SubElement(SubElement(head, "noscript"), "meta", {"http-equiv": "refresh", "content": "5"})
    body = SubElement(html, "body")
    main = SubElement(body, "main")
    title = SubElement(main, "h1")
    title.text = _clean(f"{root.label} ")
    _said(title, root)
    resources = status.get("resources") or {}
    _list(main, root, {name: it["requestedPercent"] for name, it in resources.items()})
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


def _list(parent: Element, branch: Branch, percents: dict[str, int | None]) -> None:
    items = SubElement(parent, "ul")
    for below in branch.children:
        item = SubElement(items, "li")
        label = SubElement(item, "b" if below.children else "span")
        label.text = _clean(below.label)
        if below.text:
            label.tail = ": "
            _said(item, below)
        percent = percents.get(below.label)
        if branch.label == "capacity and use" and percent is not None:
            SubElement(item, "progress", max="100", value=str(min(percent, 100)))
        if below.children:
            _list(item, below, percents)


def _said(parent: Element, branch: Branch) -> None:
    span = SubElement(parent, "span")
    span.text = _clean(branch.text)
    if branch.tone:
        span.set("class", branch.tone)


def _clean(said: str) -> str:
    """Without characters that no document may have, or that turn a line's direction."""
    return tree.printable(said)
