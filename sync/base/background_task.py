"""Tasks that run beside a block, and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def background_task(
    work: Coroutine[Any, Any, T], *, name: str
) -> AsyncIterator[asyncio.Task[T]]:
    """Runs ``work`` as a task while the block runs, and ends it by `cancel_and_wait`."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        await cancel_and_wait(task)


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancels the task, and returns when it has ended; at once if it has ended before.

    Raises the exception that ended the task, except its cancellation. A cancellation of the caller
    is raised at once, and does not wait for the task.
    """
    task.cancel()
    # Unlike ``await task``, this raises no CancelledError of the task, only the caller's.
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
