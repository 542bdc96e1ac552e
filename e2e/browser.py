"""Controls a headless Chromium through its DevTools protocol over a WebSocket, without a driver.

        python -m e2e.browser URL FILE       writes a screenshot of the page

`Browser` opens pages, evaluates expressions in them, presses keys, takes screenshots, and records
requests, errors of scripts and violations of the Content-Security-Policy.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from e2e.clusters.system_packages import Package, ensure

#: Debian packages of the browser, with a font.
PACKAGES = (Package("chromium", "chromium"), Package("fontconfig", "fc-list"))
#: Seconds for a start, for a response, and for a condition on a page.
START, ANSWER, SOON = 60.0, 30.0, 30.0
#: Seconds between two checks of a page.
LOOK = 0.1
WIDTH, HEIGHT = 1000, 800
_LISTENS = re.compile(rb"DevTools listening on (ws://\S+)")
#: Windows' codes of keys without a character.
_KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
_OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
    f"--window-size={WIDTH},{HEIGHT}",
)


class Browser:
    """One page of the browser; created by `opened`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session = ""
        self.complaints: list[str] = []
        """Errors since the page was opened."""
        self.requests: list[str] = []
        """The addresses of all requests."""

    async def begin(self) -> None:
        """Creates the page and enables its error events."""
        target = await self._ask("Target.createTarget", url="about:blank")
        attached = await self._ask(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        self._session = attached["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            await self._ask(f"{domain}.enable")

    async def go(self, url: str) -> None:
        """Opens the address and waits until the page is complete."""
        answer = await self._ask("Page.navigate", url=url)
        if error := answer.get("errorText"):
            raise AssertionError(f"{url}: {error}")
        await self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, the value it resolves to."""
        answer = await self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if details := answer.get("exceptionDetails"):
            raise AssertionError(f"{expression}: {details}")
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Waits until the expression is true."""
        try:
            async with asyncio.timeout(SOON):
                while True:
                    if await self.evaluate(expression):
                        return
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"not in {SOON:.0f} s: {expression}\n{text}") from None

    async def resize(self, width: int, height: int) -> None:
        """Sets the size of the visible part, in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self._ask("Emulation.setDeviceMetricsOverride", **metrics)

    async def emulate(self, **features: str) -> None:
        """Sets media features, such as ``prefers_color_scheme="dark"``."""
        named = [{"name": key.replace("_", "-"), "value": it} for key, it in features.items()]
        await self._ask("Emulation.setEmulatedMedia", features=named)

    async def press(self, key: str) -> None:
        """Presses and releases a key, such as ``Enter`` or ``/``."""
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        event = {"key": key, "windowsVirtualKeyCode": code}
        await self._ask("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
        await self._ask("Input.dispatchKeyEvent", type="keyUp", **event)

    async def type(self, text: str) -> None:
        """Enters text where the focus is."""
        await self._ask("Input.insertText", text=text)

    async def picture(self, *, whole: bool = True) -> bytes:
        """A screenshot of the whole page or its visible part, as PNG."""
        answer = await self._ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        return base64.b64decode(answer["data"])

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        await self._socket.send_json(
            {**message, "sessionId": self._session} if self._session else message
        )
        async with asyncio.timeout(ANSWER):
            while True:
                message_in = await self._socket.receive_json()
                if message_in.get("id") == number:
                    assert "error" not in message_in, f"{method}: {message_in}"
                    found: dict[str, Any] = message_in["result"]
                    return found
                self._note(message_in)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            entry = params["entry"]
            if entry["level"] in ("warning", "error"):
                self.complaints.append(f"{entry['level']}: {entry['text']}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))


@asynccontextmanager
async def opened() -> AsyncIterator[Browser]:
    """A browser with an empty profile; installs Chromium if it is missing."""
    ensure(PACKAGES, print)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [*_OPTIONS, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium refuses its sandbox as root.
        process = await asyncio.create_subprocess_exec(
            "chromium", *options, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        try:
            async with asyncio.timeout(START):
                address = await _address(process)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = Browser(socket)
                await browser.begin()
                yield browser
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await process.communicate()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    output = b""
    while line := await process.stderr.readline():
        output += line
        if found := _LISTENS.search(line):
            return found[1].decode()
    raise AssertionError(f"chromium ended: {output.decode()}")


async def picture(url: str) -> bytes:
    """A screenshot of the page."""
    async with opened() as browser:
        await browser.go(url)
        return await browser.picture()


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(asyncio.run(picture(sys.argv[1])))
