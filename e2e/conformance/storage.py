"""The StorageClass of the upstream storage tests, and the definition of its driver.

With a definition (`storage_drivers/`), the suite has additional tests, "External Storage": they
copy an existing class, whose provisioner is the one under test. Other storage tests use the default
class, which it is as well. On the real node the class is one of a provisioner in home; on the
virtual node the bridge serves it, with volumes of the same provisioner in the remote.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path

from e2e.clusters.cluster import Cluster, Progress
from e2e.kubectl import get, get_one
from e2e.storage_classes import hostpath, local_path, served_class
from translators.ownership_labels import LABEL_REMOTE
from translators.storage.identifiers import volume_handle

#: The class in the definitions.
CLASS = "conformance"
#: Seconds for the deletion of the volumes whose namespaces the last tests have deleted.
_DELETION = 90.0


class Storage(StrEnum):
    """The provisioner of the class."""

    LOCAL_PATH = "local-path"
    HOSTPATH = "hostpath"

    @property
    def definition(self) -> Path:
        """The file for the option `-storage.testdriver` of the suite."""
        return Path(__file__).parent / "storage_drivers" / f"{self}.yaml"

    def served(self, cluster: Cluster) -> AbstractContextManager[str]:
        """The class exists in the cluster, as the default one, for the block."""
        make = local_path if self is Storage.LOCAL_PATH else hostpath
        return make(cluster, CLASS, default=True)

    @contextmanager
    def served_by_bridge(
        self, home: Cluster, remote: Cluster, node: str, say: Progress
    ) -> Iterator[None]:
        """The class exists at home, as the default one, for the block, and leads to the remote of
        the virtual node. Afterwards the volumes are deleted, as long as the bridge runs."""
        with self.served(remote) as remote_class:
            # With one remote, tests of the binding mode Immediate have volumes, too.
            remote_id = get_one(home, "node", node)["metadata"]["labels"][LABEL_REMOTE]
            with served_class(
                home, CLASS, remote_class=remote_class, remote_id=remote_id, default=True
            ):
                yield
                _await_deletion(home, say)


def _await_deletion(home: Cluster, say: Progress) -> None:
    deadline = time.monotonic() + _DELETION
    while left := _volumes(home):
        if time.monotonic() > deadline:
            say(f"volumes are left at home: {', '.join(left)}")
            return
        time.sleep(1)


def _volumes(home: Cluster) -> list[str]:
    """Home's volumes that are in the remote."""
    volumes = get(home, "persistentvolumes")
    return [str(it["metadata"]["name"]) for it in volumes if volume_handle(it)]
