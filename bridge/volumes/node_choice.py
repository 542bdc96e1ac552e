"""Chooses the nodes of a transfer. Pure.

A transfer pod names its node, so that neither the scheduler nor a policy of the namespace
(`bridge offload`) sends it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.base.command_error import PreflightError
from bridge.node.node_object import remote_id_of
from translators.object_accessors import Object, is_ready, metadata, name_of
from translators.storage.identifiers import volume_handle


def has_volume(node: Object, volume: Object) -> bool:
    """Whether pods on the node can mount the volume."""
    handle = volume_handle(volume)
    if handle is not None or remote_id_of(node):
        return handle is not None and handle.remote_id == remote_id_of(node)
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    terms = required.get("nodeSelectorTerms")
    return terms is None or any(_matches_term(node, it) for it in terms)


def source_node(nodes: Iterable[Object], volume: Object) -> Object:
    """A Ready node on which the volume can be mounted. Raises PreflightError."""
    having = [it for it in nodes if has_volume(it, volume)]
    if ready := sorted(filter(is_ready, having), key=name_of):
        return ready[0]
    if having:
        names = ", ".join(sorted(map(name_of, having)))
        raise PreflightError(
            f"home: the volume can be read on {names} only, which is not Ready; start its kubelet, "
            "or its bridge"
        )
    raise PreflightError(
        f"home: no node can mount PersistentVolume {name_of(volume)}; join its remote again, or "
        "restore the node that it is on"
    )


def _matches_term(node: Object, term: Object) -> bool:
    """As a scheduler: a term without requirements matches no node."""
    labels = metadata(node).get("labels") or {}
    fields = {"metadata.name": name_of(node)}
    requirements = [
        *((labels, it) for it in term.get("matchExpressions") or ()),
        *((fields, it) for it in term.get("matchFields") or ()),
    ]
    return bool(requirements) and all(_matches(*it) for it in requirements)


def _matches(values: Object, requirement: Object) -> bool:
    key, wanted = str(requirement.get("key")), requirement.get("values") or []
    value = values.get(key)
    match requirement.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return key in values
        case "DoesNotExist":
            return key not in values
        case "Gt" | "Lt" as operator:
            try:
                found, bound = int(str(value)), int(wanted[0])
            except (ValueError, IndexError):
                return False
            return found > bound if operator == "Gt" else found < bound
    return False
