"""The bridge's image without Docker."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import cast

import pytest

from e2e import bridge_image
from e2e.clusters.cluster import Cluster, silent


class Node:
    """A node that images are loaded into, while another one loads concurrently."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.loaded: list[Path] = []

    name = "home"

    def load_images(self, path: Path) -> None:
        before = path.read_bytes()
        self.loaded.append(path)
        if len(self.loaded) < 2:
            bridge_image.load(cast("Cluster", self), self.cache, silent)
        assert path.read_bytes() == before


def test_who_loads_it_has_an_archive_of_his_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "images" / "python.tar"
    base.parent.mkdir()
    with tarfile.open(base, "w"):
        pass
    monkeypatch.setattr(bridge_image, "base_archive", lambda *_: base)
    node = Node(tmp_path)
    name = bridge_image.load(cast("Cluster", node), tmp_path, silent)
    assert name.startswith(f"{bridge_image.REPOSITORY}:e2e-")
    assert len(set(node.loaded)) == 2
    assert not any(path.exists() for path in node.loaded)
    assert [*base.parent.iterdir()] == [base], "nothing of it stays in the cache"
