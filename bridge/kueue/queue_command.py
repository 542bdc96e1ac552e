"""Finds the virtual nodes for `bridge kueue flavors`."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import as_preflight_errors, connect
from sync.kube.api_resources import NODES
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, name_of
from translators.ownership_labels import LABEL_VIRTUAL


async def find_nodes(ref: KubeconfigRef, names: Sequence[str]) -> list[Object]:
    """The virtual nodes of these names, or all by name. Raises PreflightError."""
    async with connect(ref, side="home", notify=lambda _: None) as home:
        with as_preflight_errors("home"):
            listed = (await home.list(NODES, labels=LABEL_VIRTUAL)).items
    found = {name_of(it): it for it in sorted(listed, key=name_of)}
    if missing := [name for name in names if name not in found]:
        known = ", ".join(found) or "none"
        raise PreflightError(
            f"home: no virtual node {', '.join(missing)}; the virtual nodes are: {known}"
        )
    if not found:
        raise PreflightError("home: there is no virtual node; join a remote first (bridge join)")
    return [found[name] for name in names] if names else [*found.values()]
