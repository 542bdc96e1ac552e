"""Copies the content of one volume to another through two transfer pods, and verifies the copy.

The data goes from one pod to this process and on to the other pod, through the exec streams of
home's API server: the clusters share no network, and this process needs no other cluster's
credential. A slow receiver pauses the sender, so that memory does not depend on the size of files
or on their number.

After the copy both volumes are read again. They are equal if each entry has the same path, type,
permissions, owner, group, number of links, size, time of modification, target of a symbolic link,
and SHA-256 of its content (`bridge.volumes.content_scan`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeVar

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.volumes import volume_scripts
from bridge.volumes.content_scan import ContentScan, ScanError
from bridge.volumes.framed_input import FramedInput
from bridge.volumes.progress_meter import Meter, format_size
from bridge.volumes.transfer_objects import CONTAINER
from sync.base.exception_summary import first_leaf
from sync.kube.api_errors import Unreachable
from sync.kube.client import KubeClient
from sync.kube.pod_stream import ShellStream, open_shell
from translators.object_accessors import Object, name_of, namespace_of

T = TypeVar("T")
#: Attempts of each step whose connection breaks, and seconds between two: a script of the attempt
#: before ends meanwhile.
ATTEMPTS, RETRY_SECONDS = 3, 2.0


@dataclass(frozen=True, slots=True)
class Copied:
    """The size of a verified copy."""

    files: int
    size: int
    """Bytes of all files."""
    seconds: float
    """Of the copy, without its verification."""


async def copy_volume(home: KubeClient, source: Object, target: Object, meter: Meter) -> Copied:
    """Replaces the content of the target pod's volume by that of the source pod's, and verifies
    the copy. Raises PreflightError and KubeError."""
    clock = asyncio.get_running_loop().time
    found = await _repeated(meter, lambda: _scan(home, source, meter, contents=False))
    await _check_ids(home, source, target, found)
    began = clock()
    await _repeated(meter, lambda: _send(home, source, target, meter, found.archived))
    seconds = clock() - began
    await _repeated(meter, lambda: _verify(home, source, target, meter, found))
    return Copied(found.files, found.size, seconds)


async def _repeated(meter: Meter, step: Callable[[], Awaitable[T]]) -> T:
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


async def _check_ids(home: KubeClient, source: Object, target: Object, found: ContentScan) -> None:
    if found.largest_id <= volume_scripts.OCTAL_ID_MAX:
        return
    for pod in (source, target):
        async with _shell(home, pod, volume_scripts.TAR_KIND) as shell:
            if b"busybox" in b"".join([it async for it in shell.output()]):
                raise PreflightError(
                    f"home: the volume has files of user or group {found.largest_id}, which "
                    "busybox's tar cannot store; name an image with GNU tar by --image"
                )


async def _send(home: KubeClient, source: Object, target: Object, meter: Meter, size: int) -> None:
    async with (
        _shell(home, target, volume_scripts.RECEIVE) as receiver,
        _shell(home, source, volume_scripts.SEND) as sender,
    ):
        meter.begin("copying", size)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_receive(receiver, target))
                group.create_task(_pump(sender, receiver, source, meter))
        except BaseExceptionGroup as group_error:
            raise first_leaf(group_error) from None
        meter.end()


async def _pump(sender: ShellStream, receiver: ShellStream, source: Object, meter: Meter) -> None:
    framed = FramedInput(receiver.write)
    async for data in sender.output():
        await framed.write(data)
        meter.add(len(data))
    _check_ended(sender, source, "read")
    await framed.end()


async def _receive(receiver: ShellStream, target: Object) -> None:
    async for _ in receiver.output():
        pass
    _check_ended(receiver, target, "written")


async def _verify(
    home: KubeClient, source: Object, target: Object, meter: Meter, before: ContentScan
) -> None:
    meter.begin("verifying", 2 * before.size)
    try:
        async with asyncio.TaskGroup() as group:
            reads = group.create_task(_scan(home, source, meter, contents=True))
            writes = group.create_task(_scan(home, target, meter, contents=True))
    except BaseExceptionGroup as error:
        raise first_leaf(error) from None
    meter.end()
    expected, found = reads.result(), writes.result()
    if not expected.equals(found):
        raise PreflightError(
            "home: the copy differs from the source: "
            f"{expected.files} files ({format_size(expected.size)}) at the source, "
            f"{found.files} ({format_size(found.size)}) in the copy, or a file differs in content, "
            "owner, permissions or time; the source is unchanged. If something else writes to the "
            "volume, stop it; then run the command again"
        )


async def _scan(home: KubeClient, pod: Object, meter: Meter, *, contents: bool) -> ContentScan:
    found = ContentScan(contents=contents)
    async with _shell(home, pod, volume_scripts.scan(contents=contents)) as shell:
        try:
            async for data in shell.output():
                hashed = found.hashed
                found.feed(data)
                meter.add(found.hashed - hashed)
        except ScanError as error:
            raise PreflightError(f"home: pod {name_of(pod)}: {error}") from error
        found.finish()
        _check_ended(shell, pod, "read")
    return found


def _shell(home: KubeClient, pod: Object, script: str) -> AbstractAsyncContextManager[ShellStream]:
    return open_shell(
        home, script, namespace=namespace_of(pod), pod=name_of(pod), container=CONTAINER
    )


def _check_ended(shell: ShellStream, pod: Object, verb: str) -> None:
    if shell.exit_status:
        raise PreflightError(
            f"home: pod {name_of(pod)}: the volume cannot be {verb}: "
            f"{shell.stderr or f'exit status {shell.exit_status}'}"
        )
