"""Copies: what pods refer to is in the remote as it is at home, and no copy is there in vain.

Between what must be there and what may be there is a margin: a copy may outlive its last pod's
end. All Services of a namespace with pods must be there, and home's endpoints of them: the bridges
that are audited are joined with ``--network=flat``.
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
    carried_differences,
    differing,
    is_daemon,
    is_deleting,
    is_foreign,
    is_ours,
    is_terminal,
    labels_of,
    meta,
    of_kind,
    subject_of,
    uid,
)

#: Kind, namespace and name of a home object.
Ref = tuple[str, str, str]

#: The keys by which a pod's spec names ConfigMaps and Secrets, at whatever depth, and under which
#: key the name then is.
_NAMES = {
    "configMap": ("ConfigMap", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
    "configMapRef": ("ConfigMap", "name"),
    "nodePublishSecretRef": ("Secret", "name"),
    "secret": ("Secret", ""),
    "secretKeyRef": ("Secret", "name"),
    "secretRef": ("Secret", "name"),
}
#: Each cluster publishes its own.
_ROOT_CA = "kube-root-ca.crt"
_API_SERVER = ("Service", "default", "kubernetes")
_TOKEN = "kubernetes.io/service-account-token"

#: What of an object is its content, by kind.
_CONTENT = {
    "ConfigMap": ("data", "binaryData", "immutable"),
    "Secret": ("data", "type", "immutable"),
}
_SERVICE = ("selector", "externalName", "publishNotReadyAddresses", "sessionAffinity")
#: On a home Service: ``"false"`` keeps it at home.
_MIRROR = "cluster-bridge.io/mirror"
#: Of an EndpointSlice: the Service that it is of.
_SERVICE_NAME = "kubernetes.io/service-name"
_PORT = ("name", "port", "targetPort", "protocol", "appProtocol")


def references(pod: Json) -> set[Ref]:
    """The ConfigMaps and Secrets that a pod names, found by the names of keys at any depth."""
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
    """``home`` and ``remote``: all that is there; ``pods``: home's on the virtual node.

    A clash (a foreign object of that name) is no loss: the pod says so (`check_pods`).
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
        elif not is_foreign(copy):
            for detail in _differences(original, copy):
                yield Finding(Kind.DISAGREES, subject_of(original), detail)
    ours = [obj for obj in remote if is_ours(obj, node)]
    yield from _check_endpoints(home, ours, pods=pods, node=node)
    for copy in ours:
        why = _in_vain(copy, home=home, ours=ours, pods=pods)
        if why:
            yield Finding(Kind.LEAKED, subject_of(copy), why)


def _ref(obj: Json) -> Ref:
    return obj["kind"], str(meta(obj).get("namespace", "")), str(meta(obj)["name"])


def _namespaces(remote: Iterable[Json], node: str) -> dict[str, str]:
    """Which namespace of the remote stands for which of home, by what stands in them."""
    found = {}
    for obj in remote:
        here, there = annotations_of(obj).get(HOME_NAMESPACE), meta(obj).get("namespace")
        if here and there and is_ours(obj, node):
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
    home: Sequence[Json], ours: Sequence[Json], *, pods: Sequence[Json], node: str
) -> Iterator[Finding]:
    """Home's endpoints of each Service that has a copy, but for the node's own pods."""
    namespaces = _live_namespaces(pods)
    services = {_origin(obj) for obj in of_kind(ours, "Service")}
    copies = {annotations_of(obj).get(HOME_UID): obj for obj in of_kind(ours, "EndpointSlice")}
    for slice_ in of_kind(home, "EndpointSlice"):
        namespace = str(meta(slice_).get("namespace", ""))
        wanted = _addresses(slice_, but=node)
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


def _addresses(slice_: Json, *, but: str = "") -> list[tuple[str, bool | None]]:
    """Each address and whether it is ready, less those on the node ``but``."""
    return sorted(
        (address, (endpoint.get("conditions") or {}).get("ready"))
        for endpoint in slice_.get("endpoints") or ()
        if not but or endpoint.get("nodeName") != but
        for address in endpoint["addresses"]
    )


