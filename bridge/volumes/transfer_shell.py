"""Runs the scripts of a transfer (`bridge.volumes.volume_scripts`) in its pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.volumes import volume_scripts
from bridge.volumes.content_scan import ContentScan, ScanError
from bridge.volumes.progress_meter import Meter
from bridge.volumes.transfer_objects import CONTAINER
from sync.kube.api_errors import Unreachable
from sync.kube.client import KubeClient
from sync.kube.pod_stream import ShellStream, open_shell
from translators.object_accessors import Object, name_of, namespace_of

T = TypeVar("T")
#: Attempts of each step whose connection breaks, and seconds between two: a script of the attempt
#: before ends meanwhile.
ATTEMPTS, RETRY_SECONDS = 3, 2.0


async def repeated(meter: Meter, step: Callable[[], Awaitable[T]]) -> T:
    """Runs a step, and again if its connection breaks: each begins from its start. Raises
    Unreachable after the last of `ATTEMPTS`."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await step()
        except Unreachable as error:
            meter.end()
            meter.notify(Caveat(f"{error}; attempt {attempt + 1} of {ATTEMPTS}"))
            await asyncio.sleep(RETRY_SECONDS)
    return await step()


def shell(home: KubeClient, pod: Object, script: str) -> AbstractAsyncContextManager[ShellStream]:
    return open_shell(
        home, script, namespace=namespace_of(pod), pod=name_of(pod), container=CONTAINER
    )


def check_ended(ended: ShellStream, pod: Object, verb: str) -> None:
    """Raises PreflightError if the script failed."""
    if ended.exit_status:
        raise PreflightError(
            f"home: pod {name_of(pod)}: the volume cannot be {verb}: "
            f"{ended.stderr or f'exit status {ended.exit_status}'}"
        )


async def scan(
    home: KubeClient,
    pod: Object,
    digest: str = "",
    hashed: Callable[[int], None] = lambda _: None,
) -> ContentScan:
    """Lists the pod's volume, with contents if there is a ``digest``; ``hashed`` receives the bytes
    of the files whose digests arrive. Raises PreflightError and KubeError."""
    found = ContentScan(contents=bool(digest))
    script = volume_scripts.contents(digest) if digest else volume_scripts.ENTRIES
    async with shell(home, pod, script) as running:
        try:
            async for data in running.output():
                before = found.hashed
                found.feed(data)
                hashed(found.hashed - before)
        except ScanError as error:
            raise PreflightError(f"home: pod {name_of(pod)}: {error}") from error
        found.finish()
        check_ended(running, pod, "read")
    return found


async def one_line(home: KubeClient, pod: Object, script: str) -> str:
    """The output of a script that writes a word. Raises KubeError."""
    async with shell(home, pod, script) as running:
        return b"".join([it async for it in running.output()]).decode(errors="replace").strip()


async def fastest_digest(home: KubeClient, pod: Object) -> str:
    """The program that computes digests. Raises KubeError."""
    found = await one_line(home, pod, volume_scripts.FASTEST_DIGEST)
    return found if found in volume_scripts.DIGESTS else volume_scripts.DIGESTS[0]
