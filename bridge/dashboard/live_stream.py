"""Server-sent events with the changes of the fleet, for one page.

- The first event has everything, and each later one what changed since: rows of pods, UIDs of
  removed pods, views of remotes, samples. There is at most one per `MIN_INTERVAL`.
- The ID of an event is the reader's position. A page that reconnects sends the ID of its last
  event, and gets the changes since; all, if the position is unknown or too old.
- A stream ends after `STREAM_SECONDS`: no connection of the server stays open for ever. The page
  reconnects.
- A page that does not read holds one event in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, replace

import orjson
from aiohttp import web

from bridge.dashboard.fleet_watch import FleetWatch
from translators.object_accessors import Object

#: Seconds between two events, at least; between two comments that keep the connection alive.
MIN_INTERVAL, KEEPALIVE = 1.0, 15.0
#: Seconds after which a stream ends; the server ends every connection after two minutes.
STREAM_SECONDS = 100.0
#: A revision in the ID of an event.
_COUNT = re.compile(r"[0-9]{1,18}")
#: Milliseconds after which a page reconnects.
_RETRY = 500


@dataclass(frozen=True, slots=True)
class Position:
    """The revisions that a page has seen."""

    epoch: str
    """Of the server's process: revisions of another one mean nothing."""
    pods: int = -1
    views: int = 0
    samples: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.pods}.{self.views}.{self.samples}"

    @classmethod
    def parse(cls, text: str, epoch: str) -> Position:
        """The position in an event's ID; the start, if it is of another process or malformed."""
        known, *numbers = text.split(".")
        if known == epoch and len(numbers) == 3 and all(map(_COUNT.fullmatch, numbers)):
            return cls(epoch, *(int(it) for it in numbers))
        return cls(epoch)


def build_update(watch: FleetWatch, seen: Position) -> tuple[Object, Position]:
    """The changes after ``seen`` ({} without any), and the next position."""
    update: Object = {}
    revision, views = watch.views_since(seen.views)
    if views:
        update["remotes"] = views
    if (home := watch.home_since(seen.views)) is not None:
        update["home"] = home
    changes = watch.pods.changes_since(seen.pods) if seen.pods >= 0 else None
    if changes is None:
        update["pods"] = {"reset": True, "rows": watch.pods.rows(), "removed": []}
    elif changes.rows or changes.removed:
        update["pods"] = {"reset": False, "rows": changes.rows, "removed": changes.removed}
    history = watch.history
    if seen.samples != history.revision or seen.pods < 0:
        update["history"] = {"reset": not seen.samples, **history.since(seen.samples)}
    now = replace(seen, pods=watch.pods.revision, views=revision, samples=history.revision)
    return update, now


async def stream(
    request: web.BaseRequest, watch: FleetWatch, epoch: str, headers: dict[str, str]
) -> web.StreamResponse:
    """Sends events until the client disconnects or the stream's time is over."""
    response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream"})
    # The next request could otherwise wait behind this response.
    response.force_close()
    await response.prepare(request)
    seen = Position.parse(request.headers.get("Last-Event-ID", ""), epoch)
    with contextlib.suppress(TimeoutError), watch.reading() as changed:
        await response.write(f"retry: {_RETRY}\n\n".encode())
        async with asyncio.timeout(STREAM_SECONDS):
            while True:
                changed.clear()
                update, seen = build_update(watch, seen)
                if update:
                    data = orjson.dumps(update)
                    await response.write(b"id: %s\ndata: %s\n\n" % (str(seen).encode(), data))
                    await asyncio.sleep(MIN_INTERVAL)
                await _keep_alive_until(changed, response)
    return response


async def _keep_alive_until(changed: asyncio.Event, response: web.StreamResponse) -> None:
    while not changed.is_set():
        try:
            async with asyncio.timeout(KEEPALIVE):
                await changed.wait()
        except TimeoutError:
            await response.write(b": alive\n\n")
