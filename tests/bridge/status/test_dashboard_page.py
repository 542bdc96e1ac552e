"""The HTML page: its content, its Content-Security-Policy, and its relative links."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from bridge.status import dashboard_page
from tests.bridge.running_join import kubelet_api_client, running_join
from tests.bridge.status import examples
from tests.bridge.status.examples import refused, status
from tests.bridge.two_clusters import CANARY, Clusters

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;</style></main>"


class Elements(HTMLParser):
    """Parses a page into its elements, its text, scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.sources: dict[str, list[str]] = {"script": [], "style": []}
        self._within = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._within = tag

    def handle_data(self, data: str) -> None:
        if self._within in self.sources:
            self.sources[self._within].append(data)
            self._within = ""
        else:
            self.text += data


def rendered(shown: dict[str, Any]) -> Elements:
    return Elements(dashboard_page.render(shown).decode())


def test_page_shows_the_tree() -> None:
    shown = rendered(status(refused("b")))
    for words in ("remote Ready", "cpu", "0.5 of 3 (17 %)", "shop/b", "take it away", "lag"):
        assert words in shown.text, shown.text
    meters = {it["value"] for tag, it in shown.found if tag == "progress"}
    assert meters == {"17", "0", "1"}


def test_untrusted_text_is_escaped() -> None:
    error = {"level": "error", "message": HOSTILE, "count": 1, "first": HOSTILE, "last": HOSTILE}
    pod = refused("b", message=HOSTILE)
    pod["metadata"]["name"] = HOSTILE
    hostile = status(
        pod,
        name=HOSTILE,
        bridge=examples.bridge(errors=[error], standby=HOSTILE, streams={HOSTILE: 1}),
        conditions=[{"type": HOSTILE, "status": HOSTILE, "reason": HOSTILE, "message": HOSTILE}],
        resources={
            HOSTILE: {
                "capacity": "1",
                "allocatable": "1",
                "requested": HOSTILE,
                "requestedPercent": 1,
            }
        },
    )
    usual, shown = rendered(status(refused("b"))), rendered(hostile)
    assert {tag for tag, _ in shown.found} <= {tag for tag, _ in usual.found}
    assert shown.sources == usual.sources
    assert shown.text.count(HOSTILE) >= 10
    for _, attributes in shown.found:
        assert not [name for name in attributes if name.startswith("on")]
        assert HOSTILE not in attributes.values()


def test_content_security_policy_allows_only_the_inline_script_and_style() -> None:
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in dashboard_page.HEADERS["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    sources = rendered(status()).sources
    for kind in ("script", "style"):
        (source,) = sources[kind]
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    for nothing in ("base-uri", "form-action", "frame-ancestors"):
        assert policy[nothing] == "'none'"
    assert not [it for _, it in rendered(status()).found if "style" in it]


def test_links_are_relative() -> None:
    html = dashboard_page.render(status()).decode()
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert sorted(links) == ["data:,", "v1/status"]


def test_percentage_above_100_is_a_full_meter() -> None:
    resources = {
        "cpu": {"capacity": "1", "allocatable": "1", "requested": "3", "requestedPercent": 300}
    }
    shown = rendered(status(resources=resources))
    assert [it["value"] for tag, it in shown.found if tag == "progress"] == ["100"]


@pytest.mark.usefixtures("soon")
async def test_bridge_serves_the_page(two: Clusters) -> None:
    async with running_join(two) as run, kubelet_api_client(run) as session:
        async with session.get("/bridge", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (301, "bridge/")
        async with session.get("/bridge") as answer:
            assert answer.url.path == "/bridge/"
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert dashboard_page.HEADERS.items() <= dict(answer.headers).items()
            text = await answer.text()
        async with session.get("/bridge/other") as answer:
            assert answer.status == 404
        async with session.post("/bridge/") as answer:
            assert answer.status == 405
    assert CANARY not in text
    assert "serves the node" in Elements(text).text
