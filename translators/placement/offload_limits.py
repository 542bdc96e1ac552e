"""The limits that `bridge offload` of a namespace sets to the PlacementPolicies of its pods.

A PlacementPolicy decides among the places that the namespace's offload policy permits:
``remote-only`` excludes home, ``local-only`` the virtual nodes, and a node selector the virtual
nodes without its labels. ``burst`` alone excludes nothing.

Admission also writes the same limits into each new pod (`translators.offload_admission_patch`), so
that they hold when no placer decides. The placer applies them by the namespace, with a reason that
names the cause.
"""

from __future__ import annotations

from collections.abc import Iterable

from translators.object_accessors import Object, metadata, name_of
from translators.offload_admission_patch import OffloadPolicy, policy_of, selector_of
from translators.placement.decision import HOME
from translators.placement.placement_policy import PlacementPolicy


def offload_text(namespace: Object) -> str:
    """How the namespace is offloaded; "" if it is not."""
    mode, selector = policy_of(namespace), selector_of(namespace)
    if mode is None:
        return ""
    labels = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    to = f" to nodes with {labels}" if labels and mode != "local-only" else ""
    return f"namespace {name_of(namespace)} is offloaded {mode}{to} (bridge offload)"


def excluded_by_offload(namespace: Object, virtual_nodes: Iterable[Object]) -> dict[str, str]:
    """The candidates where the namespace's pods may not run, with the reason."""
    mode, selector, text = policy_of(namespace), selector_of(namespace), offload_text(namespace)
    if mode is None:
        return {}
    excluded = {HOME: text} if mode == "remote-only" else {}
    for node in virtual_nodes:
        labels = metadata(node).get("labels") or {}
        if mode == "local-only" or selector.items() - labels.items():
            excluded[name_of(node)] = text
    return excluded


def contradiction(policy: PlacementPolicy, mode: OffloadPolicy) -> str:
    """Why no tier of the policy is left under the offload policy; "" if one is."""
    homes = [it.home for it in policy.tiers]
    if mode == "remote-only" and all(homes):
        return f"PlacementPolicy {policy.name} has no tier with remotes"
    if mode == "local-only" and not any(homes):
        return f"PlacementPolicy {policy.name} has no tier with home"
    return ""
