"""Copies: referenced objects are in the remote as they are at home, and no copy is unnecessary.

Some copies are allowed but not required: a copy may outlive its last pod. All Services of a
namespace with pods are required, and home's endpoints of them: the audited bridges are joined with
``--network=flat``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from e2e.audit.findings import (
    ACCEPTS,
    HOME_NAME,
    HOME_NAMESPACE,
    HOME_UID,
    Finding,
    Json,
    Kind,
    annotations_of,
    field_differences,
    is_daemon,
    is_deleting,
    is_managed,
    is_terminal,
    is_unmanaged,
    labels_of,
    meta,
    metadata_differences,
    of_kind,
    subject_of,
    uid,
)

#: Kind, namespace and name of a home object.
Ref = tuple[str, str, str]

#: Keys by which a pod's spec references ConfigMaps and Secrets, at any depth: kind, and the key of
#: the name.
_NAMES = {
    "configMap": ("ConfigMap", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
    "configMapRef": ("ConfigMap", "name"),
    "nodePublishSecretRef": ("Secret", "name"),
    "secret": ("Secret", ""),
    "secretKeyRef": ("Secret", "name"),
    "secretRef": ("Secret", "name"),
}
#: Each cluster publishes one itself.
_ROOT_CA = "kube-root-ca.crt"
_API_SERVER = ("Service", "default", "kubernetes")
_TOKEN = "kubernetes.io/service-account-token"

#: The content fields of each kind.
_CONTENT = {
    "ConfigMap": ("data", "binaryData", "immutable"),
    "Secret": ("data", "type", "immutable"),
}
_SERVICE = ("selector", "externalName", "publishNotReadyAddresses", "sessionAffinity")
#: Annotation of a home Service: ``"false"`` prevents its copy.
_MIRROR = "cluster-bridge.io/mirror"
#: Label of an EndpointSlice: its Service.
_SERVICE_NAME = "kubernetes.io/service-name"
_PORT = ("name", "port", "targetPort", "protocol", "appProtocol")


def references(pod: Json) -> set[Ref]:
    """The ConfigMaps and Secrets that a pod references, found by the names of keys at any depth."""
    namespace = str(meta(pod).get("namespace", ""))
    found = {(kind, namespace, name) for kind, name in _named(pod["spec"])}
    for item in pod["spec"].get("imagePullSecrets") or ():
        found.add(("Secret", namespace, item["name"]))
    return {ref for ref in found if ref[2] != _ROOT_CA}


def _named(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        yield from _named(inner)
        if key in _NAMES and isinstance(inner, dict):
            kind, where = _NAMES[key]
            name = inner.get(where) if where else inner.get("secretName") or inner.get("name")
            if name:
                yield kind, str(name)


def check_copies(
    home: Sequence[Json], remote: Sequence[Json], *, pods: Sequence[Json], node: str
) -> Iterator[Finding]:
    """``home`` and ``remote``: all objects; ``pods``: home's pods on the virtual node.

    A name collision with an unmanaged object is not a loss: the pod reports it (`check_pods`).
    """
    pods = [pod for pod in pods if not is_daemon(pod)]
    originals = {_ref(obj): obj for obj in of_kind(home, "ConfigMap", "Secret", "Service")}
    mapped = _namespaces(remote, node)
    there = {_ref(obj): obj for obj in remote}
    for ref in sorted(_needed(pods, originals)):
        original = originals[ref]
        copy = there.get((ref[0], mapped.get(ref[1], ""), ref[2]))
        if copy is None:
            yield Finding(Kind.LOST, subject_of(original), "a pod needs it, and it has no copy")
        elif not is_unmanaged(copy):
            for detail in _differences(original, copy):
                yield Finding(Kind.DISAGREES, subject_of(original), detail)
    managed = [obj for obj in remote if is_managed(obj, node)]
    yield from _check_endpoints(home, managed, pods=pods, node=node)
    for copy in managed:
        why = _reason_to_delete(copy, home=home, managed=managed, pods=pods)
        if why:
            yield Finding(Kind.LEAKED, subject_of(copy), why)


def _ref(obj: Json) -> Ref:
    return obj["kind"], str(meta(obj).get("namespace", "")), str(meta(obj)["name"])


def _namespaces(remote: Iterable[Json], node: str) -> dict[str, str]:
    """Home namespace → remote namespace, from the managed objects."""
    found = {}
    for obj in remote:
        here, there = annotations_of(obj).get(HOME_NAMESPACE), meta(obj).get("namespace")
        if here and there and is_managed(obj, node):
            found[here] = str(there)
    return found


def _needed(pods: Sequence[Json], originals: dict[Ref, Json]) -> set[Ref]:
    needed = {ref for pod in pods if _is_live(pod) for ref in references(pod)}
    namespaces = _live_namespaces(pods)
    for ref, obj in originals.items():
        if (
            ref[0] == "Service"
            and ref[1] in namespaces
            and annotations_of(obj).get(_MIRROR) != "false"
        ):
            needed.add(ref)
    return {
        ref
        for ref in needed
        if ref in originals and ref != _API_SERVER and originals[ref].get("type") != _TOKEN
    }


def _is_live(pod: Json) -> bool:
    return not is_terminal(pod) and not is_deleting(pod)


def _live_namespaces(pods: Iterable[Json]) -> set[str]:
    return {str(meta(pod).get("namespace", "")) for pod in pods if _is_live(pod)}


def _check_endpoints(
    home: Sequence[Json], managed: Sequence[Json], *, pods: Sequence[Json], node: str
) -> Iterator[Finding]:
    """Compares home's endpoints of each copied Service, without those of the node's own pods."""
    namespaces = _live_namespaces(pods)
    services = {_origin(obj) for obj in of_kind(managed, "Service")}
    copies = {annotations_of(obj).get(HOME_UID): obj for obj in of_kind(managed, "EndpointSlice")}
    for slice_ in of_kind(home, "EndpointSlice"):
        namespace = str(meta(slice_).get("namespace", ""))
        wanted = _addresses(slice_, except_node=node)
        served = (namespace, labels_of(slice_).get(_SERVICE_NAME)) in services
        if not wanted or not served or namespace not in namespaces:
            continue
        copy = copies.get(uid(slice_))
        if copy is None:
            yield Finding(Kind.LOST, subject_of(slice_), "its endpoints are not in the remote")
        elif (there := _addresses(copy)) != wanted:
            detail = f"endpoints: home {wanted}, remote {there}"
            yield Finding(Kind.DISAGREES, subject_of(slice_), detail)


def _origin(copy: Json) -> tuple[str | None, str | None]:
    notes = annotations_of(copy)
    return notes.get(HOME_NAMESPACE), notes.get(HOME_NAME)


def _addresses(slice_: Json, *, except_node: str = "") -> list[tuple[str, bool | None]]:
    """Each address and whether it is ready, except those on the node ``except_node``."""
    return sorted(
        (address, (endpoint.get("conditions") or {}).get("ready"))
        for endpoint in slice_.get("endpoints") or ()
        if not except_node or endpoint.get("nodeName") != except_node
        for address in endpoint["addresses"]
    )


def _differences(home: Json, copy: Json) -> Iterator[str]:
    """The differences; never the content of a Secret."""
    if annotations_of(copy).get(HOME_UID) != uid(home):
        yield f"its copy has the home UID {annotations_of(copy).get(HOME_UID)}, not {uid(home)}"
    yield from metadata_differences(home, copy, ["labels"])
    for key in annotations_of(home).keys() & annotations_of(copy).keys():
        yield f"its copy has the annotation {key} of home"
    for field in _CONTENT.get(home["kind"], ()):
        if (home.get(field) or None) != (copy.get(field) or None):
            yield f"{field} differs"
    if home["kind"] != "Service":
        return
    home_spec, copy_spec = home["spec"], copy["spec"]
    yield from field_differences("", home_spec, copy_spec, _SERVICE)
    ports = [
        [{key: port.get(key) for key in _PORT} for port in spec.get("ports") or ()]
        for spec in (home_spec, copy_spec)
    ]
    if ports[0] != ports[1]:
        yield f"ports: home {ports[0]}, remote {ports[1]}"
    if (home_spec.get("clusterIP") == "None") != (copy_spec.get("clusterIP") == "None"):
        yield "only one of them is headless"
    if any("nodePort" in port for port in copy_spec.get("ports") or ()):
        yield "its copy has a node port"


def _reason_to_delete(
    copy: Json, *, home: Sequence[Json], managed: Sequence[Json], pods: Sequence[Json]
) -> str | None:
    """Why a managed object should not exist, or None."""
    kind = copy["kind"]
    if kind in ("Pod", "Namespace"):
        return None  # NB: `check_pods` and `check_namespaces` handle these.
    standing = list(of_kind(managed, "Pod"))
    home_uid = annotations_of(copy).get(HOME_UID)
    if home_uid is None:
        known = {uid(pod) for pod in pods}
        known |= {annotations_of(pod).get(HOME_UID, "") for pod in standing}
        references_pod = known & set(annotations_of(copy).values())
        return None if references_pod else "no home object or pod belongs to it"
    original = next((obj for obj in home if uid(obj) == home_uid), None)
    namespace = annotations_of(copy).get(HOME_NAMESPACE)
    users = [pod for pod in pods if meta(pod).get("namespace") == namespace]
    if kind not in _CONTENT:
        if original is None:
            return "home no longer has it"
        return None if users else "no pod of its namespace is on the node"
    if copy.get("type") == _TOKEN:
        return "a service account token was copied"
    held = any(_ref(copy) in references(pod) for pod in standing)
    if original is None:
        # The configuration of a running pod is not deleted, as by a kubelet.
        return None if held else "home no longer has it"
    if held or any(_ref(original) in references(pod) for pod in users):
        return None
    return "no pod refers to it"


def check_namespaces(
    remote: Sequence[Json], *, pods: Sequence[Json], node: str
) -> Iterator[Finding]:
    """Managed objects are in managed or handed-over namespaces, and managed namespaces are deleted
    when they are empty; ``pods``: home's pods on the virtual node."""
    namespaces = list(of_kind(remote, "Namespace"))
    unmanaged = {
        str(meta(obj)["name"])
        for obj in namespaces
        if is_unmanaged(obj) and ACCEPTS not in annotations_of(obj)
    }
    for obj in remote:
        if is_managed(obj, node) and meta(obj).get("namespace") in unmanaged:
            yield Finding(Kind.LEAKED, subject_of(obj), "is in an unmanaged namespace")
    full = {meta(obj).get("namespace") for obj in remote if meta(obj)["name"] != _ROOT_CA}
    wanted = {meta(pod).get("namespace") for pod in pods}
    for obj in namespaces:
        home = annotations_of(obj).get(HOME_NAMESPACE)
        if is_managed(obj, node) and meta(obj)["name"] not in full and home not in wanted:
            yield Finding(Kind.LEAKED, subject_of(obj), "is empty and unused")
