"""How long node images that were put together here are kept.

- Of such images, the `KEPT` that were used last stay, and those that containers are made of. The
  others go when a new one has been put together. So a few versions and a few checkouts work side
  by side, and they have a bound. Of an engine that is not ours, nothing else is touched.
- What a killed run had put together so far goes before the next one begins.
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

#: How many images that were put together here are kept; each is about 1.4 GB.
KEPT = 4
#: Folders in the cache in which an image is put together.
PARTIAL = ".node-image-"


def note_use(engine: Engine, name: str) -> None:
    """Have the engine remember that this image was used now: it knows when one was named last."""
    engine.docker("image", "tag", name, name)


def prune(engine: Engine, repository: str, say: Progress) -> None:
    """Remove the images of this repository that were used longest ago, but for `KEPT`."""
    said = engine.docker(
        "image", "ls", "--filter", f"reference={repository}", "--quiet", "--no-trunc", check=False
    )
    ids = list(dict.fromkeys(said.stdout.split()))
    if not ids:
        return
    found = json.loads(engine.docker("image", "inspect", *ids).stdout)
    for name in outdated(found, repository):
        # Without force, one that a container is made of stays.
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
    """Remove what killed runs had put together; the caller holds the lock of putting together."""
    for folder in cache.glob(f"{PARTIAL}*"):
        unmount_below(folder)
        shutil.rmtree(folder)
