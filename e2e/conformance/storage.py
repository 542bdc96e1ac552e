"""The StorageClass of the upstream storage tests, and the definition of its driver.

With a definition (`storage_drivers/`), the suite has additional tests, "External Storage": they
copy an existing class, whose provisioner is the one under test. Other storage tests use the default
class, which it is as well.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path

from e2e.clusters.cluster import Cluster
from e2e.storage_classes import hostpath, local_path

#: The class in the definitions.
CLASS = "conformance"


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
