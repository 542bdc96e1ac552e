"""The dashboard in a real Chromium: 20 remotes and 5,000 pods at a simulated home.

The page is driven as its users do: by search, sorting, filters, keyboard and clicks, in both
colours. It must send no request to anywhere else, and break no policy.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from e2e import browser
from e2e.browser import Browser
from e2e.dashboard_pictures import NARROW, WIDE, shown, simulated
from sync.kube.api_resources import PODS
from tests.bridge.dashboard import example_fleet
from tests.fakeapi import FakeApi

REMOTES, PODS_COUNT = 20, 5000
#: The ratio of WCAG 2.1, level AA, for text of this size.
CONTRAST = 4.5


#: Texts whose contrast with the colour behind them is too low. A canvas converts any colour.
_CONTRAST = """
(() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((it, at) => it * a + below[at] * (1 - a));
  const behind = (element) => {
    if (!element) return rgba(getComputedStyle(document.body).backgroundColor).slice(0, 3);
    const color = rgba(getComputedStyle(element).backgroundColor);
    return color[3] === 1 ? color.slice(0, 3) : over(color, behind(element.parentElement));
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((it) => it / 255)
      .map((it) => (it <= 0.03928 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    const back = behind(element);
    const front = over(rgba(getComputedStyle(element).color), back);
    const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const text = `${ratio.toFixed(2)} ${element.className}: ${element.textContent}`;
    if (ratio < LIMIT) found.push(text);
  }
  return [...new Set(found)].slice(0, 20);
})()
""".replace("LIMIT", str(CONTRAST))

#: Elements that a keyboard reaches and that have no name for a screen reader.
_NAMELESS = """
[...document.querySelectorAll('button, input, select, [tabindex="0"], [role=grid], [role=img]')]
  .filter((it) => it.checkVisibility())
  .filter((it) => !(it.getAttribute('aria-label') || it.getAttribute('aria-labelledby')
    || it.textContent.trim() || it.labels?.[0]?.textContent.trim()))
  .map((it) => it.outerHTML.slice(0, 120))
"""


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Browser, FakeApi, str]]:
    """The page with the whole fleet."""
    async with simulated(REMOTES, PODS_COUNT) as (api, url), browser.opened() as page:
        await page.resize(*WIDE)
        await page.emulate(prefers_color_scheme="light")
        await shown(page, url, remotes=REMOTES, pods=PODS_COUNT)
        yield page, api, url
        assert page.complaints == []
        assert page.requests
        assert [it for it in page.requests if not it.startswith(url)] == []


@pytest.mark.timeout(180)
async def test_dashboard_of_a_large_fleet() -> None:
    async with opened() as (page, api, _):
        await _check_picture(page)
        await _check_search_and_sorting(page)
        await _check_keyboard_and_details(page, api)
        await _check_selection_of_a_remote(page)
        await _check_colours(page)
        await _check_live_changes(page, api)
        await _check_narrow(page)


async def _text(page: Browser, selector: str) -> str:
    found: str = await page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
    return found


async def _texts(page: Browser, selector: str) -> list[str]:
    found: list[str] = await page.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".filter((it) => it.checkVisibility()).map((it) => it.textContent)"
    )
    return found


async def _click(page: Browser, selector: str) -> None:
    await page.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


async def _check_picture(page: Browser) -> None:
    assert await _text(page, ".home-name") == "production"
    tiers = await _texts(page, ".lane-title > span:first-child")
    assert tiers == ["1-owned", "2-reserved", "3-on-demand", "4-spot"]
    assert "2 need attention" in await _text(page, "#totals")
    assert "NotReady" in await _text(page, ".card.bad .card-state")
    label = await page.evaluate("document.querySelector('[data-name=gpu-hall]').ariaLabel")
    for word in ("gpu-hall: Ready", "tier 1-owned", "cost 0.05", "cpu ", "gpu "):
        assert word in label
    assert await page.evaluate("document.querySelectorAll('.link').length") == len(tiers)
    assert len(await _texts(page, ".plot-title")) == 5
    now = "document.querySelector('[data-series=pods] .plot-now').textContent"
    await page.until(f"{now} === '5,000'")
    assert await page.evaluate(_NAMELESS) == []


async def _check_search_and_sorting(page: Browser) -> None:
    await page.press("/")
    assert await page.evaluate("document.activeElement.id") == "search"
    await page.type("checkout crash")
    await page.until(
        "/^\\d+ of 5,000 pods$/.test(document.getElementById('pod-count').textContent)"
    )
    assert set(await _texts(page, ".row .status-text")) == {"CrashLoopBackOff"}
    await page.evaluate("document.getElementById('search').select()")
    await page.type("no such pod")
    await page.until("!document.getElementById('no-pods').hidden")
    await page.evaluate("document.getElementById('search').value = ''")
    await _choose(page, "filter-status", "dim")
    await page.until("document.querySelector('.row .status-text').textContent === 'Completed'")
    await _choose(page, "filter-status", "")

    await _click(page, "[data-key=name] button")
    await page.until("document.querySelector('[data-key=name]').ariaSort === 'ascending'")
    names = await _names(page)
    assert names == sorted(names)
    await _click(page, "[data-key=name] button")
    await page.until("document.querySelector('[data-key=name]').ariaSort === 'descending'")
    assert (await _names(page))[0] > names[-1]


async def _choose(page: Browser, select: str, value: str) -> None:
    await page.evaluate(
        f"(it => {{ it.value = {json.dumps(value)};"
        "it.dispatchEvent(new Event('input', {bubbles: true})); })"
        f"(document.getElementById('{select}'))"
    )


async def _names(page: Browser) -> list[str]:
    """The names in the order of the visible rows."""
    found: list[str] = await page.evaluate(
        "[...document.querySelectorAll('.row')].filter((it) => it.checkVisibility())"
        ".sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((it) => it.children[1].textContent)"
    )
    return found


async def _check_keyboard_and_details(page: Browser, api: FakeApi) -> None:
    await page.evaluate("document.getElementById('pods').focus()")
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp"):
        await page.press(key)
    active = (
        "document.getElementById(document.getElementById('pods').ariaActiveDescendantElement.id)"
    )
    assert await page.evaluate(f"{active}.ariaRowIndex") == "3"
    await page.press("End")
    assert await page.evaluate(f"{active}.ariaRowIndex") == str(PODS_COUNT + 1)
    await page.press("Home")
    name = await page.evaluate(f"{active}.children[1].textContent")
    namespace = await page.evaluate(f"{active}.children[2].textContent")
    api.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "one", "namespace": namespace},
            "involvedObject": {"kind": "Pod", "name": name, "namespace": namespace},
            "type": "Warning",
            "reason": "Hostile",
            "message": example_fleet.HOSTILE,
        }
    )
    await page.press("Enter")
    await page.until("document.querySelector('.summary') !== null")
    assert await _text(page, "#details-title") == name
    assert f"pod {namespace}/{name}" in await _text(page, ".summary")
    assert await page.evaluate("document.activeElement.id") == "details-close"
    await _click(page, "#tab-events")
    await page.until("document.querySelector('.events') !== null")
    assert example_fleet.HOSTILE in await _text(page, ".events")
    assert (
        await page.evaluate("document.querySelectorAll('.events img, .events script').length") == 0
    )
    assert await page.evaluate(_CONTRAST) == []
    await page.press("Escape")
    assert await page.evaluate("document.getElementById('details').hidden")
    assert await page.evaluate("document.activeElement.id") == "pods"


async def _check_selection_of_a_remote(page: Browser) -> None:
    await page.evaluate("document.querySelector('.card[tabindex=\"0\"]').focus()")
    await page.press("ArrowRight")
    name = await page.evaluate("document.activeElement.dataset.name")
    assert name == "berlin-b"
    await page.press("Enter")
    await page.until(f"document.getElementById('history-subject').textContent === '{name}'")
    await page.until("document.getElementById('pod-count').textContent.includes(' of ')")
    assert await page.evaluate("document.getElementById('filter-remote').value") == name
    cells = await _texts(page, ".row > :nth-child(4)")
    assert set(cells) == {name}
    await _click(page, "#clear-remote")
    await page.until("document.getElementById('pod-count').textContent === '5,000 pods'")


async def _check_colours(page: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    assert await page.evaluate(_CONTRAST) == []
    light = await page.evaluate(background)
    await page.emulate(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    dark = await page.evaluate(background)
    assert light != dark
    assert await page.evaluate(_CONTRAST) == []
    assert await page.evaluate("document.getAnimations().length") == 0
    await _click(page, "#theme")
    assert await page.evaluate(background) == light
    assert await page.evaluate("localStorage.getItem('cluster-bridge-theme')") == "light"
    await _click(page, "#theme")
    assert await page.evaluate(background) == dark
    await _click(page, "#theme")
    await page.emulate(prefers_color_scheme="light")


async def _check_live_changes(page: Browser, api: FakeApi) -> None:
    await page.evaluate("window.same = true")
    api.put(example_fleet.pod(99_999, "spot-b"))
    await page.until("document.getElementById('pod-count').textContent === '5,001 pods'")
    name = example_fleet.pod(99_999, "spot-b")["metadata"]
    api.remove(PODS, name["name"], name["namespace"])
    await page.until("document.getElementById('pod-count').textContent === '5,000 pods'")
    assert await page.evaluate("window.same")
    assert await page.evaluate("document.querySelectorAll('.row').length") < 100


async def _check_narrow(page: Browser) -> None:
    await page.resize(*NARROW)
    await page.until("document.getElementById('links').childElementCount === 0")
    width = await page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW[0], "nothing is wider than the window"
    assert len(await _names(page)) > 5
