"""Home's virtual nodes as places for one pod: what keeps it off each, the best first.

A node is better where nothing keeps the pod off it; then where the pod's own node selector and node
affinity select it, since that names the node that is meant; then where fewer things keep it off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from bridge import lookups
from bridge.node import asked, model
from sync import podplan
from sync.kube.client import KubeClient
from sync.kube.resources import (
    NODES,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from translators import claims, naming, placing
from translators.claims import Storage
from translators.placing import Obstacle
from translators.policy import Policy
from translators.types import Object, metadata, name_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """One virtual node, and whether the pod could run on it."""

    node: Object
    policy: Policy
    told: bool
    """Whether the Node records the options of its join."""
    obstacles: list[Obstacle]
    skipped: bool
    """Whether its bridge leaves the pod out, as one of a DaemonSet."""

    @property
    def name(self) -> str:
        """The node's name."""
        return name_of(self.node)

    @property
    def rank(self) -> tuple[bool, bool, int, str]:
        """Sorts the best first."""
        fits = not self.obstacles and not self.skipped
        selected = not any(it.field.startswith(placing.SELECTION) for it in self.obstacles)
        return not fits, not selected, len(self.obstacles), self.name


async def candidates(
    home: KubeClient, pod: Object, *, home_id: str, storage: Storage, unseen: list[str]
) -> list[Candidate]:
    """All virtual nodes of home, the best first. What could not be read is noted in ``unseen``."""
    nodes = [
        it for it in (await home.list(NODES, labels=naming.LABEL_VIRTUAL)).items if is_ours(it)
    ]
    bound = await asyncio.gather(
        *(lookups.listed(home, PODS, unseen, fields=f"spec.nodeName={name_of(it)}") for it in nodes)
    )
    found = []
    for node, pods in zip(nodes, bound, strict=True):
        policy, told = asked.policy_of(node, home_id)
        obstacles = [
            *placing.obstacles(pod, node, pods),
            *claims.obstacles(pod, node, storage),
        ]
        skipped = bool(podplan.skipped(pod, policy))
        found.append(Candidate(node, policy, told, obstacles, skipped))
    return sorted(found, key=lambda it: it.rank)


async def storage_of(
    home: KubeClient, found: Mapping[str, Object | None], unseen: list[str]
) -> Storage:
    """Home's claims, by name, with their volumes and classes."""
    specs = [it.get("spec") or {} for it in found.values() if it is not None]
    behind = await lookups.objects(
        home,
        [
            *((PERSISTENT_VOLUMES, it["volumeName"]) for it in specs if it.get("volumeName")),
            *((STORAGE_CLASSES, it["storageClassName"]) for it in specs if _is_unbound(it)),
        ],
        "",
        unseen,
    )
    return Storage(
        claims=found,
        volumes={name: it for (kind, name), it in behind.items() if kind == "PersistentVolume"},
        classes={name: it for (kind, name), it in behind.items() if kind == "StorageClass"},
    )


def _is_unbound(spec: Object) -> bool:
    return bool(spec.get("storageClassName")) and not spec.get("volumeName")


def is_ours(node: Object) -> bool:
    """Whether a bridge has registered the node."""
    return model.LABEL_REMOTE in (metadata(node).get("labels") or {})
