"""The content of volumes: a file of random bytes that the first pod of a volume writes.

The tests' provisioners keep volumes in folders of the node. With the native backend these are
folders of this machine, so that no pod has to run for an audit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from e2e.audit.findings import Json, of_kind, uid

#: The file's name.
TOKEN = "token"
#: A shell command that writes the token to ``/data`` unless it exists, at once and completely.
WRITE = (
    f"[ -s /data/{TOKEN} ] || "
    f"{{ head -c 4096 /dev/urandom > /data/.new && mv /data/.new /data/{TOKEN}; }}"
)


def checksums(remote: Iterable[Json]) -> dict[str, str]:
    """The checksums of all tokens that can be read, by the UID of the remote PersistentVolume."""
    found = {}
    for volume in of_kind(remote, "PersistentVolume"):
        source = volume["spec"].get("hostPath") or volume["spec"].get("local") or {}
        path = Path(str(source.get("path", ""))) / TOKEN
        if path.is_absolute() and path.is_file():
            found[uid(volume)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
