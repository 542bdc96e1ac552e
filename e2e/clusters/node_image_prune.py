"""Retention of node images that were composed here.

- The `KEPT` images that were used last stay, and images that containers use. The others are removed
  after a new one has been composed. So a few versions and checkouts coexist in bounded space.
  Nothing else of the user's engine is touched.
- The next composition removes the partial image of a killed one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from e2e.clusters.cluster import Progress
from e2e.clusters.docker_engine import Engine
from e2e.clusters.mounts import unmount_below
from translators.timestamps import parse_time

#: Number of composed images that are kept; each has about 1.4 GB.
KEPT = 4
#: Prefix of folders in the cache in which an image is composed.
PARTIAL = ".node-image-"


def note_use(engine: Engine, name: str) -> None:
    """Records a use of this image in the engine, which stores the time of the last tagging."""
    engine.docker("image", "tag", name, name)


def prune(engine: Engine, repository: str, say: Progress) -> None:
    """Removes all images of this repository but the `KEPT` last used."""
    listed = engine.docker(
        "image", "ls", "--filter", f"reference={repository}", "--quiet", "--no-trunc", check=False
    )
    ids = list(dict.fromkeys(listed.stdout.split()))
    if not ids:
        return
    found = json.loads(engine.docker("image", "inspect", *ids).stdout)
    for name in outdated(found, repository):
        # Without force, an image that a container uses stays.
        if engine.docker("image", "rm", name, check=False).returncode == 0:
            say(f"removed {name}: {KEPT} others were used since")


def outdated(images: Iterable[Mapping[str, Any]], repository: str) -> list[str]:
    """Names of this repository that are not among the `KEPT` last used. Pure.

    `images` are as `docker image inspect` prints them.
    """
    used = {
        name: _last_used(image)
        for image in images
        for name in image.get("RepoTags") or ()
        if name.startswith(f"{repository}:")
    }
    return sorted(used, key=lambda name: used[name], reverse=True)[KEPT:]


def _last_used(image: Mapping[str, Any]) -> datetime:
    tagged = (image.get("Metadata") or {}).get("LastTagTime")
    times = (parse_time(it) for it in (image["Created"], tagged) if it)
    return max(times)


def remove_partial(cache: Path) -> None:
    """Removes the folders of killed compositions; the caller holds the lock of composition."""
    for folder in cache.glob(f"{PARTIAL}*"):
        unmount_below(folder)
        shutil.rmtree(folder)
