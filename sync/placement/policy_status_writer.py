"""Writes the status of PlacementPolicies (`translators.placement.policy_status`).

- Only the placer that holds the Lease runs the writer, and each write has the policy's resource
  version as its precondition.
- Nothing is written that the policy has already. Changed conditions are written at once, numbers of
  pods at most every `COUNT_SECONDS` for each policy.
- A status that cannot be written delays no pod: it is retried like any reconcile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sync.base.resource_version import version_of
from sync.cache.informer import Informer
from sync.cache.store import Key, key_of
from sync.kube.api_errors import Conflict, NotFound
from sync.kube.api_resources import PLACEMENT_POLICIES
from sync.kube.client import KubeClient
from sync.placement.home_state import HomeState
from sync.placement.waiting_pods import WaitingPods
from sync.runtime.controller import Controller
from translators.object_accessors import Object, is_deleting, metadata
from translators.ownership_labels import LABEL_VIRTUAL
from translators.placement.policy_status import COUNTS, PolicyState, policy_status

#: Least seconds between two writes that change nothing but numbers of pods.
COUNT_SECONDS = 30.0


class PolicyStatusWriter:
    """The controller. Its handlers do nothing before `run`, on a standby replica."""

    def __init__(
        self,
        home: KubeClient,
        policies: Informer,
        *,
        state: HomeState,
        waiting: WaitingPods,
        now: Callable[[], str],
    ) -> None:
        self._home = home
        self._policies = policies
        self._state = state
        self._waiting = waiting
        self._now = now
        self.controller: Controller[Key] = Controller(
            "placement-status", self._reconcile, workers=1, kind=PLACEMENT_POLICIES.kind
        )
        self.controller.queue.pause()
        # By policy, from when numbers may be written again (the loop's time).
        self._counts_from: dict[Key, float] = {}

    async def run(self) -> None:
        """Writes until cancelled."""
        self.controller.queue.resume()
        self._all_changed()
        await self.controller.run()

    # -- handlers ----------------------------------------------------------------------

    def policy_changed(self, old: Object | None, new: Object | None) -> None:
        """Handles a policy."""
        key = key_of(new or old or {})
        if new is None:
            self._counts_from.pop(key, None)
        else:
            self.controller.queue.add(key)

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        """Handles a Node."""
        if _virtual_labels(old) != _virtual_labels(new):
            self._all_changed()

    def pods_changed(self, policy: str) -> None:
        """Handles that the policy may have other numbers of pods."""
        if self._policies.store.get(Key("", policy)) is not None:
            self.controller.queue.add(Key("", policy))

    def _all_changed(self) -> None:
        for policy in self._policies.store:
            self.controller.queue.add(key_of(policy))

    # -- reconcile ---------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        policy = self._policies.store.get(key)
        if policy is None or is_deleting(policy):
            return
        wanted = policy_status(policy, self._state_of(key.name), self._now())
        before = policy.get("status") or {}
        changed = {it for it in wanted if before.get(it) != wanted[it]}
        if not changed:
            return
        now = asyncio.get_running_loop().time()
        counts_from = self._counts_from.get(key, 0.0)
        if changed <= {*COUNTS} and now < counts_from:
            self.controller.queue.add_after(key, counts_from - now)
            return
        # A merge patch replaces the list of conditions as a whole.
        patch = {"metadata": {"resourceVersion": version_of(policy)}, "status": wanted}
        try:
            written = await self._home.patch(
                PLACEMENT_POLICIES, key.name, patch, subresource="status"
            )
        except (Conflict, NotFound):
            return  # The change that is not in the cache yet queues the key.
        self._counts_from[key] = now + COUNT_SECONDS
        self._policies.observe_write(written)

    def _state_of(self, name: str) -> PolicyState:
        policy = self._state.policies.get(name)
        placed = sum(self._state.counts(name).values())
        return PolicyState(
            problem=self._state.invalid_policies.get(name, ""),
            tiers=len(policy.tiers) if policy is not None else 0,
            without_candidate=self._state.tiers_without_candidate(policy) if policy else (),
            placed=placed,
            waiting=self._waiting.of_policy(name),
        )


def _virtual_labels(node: Object | None) -> Object | None:
    """The labels of a virtual node; None for other nodes."""
    labels: Object = metadata(node or {}).get("labels") or {}
    return labels if LABEL_VIRTUAL in labels else None
