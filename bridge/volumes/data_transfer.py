"""Copies the content of one volume to another through two transfer pods, and verifies the copy.

The data goes from one pod to this process and on to the other pod, through the exec streams of
home's API server: the clusters share no network, and this process needs no other cluster's
credential. A slow receiver pauses the sender, so that memory does not depend on the size of files
or on their number.

Both volumes are read apart from the stream: the source beside the copy (`bridge.volumes.
source_read`), the target after it. They are equal if each entry has the same path, type,
permissions, owner, group, number of links, size, time of modification, target of a symbolic link,
and digest of its content (`bridge.volumes.content_scan`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.volumes import transfer_shell, volume_scripts
from bridge.volumes.framed_input import FramedInput
from bridge.volumes.progress_meter import Meter, format_size
from bridge.volumes.source_read import SourceRead
from bridge.volumes.transfer_shell import repeated, shell
from sync.base.exception_summary import first_leaf
from sync.kube.client import KubeClient
from sync.kube.pod_stream import ShellStream
from translators.object_accessors import Object


@dataclass(frozen=True, slots=True)
class Copied:
    """The size of a verified copy."""

    files: int
    size: int
    """Bytes of all files."""
    copy_seconds: float
    verify_seconds: float
    start_seconds: float = 0.0
    """Until both transfer pods ran."""


async def copy_volume(home: KubeClient, source: SourceRead, target: Object, meter: Meter) -> Copied:
    """Replaces the content of the target pod's volume by that of the source, and verifies the
    copy. Raises PreflightError and KubeError."""
    clock = asyncio.get_running_loop().time
    await _check_ids(home, source, target)
    began = clock()
    await repeated(meter, lambda: _send(home, source, target, meter))
    copied = clock()
    await repeated(meter, lambda: _verify(home, source, target, meter))
    entries = source.entries
    return Copied(entries.files, entries.size, copied - began, clock() - copied)


async def _check_ids(home: KubeClient, source: SourceRead, target: Object) -> None:
    largest = source.entries.largest_id
    if largest <= volume_scripts.OCTAL_ID_MAX:
        return
    for pod in (source.pod, target):
        if await transfer_shell.one_line(home, pod, volume_scripts.TAR_KIND) == "busybox":
            raise PreflightError(
                f"home: the volume has files of user or group {largest}, which busybox's tar "
                "cannot store; name an image with GNU tar by --image"
            )


async def _send(home: KubeClient, source: SourceRead, target: Object, meter: Meter) -> None:
    async with (
        shell(home, target, volume_scripts.RECEIVE) as receiver,
        shell(home, source.pod, volume_scripts.SEND) as sender,
    ):
        meter.begin("copying", source.entries.archived)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_receive(receiver, target))
                group.create_task(_pump(sender, receiver, source.pod, meter))
        except BaseExceptionGroup as group_error:
            raise first_leaf(group_error) from None
        meter.end()


async def _pump(sender: ShellStream, receiver: ShellStream, source: Object, meter: Meter) -> None:
    framed = None if receiver.can_end_input else FramedInput(receiver.write)
    write = receiver.write if framed is None else framed.write
    if framed is None:
        await write(f"{volume_scripts.RAW}\n".encode())
    async for data in sender.output():
        await write(data)
        meter.add(len(data))
    transfer_shell.check_ended(sender, source, "read")
    await (receiver.end_input() if framed is None else framed.end())


async def _receive(receiver: ShellStream, target: Object) -> None:
    async for _ in receiver.output():
        pass
    transfer_shell.check_ended(receiver, target, "written")


async def _verify(home: KubeClient, source: SourceRead, target: Object, meter: Meter) -> None:
    meter.begin("verifying", source.entries.size)
    try:
        async with asyncio.TaskGroup() as group:
            reads = group.create_task(source.contents())
            writes = group.create_task(transfer_shell.scan(home, target, source.digest, meter.add))
            group.create_task(source.check_unchanged())
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