def _differences(home: Json, copy: Json) -> Iterator[str]:
    """What differs; never what a Secret holds."""
    if annotations_of(copy).get(HOME_UID) != uid(home):
        yield f"its copy stands for {annotations_of(copy).get(HOME_UID)}, not {uid(home)}"
    yield from carried_differences(home, copy)
    for field in _CONTENT.get(home["kind"], ()):
        if (home.get(field) or None) != (copy.get(field) or None):
            yield f"{field} differs"
    if home["kind"] != "Service":
        return
    ours, theirs = home["spec"], copy["spec"]
    yield from differing("", ours, theirs, _SERVICE)
    ports = [
        [{key: port.get(key) for key in _PORT} for port in spec.get("ports") or ()]
        for spec in (ours, theirs)
    ]
    if ports[0] != ports[1]:
        yield f"ports: home {ports[0]}, remote {ports[1]}"
    if (ours.get("clusterIP") == "None") != (theirs.get("clusterIP") == "None"):
        yield "one of them alone is headless"
    if any("nodePort" in port for port in theirs.get("ports") or ()):
        yield "it takes a node port in the remote"


def _in_vain(
    copy: Json, *, home: Sequence[Json], ours: Sequence[Json], pods: Sequence[Json]
) -> str | None:
    """Why an object of ours should not be there, or None."""
    kind = copy["kind"]
    if kind in ("Pod", "Namespace"):
        return None  # NB: `check_pods` and `check_namespaces` see to those.
    standing = list(of_kind(ours, "Pod"))
    home_uid = annotations_of(copy).get(HOME_UID)
    if home_uid is None:
        known = {uid(pod) for pod in pods}
        known |= {annotations_of(pod).get(HOME_UID, "") for pod in standing}
        told = known & set(annotations_of(copy).values())
        return None if told else "it stands for no object and no pod of home"
    original = next((obj for obj in home if uid(obj) == home_uid), None)
    namespace = annotations_of(copy).get(HOME_NAMESPACE)
    users = [pod for pod in pods if meta(pod).get("namespace") == namespace]
    if kind not in _CONTENT:
        if original is None:
            return "home has it no more"
        return None if users else "no pod of its namespace is on the node"
    if copy.get("type") == _TOKEN:
        return "a service account's token has left home"
    held = any(_ref(copy) in references(pod) for pod in standing)
    if original is None:
        # Under a running pod its configuration is not taken away; a kubelet keeps it too.
        return None if held else "home has it no more"
    if held or any(_ref(original) in references(pod) for pod in users):
        return None
    return "no pod refers to it"


def check_namespaces(
    remote: Sequence[Json], *, pods: Sequence[Json], node: str
) -> Iterator[Finding]:
    """What stands for the node stands in namespaces that are ours or were handed over, and ours
    go when nothing is in them; ``pods``: home's on the virtual node."""
    namespaces = list(of_kind(remote, "Namespace"))
    theirs = {
        str(meta(obj)["name"])
        for obj in namespaces
        if is_foreign(obj) and ACCEPTS not in annotations_of(obj)
    }
    for obj in remote:
        if is_ours(obj, node) and meta(obj).get("namespace") in theirs:
            yield Finding(Kind.LEAKED, subject_of(obj), "stands in a namespace of others")
    full = {meta(obj).get("namespace") for obj in remote if meta(obj)["name"] != _ROOT_CA}
    wanted = {meta(pod).get("namespace") for pod in pods}
    for obj in namespaces:
        home = annotations_of(obj).get(HOME_NAMESPACE)
        if is_ours(obj, node) and meta(obj)["name"] not in full and home not in wanted:
            yield Finding(Kind.LEAKED, subject_of(obj), "is empty, and nothing needs it")
