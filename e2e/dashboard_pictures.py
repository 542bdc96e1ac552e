"""Takes the pictures of the dashboard for the documentation, in a real browser.

        python -m e2e.dashboard_pictures [FOLDER]     writes into docs/images by default

The fleet is simulated: a fake API server with 12 remotes and 1,800 pods (`example_fleet`). One
picture is of a wide window in light colours, the other of a narrow one in dark colours.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bridge.dashboard.loopback_server import loopback_server
from e2e import browser
from e2e.browser import Browser
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.dashboard import example_fleet
from tests.fakeapi import FakeApi, credentials_for
from tests.fakeapi.kubeconfig import kubeconfig, write

ROOT = Path(__file__).parents[1]
REMOTES, PODS = 12, 1800
#: Sizes of the window: a screen, and a telephone.
WIDE, NARROW = (1440, 900), (430, 930)


@asynccontextmanager
async def simulated(remotes: int, pods: int) -> AsyncIterator[tuple[FakeApi, str]]:
    """A fleet with a past hour; its API server and the address of its dashboard."""
    async with FakeApi() as api:
        example_fleet.put_fleet(api, remotes=remotes, pods=pods)
        config = credentials_for(api, "home")
        config.context = "production"
        with tempfile.TemporaryDirectory() as folder:
            content = kubeconfig(api.url, user={"token": api.token or "none"}, context="production")
            ref = KubeconfigRef(write(Path(folder) / "home.yaml", content))
            history = example_fleet.past_hour(remotes, pods)
            async with (
                KubeClient(config) as home,
                loopback_server(home, None, ref=ref, history=history) as url,
            ):
                yield api, url


async def shown(page: Browser, url: str, *, remotes: int, pods: int) -> None:
    """Opens the page, and waits until it shows the whole fleet."""
    await page.go(url)
    await page.until(
        f"document.querySelectorAll('.card').length === {remotes}"
        f" && document.getElementById('pod-count').textContent === '{pods:,} pods'"
        " && ![...document.querySelectorAll('.card-state')].some("
        "(it) => /not (queried|listed) yet/.test(it.textContent))"
        " && document.getElementById('live').dataset.state === 'live'"
    )


async def take(folder: Path) -> None:
    """Takes both pictures."""
    async with simulated(REMOTES, PODS) as (_, url), browser.opened() as page:
        await page.resize(*WIDE)
        await page.emulate(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        await shown(page, url, remotes=REMOTES, pods=PODS)
        (folder / "dashboard.png").write_bytes(await page.picture())
        await page.resize(*NARROW)
        await page.emulate(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
        await page.until("document.getElementById('links').childElementCount === 0")
        (folder / "dashboard-narrow.png").write_bytes(await page.picture(whole=False))


if __name__ == "__main__":
    # A typeface for pictures; the page itself uses the reader's.
    subprocess.run(["sh", ROOT / "e2e" / "apt-install.sh", "fonts-inter"], check=True)
    asyncio.run(take(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"))
