"""A fake home with volumes."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sync.kube.client import KubeClient
from tests.bridge.volumes.volume_world import VolumeWorld
from tests.fakeapi import FakeApi
from tests.fakeapi.credentials import credentials_for


@pytest.fixture
async def world(home_api: FakeApi, tmp_path: Path) -> AsyncIterator[VolumeWorld]:
    """Home with a claim that has files of each kind, and an empty one, while kubelets act."""
    async with KubeClient(credentials_for(home_api, "home")) as client:
        made = VolumeWorld(home_api, client, tmp_path)
        _write_files(made.source)
        made.target.mkdir()
        async with made.acting():
            yield made


def _write_files(folder: Path) -> None:
    below = folder / "a directory" / "below"
    for directory in (below, folder / "empty", folder / "lost+found"):
        directory.mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(300_000))
    (below / "text").write_text("text\n")
    (below / "line\nbreak").write_text("odd\n")
    Path(os.fsdecode(os.fsencode(below) + b"/no \xff text *[?")).write_text("odd\n")
    (below / ("long" * 40)).write_text("long\n")
    (below / "hard").hardlink_to(folder / "large")
    (folder / "link").symlink_to("a directory/below/text")
    (folder / "dangling").symlink_to("nothing")
    (below / "text").chmod(0o4640)
    (folder / "empty").chmod(0o1700)
    with (folder / "sparse").open("wb") as sparse:
        sparse.truncate(40_000_000)
        sparse.seek(20_000_000)
        sparse.write(b"data")
    os.mkfifo(folder / "pipe")
    os.setxattr(folder / "large", b"user.key", b"value")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "server.sock"))
    (folder / "lost+found" / "piece").write_text("of the file system\n")
    for path, seconds in ((folder / "large", 1_000_000_000), (folder / "empty", 1_100_000_000)):
        os.utime(path, (seconds, seconds))
