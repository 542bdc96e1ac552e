"""The resources that the fake serves, their storage rules, and the parser of API paths."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from sync.kube import api_resources as known
from sync.kube.api_resources import Object, Resource
from tests.fakeapi import api_errors


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource and its storage rules."""

    resource: Resource
    status: bool = True
    """Whether /status exists; then writes to the main path ignore ``status``."""
    generation: bool = False
    """Whether ``metadata.generation`` counts changes of the spec."""
    blind_put: bool = True
    """Whether a PUT without resourceVersion is accepted (AllowUnconditionalUpdate)."""
    fields: frozenset[str] | None = frozenset()
    """Field selectors beside name and namespace; None accepts any path."""
    builtin: bool = True
    """Whether strategic merge patches work, as for all but custom resources."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a path: a collection (no name), an object, or a subresource."""

    kind: Kind
    namespace: str | None
    name: str | None
    subresource: str


def _core(plural: str, kind: str, *, namespaced: bool = True) -> Resource:
    return Resource("", "v1", plural, kind, namespaced)


_POD_FIELDS = frozenset(
    {
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    }
)
_EVENT_FIELDS = frozenset(
    {"reason", "reportingComponent", "source", "type"}
    | {f"involvedObject.{f}" for f in ("kind", "namespace", "name", "uid", "fieldPath")}
    | {f"involvedObject.{f}" for f in ("apiVersion", "resourceVersion")}
)

_BUILTIN = (
    Kind(known.NAMESPACES, fields=frozenset({"status.phase"})),
    Kind(known.NODES, fields=frozenset({"spec.unschedulable"})),
    Kind(known.PODS, generation=True, fields=_POD_FIELDS),
    Kind(known.CONFIG_MAPS, status=False),
    Kind(known.SECRETS, status=False, fields=frozenset({"type"})),
    Kind(known.SERVICES, fields=frozenset({"spec.clusterIP", "spec.type"})),
    Kind(known.EVENTS, status=False, fields=_EVENT_FIELDS),
    Kind(known.LEASES, status=False, blind_put=False),
    Kind(known.PRIORITY_CLASSES, status=False),
    Kind(known.CERTIFICATE_SIGNING_REQUESTS, fields=frozenset({"spec.signerName"})),
    Kind(_core("serviceaccounts", "ServiceAccount"), status=False),
    Kind(known.PERSISTENT_VOLUME_CLAIMS),
    Kind(known.PERSISTENT_VOLUMES),
    Kind(known.STORAGE_CLASSES, status=False),
    Kind(known.CSI_DRIVERS, status=False),
    Kind(known.CSI_STORAGE_CAPACITIES, status=False),
    Kind(known.RESOURCE_QUOTAS),
    Kind(_core("limitranges", "LimitRange"), status=False),
    Kind(known.ENDPOINT_SLICES, status=False, generation=True, blind_put=False),
    Kind(known.DAEMON_SETS, generation=True),
    Kind(known.DEPLOYMENTS, generation=True),
    Kind(known.DAEMON_SETS, generation=True),
    Kind(known.POD_DISRUPTION_BUDGETS, generation=True),
    Kind(known.MUTATING_WEBHOOKS, status=False, generation=True),
    Kind(known.NETWORK_POLICIES, status=False, generation=True),
    Kind(known.ROLES, status=False),
    Kind(known.ROLE_BINDINGS, status=False),
    Kind(known.CLUSTER_ROLES, status=False),
    Kind(known.CLUSTER_ROLE_BINDINGS, status=False),
    Kind(known.VALIDATING_POLICIES, generation=True),
    Kind(known.VALIDATING_POLICY_BINDINGS, status=False, generation=True),
)


class Registry:
    """The resources of one server; tests can add others, as CustomResourceDefinitions do."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str, str], Kind] = {}
        self._by_kind: dict[tuple[str, str], Kind] = {}
        for kind in _BUILTIN:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serves the resource from now on."""
        resource = kind.resource
        self._by_place[resource.group, resource.version, resource.plural] = kind
        self._by_kind[resource.api_version, resource.kind] = kind

    def drop(self, resource: Resource) -> None:
        """Stops to serve the resource: its paths are 404, as after its CRD is deleted."""
        del self._by_place[resource.group, resource.version, resource.plural]
        del self._by_kind[resource.api_version, resource.kind]

    def of(self, resource: Resource) -> Kind:
        """The kind of the resource. Raises KeyError for one that is not served."""
        return self._by_place[resource.group, resource.version, resource.plural]

    def of_object(self, obj: Object) -> Kind:
        """The kind of the object, by its apiVersion and kind."""
        return self._by_kind[obj["apiVersion"], obj["kind"]]

    def groups(self) -> dict[str, list[Kind]]:
        """All kinds by apiVersion, for discovery."""
        found: dict[str, list[Kind]] = {}
        for kind in self._by_place.values():
            found.setdefault(kind.resource.api_version, []).append(kind)
        return found

    def resolve(self, raw_path: str) -> Target:
        """Parses a path. Raises ApiErrorResponse (404) if it is not served."""
        parts = [unquote(part) for part in raw_path.strip("/").split("/")]
        if parts[:2] == ["api", "v1"]:
            group, version, rest = "", "v1", parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise api_errors.unknown_path()
        if rest[:1] == ["watch"]:  # a watch of one object, by its name
            rest = rest[1:]
        namespace = None
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        kind = self._by_place.get((group, version, rest[0])) if rest else None
        if kind is None or (namespace is not None and not kind.resource.namespaced):
            raise api_errors.unknown_path()
        name = rest[1] if len(rest) > 1 else None
        if name is not None and kind.resource.namespaced and namespace is None:
            raise api_errors.unknown_path()
        return Target(kind, namespace, name, "/".join(rest[2:]))
