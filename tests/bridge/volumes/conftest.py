"""A fake home with volumes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.volumes import transfer_pods, transfer_shell, volume_scripts, volume_swap
from sync.kube.client import KubeClient
from tests.bridge.volumes.volume_world import VolumeWorld
from tests.fakeapi import FakeApi
from tests.fakeapi.client_config import client_config_for


@pytest.fixture
async def world(
    home_api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[VolumeWorld]:
    """Home with a claim that has data, while its controllers act."""
    for module in (transfer_pods, volume_swap):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(transfer_shell, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(volume_scripts, "FASTEST_DIGEST", "echo sha512sum")
    async with KubeClient(client_config_for(home_api, "home")) as client:
        made = VolumeWorld(home_api, client, tmp_path)
        write_files(made.data())
        async with made.acting():
            yield made


def write_files(folder: Path) -> None:
    """Files of each kind."""
    below = folder / "a directory" / "below"
    below.mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(300_000))
    (below / "text").write_text("text\n")
    (below / "line\nbreak").write_text("odd\n")
    (below / "hard").hardlink_to(folder / "large")
    (folder / "link").symlink_to("a directory/below/text")
    (below / "text").chmod(0o4640)
    os.utime(folder / "large", (1_000_000_000, 1_000_000_000))
