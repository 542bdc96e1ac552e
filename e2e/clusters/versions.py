"""Versions of all built programs, and the notation of Kubernetes versions on the command line.

Pure. A minor version selects the patch release in `KUBERNETES`; a full version is used as given.
Other versions are rejected with a list of the supported ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from e2e.clusters.errors import InvalidRequest

# The newest patch release of each minor version at the last update of this table. Tested: 1.34 and
# 1.36. A module proxy need not serve every module of the older ones.
KUBERNETES: dict[str, str] = {
    "1.31": "v1.31.14",
    "1.32": "v1.32.13",
    "1.33": "v1.33.13",
    "1.34": "v1.34.4",
    "1.35": "v1.35.4",
    "1.36": "v1.36.3",
}
DEFAULT_KUBERNETES = KUBERNETES["1.34"]

# One etcd serves every API server above: all use the v3 API.
ETCD = "v3.6.5"
HELM = "v3.20.2"
KWOK = "v0.8.0"
KIND = "v0.32.0"
# Built with the modules of DEFAULT_KUBERNETES, so of about its age.
COREDNS = "v1.13.1"
METRICS_SERVER = "v0.8.0"
LOCAL_PATH_PROVISIONER = "v0.0.30"
PROVISIONER_LIBRARY = "v11.0.1"
SNAPSHOT_CONTROLLER = "v8.3.0"
SNAPSHOT_DEFINITIONS = "v8.6.0"
CSI_PROVISIONER = "v5.3.0"
CSI_ATTACHER = "v4.13.0"
# Of the Kubernetes release that the sidecars are built with.
KUBELET_PLUGINS = "v0.33.1"
KUEUE = "v0.19.2"
DESCHEDULER = "v0.36.0"
HELM_CONTROLLER = "v1.6.2"
SOURCE_CONTROLLER = "v1.9.0"
ARGO_CD = "v3.6.1"

# Node images are published for some patch releases only, with a release of kind. From 1.33 on
# these belong to the release above; the older ones to earlier releases.
KIND_NODES: dict[str, str] = {
    "1.31": "v1.31.12",
    "1.32": "v1.32.8",
    "1.33": "v1.33.12",
    "1.34": "v1.34.8",
    "1.35": "v1.35.5",
    "1.36": "v1.36.1",
}

_FULL = re.compile(r"v?(1)\.(\d+)\.(\d+)")
_MINOR = re.compile(r"v?(1\.\d+)")


@dataclass(frozen=True, slots=True)
class KubernetesVersion:
    """A Kubernetes release, such as v1.34.4."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"v{self.major}.{self.minor}.{self.patch}"

    @property
    def kind_node(self) -> str:
        """The version of kind's node image for this minor release."""
        return KIND_NODES[f"{self.major}.{self.minor}"]

    @property
    def staging(self) -> str:
        """The version of the modules that are released together with it (k8s.io/api, …)."""
        return f"v0.{self.minor}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> KubernetesVersion:
        """Parses `1.34`, `v1.34` or `1.34.4`.

        :raises InvalidRequest: the text is none of these, or the minor version is not in the table.
        """
        if (minor := _MINOR.fullmatch(text)) and minor[1] in KUBERNETES:
            text = KUBERNETES[minor[1]]
        full = _FULL.fullmatch(text)
        if full is None or f"1.{full[2]}" not in KUBERNETES:
            raise InvalidRequest(
                f"no Kubernetes version {text!r}",
                where="--kubernetes",
                next_step=f"take one of {', '.join(KUBERNETES)}, or a patch release of these",
            )
        return cls(int(full[1]), int(full[2]), int(full[3]))


def parse_versions(text: str) -> dict[str, KubernetesVersion]:
    """Parses one version for all clusters (key ""), or `home=1.34,remote=1.36`.

    :raises InvalidRequest: as `KubernetesVersion.parse`, or a cluster is named twice.
    """
    if "=" not in text:
        return {"": KubernetesVersion.parse(text)}
    found: dict[str, KubernetesVersion] = {}
    for part in text.split(","):
        name, _, version = part.partition("=")
        if not name or name in found:
            raise InvalidRequest(
                f"{part!r} in {text!r}",
                where="--kubernetes",
                next_step="give one version, or home=1.34,remote=1.36",
            )
        found[name] = KubernetesVersion.parse(version)
    return found
