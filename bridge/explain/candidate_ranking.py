"""Ranks home's virtual nodes for a pod, with the reasons why the pod does not fit.

The order is: nodes that the pod fits; then nodes that the pod's node selector and node affinity
select, because they are the intended ones; then nodes with fewer reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.explain import best_effort_reads
from bridge.node import join_record, node_object
from sync.kube.api_resources import NODES, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES
from sync.kube.client import KubeClient
from sync.pods import action_planner
from translators.explain import persistent_volume_claims
from translators.explain.persistent_volume_claims import PodStorage
from translators.object_accessors import Object, name_of
from translators.pods import home_scheduler_filters
from translators.pods.home_scheduler_filters import PredicateFailure
from translators.translation_options import Policy


@dataclass(frozen=True, slots=True)
class Candidate:
    """A virtual node, and whether the pod fits it."""

    node: Object
    policy: Policy
    options_recorded: bool
    """Whether the Node records the options of its join."""
    failures: list[PredicateFailure]
    skipped: bool
    """Whether its bridge skips the pod as a DaemonSet pod."""

    @property
    def name(self) -> str:
        """The node's name."""
        return name_of(self.node)

    @property
    def rank(self) -> tuple[bool, bool, int, str]:
        """Sort key, the best first."""
        fits = not self.failures and not self.skipped
        selected = not any(
            it.field.startswith(home_scheduler_filters.NODE_SELECTION_FIELDS)
            for it in self.failures
        )
        return not fits, not selected, len(self.failures), self.name


async def rank_candidates(
    home: KubeClient,
    pod: Object,
    *,
    home_id: str,
    storage: PodStorage,
    not_checked: list[str],
    only: str = "",
) -> list[Candidate]:
    """All virtual nodes of home, the best first, or ``only`` the one of this name. Failed reads are
    appended to ``not_checked``."""
    fields = f"metadata.name={only}" if only else ""
    nodes = (await home.list(NODES, labels=node_object.LABEL_REMOTE, fields=fields)).items
    bound = await asyncio.gather(
        *(
            best_effort_reads.list_objects(
                home, PODS, not_checked, fields=f"spec.nodeName={name_of(it)}"
            )
            for it in nodes
        )
    )
    found = []
    for node, pods in zip(nodes, bound, strict=True):
        policy, options_recorded = join_record.read_policy(node, home_id)
        obstacles = [
            *home_scheduler_filters.predicate_failures(pod, node, pods),
            *persistent_volume_claims.volume_binding_failures(pod, node, storage),
        ]
        skipped = bool(action_planner.skip_reason(pod, policy))
        found.append(Candidate(node, policy, options_recorded, obstacles, skipped))
    return sorted(found, key=lambda it: it.rank)


async def look_up_storage(
    home: KubeClient, found: Mapping[str, Object | None], not_checked: list[str]
) -> PodStorage:
    """Home's PVCs, by name, with their volumes and StorageClasses."""
    specs = [it.get("spec") or {} for it in found.values() if it is not None]
    behind = await best_effort_reads.get_objects(
        home,
        [
            *((PERSISTENT_VOLUMES, it["volumeName"]) for it in specs if it.get("volumeName")),
            *(
                (STORAGE_CLASSES, it["storageClassName"])
                for it in specs
                if it.get("storageClassName") and not it.get("volumeName")
            ),
        ],
        "",
        not_checked,
    )
    return PodStorage(
        claims=found,
        volumes={name: it for (kind, name), it in behind.items() if kind == "PersistentVolume"},
        classes={name: it for (kind, name), it in behind.items() if kind == "StorageClass"},
    )
