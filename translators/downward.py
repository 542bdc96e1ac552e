"""The downward API: identity that a pod reads of itself stays home's.

What would differ in the remote is read from annotations of the remote pod (`naming`) instead, or
written out where it does not change while the pod lives.
"""

from __future__ import annotations

from translators import naming
from translators.types import Object

#: What identity in the downward API is read from instead, so that the pod sees home's.
_REWRITTEN_FIELDS = {
    "metadata.namespace": f"metadata.annotations['{naming.ANNOTATION_HOME_NAMESPACE}']",
    "metadata.uid": f"metadata.annotations['{naming.ANNOTATION_HOME_UID}']",
    "spec.nodeName": f"metadata.annotations['{naming.ANNOTATION_NODE_NAME}']",
}


def identity_in_env(container: Object, *, account: str, address: str) -> Object:
    if not container.get("env"):
        return container
    known = {
        "spec.serviceAccountName": account,
        "status.hostIP": address,
        "status.hostIPs": address,
    }
    return {**container, "env": [_variable(variable, known) for variable in container["env"]]}


def _variable(variable: Object, known: dict[str, str]) -> Object:
    path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    if path in known:
        return {"name": variable["name"], "value": known[path]}
    if path in _REWRITTEN_FIELDS:
        return {**variable, "valueFrom": {"fieldRef": _field_ref(path)}}
    return variable


def identity_in_volume(volume: Object) -> Object:
    if volume.get("downwardAPI"):
        return {**volume, "downwardAPI": _identity_in_files(volume["downwardAPI"])}
    sources = (volume.get("projected") or {}).get("sources")
    if not sources:
        return volume
    renamed = [
        {**source, "downwardAPI": _identity_in_files(source["downwardAPI"])}
        if source.get("downwardAPI")
        else source
        for source in sources
    ]
    return {**volume, "projected": {**volume["projected"], "sources": renamed}}


def _identity_in_files(downward: Object) -> Object:
    items = []
    for item in downward.get("items") or ():
        path = (item.get("fieldRef") or {}).get("fieldPath")
        changed = {**item, "fieldRef": _field_ref(path)} if path in _REWRITTEN_FIELDS else item
        items.append(changed)
    return {**downward, "items": items} if items else downward


def _field_ref(path: str) -> Object:
    return {"apiVersion": "v1", "fieldPath": _REWRITTEN_FIELDS[path]}
