"""References of a home pod to ConfigMaps and Secrets that home does not have.

The remote resolves a reference by its name, so that a pod could read an unmanaged object to which
the pod's owner has no access. Before the pod is created:

- In a namespace that the bridge created, the bridge sends a GET for each such reference. An
  unmanaged object of that name makes the pod wait with `RemoteClash`; an optional reference to it
  is dropped instead.
- In a granted namespace the remote's tenants may create the object at any time: the pod waits with
  `ReferenceMissing`; optional references are dropped without a GET.
"""

from __future__ import annotations

from collections.abc import Collection

from sync.kube.client import KubeClient
from sync.namespaces.remote_namespace_creation import NamespaceMapping
from sync.references.reference_keys import REFERENCED_RESOURCES
from sync.runtime.controller import ReconcileBlocked
from translators.object_accessors import HomeNamespace, Object, namespace_of
from translators.ownership_labels import is_owned
from translators.pods import optional_references
from translators.pods.references import Reference
from translators.virtual_node_identity import Identity


class MissingReferences:
    """Checks references for which home has no original."""

    def __init__(
        self, client: KubeClient, *, identity: Identity, namespaces: NamespaceMapping
    ) -> None:
        self._client = client
        self._identity = identity
        self._namespaces = namespaces

    async def to_drop(self, pod: Object, missing: Collection[Reference]) -> frozenset[Reference]:
        """Returns the optional references among ``missing`` (those that home lacks) that must be
        dropped from the pod. Raises ReconcileBlocked if a required one blocks it, and KubeError."""
        if not missing:
            return frozenset()
        namespace = HomeNamespace(namespace_of(pod))
        required = optional_references.required_references(pod)
        dropped = set()
        for ref in sorted(missing):
            if self._namespaces.is_owned(namespace):
                if not await self._is_unmanaged(namespace, ref):
                    continue
                if ref in required:
                    raise self._conflict(namespace, ref)
            elif ref in required:
                raise self._missing(namespace, ref)
            dropped.add(ref)
        return frozenset(dropped)

    async def _is_unmanaged(self, namespace: HomeNamespace, ref: Reference) -> bool:
        remote = self._identity.remote_namespace(namespace)
        existing = await self._client.find(
            REFERENCED_RESOURCES[ref.kind], ref.name, namespace=remote
        )
        return existing is not None and not is_owned(existing, self._identity)

    def _conflict(self, namespace: HomeNamespace, ref: Reference) -> ReconcileBlocked:
        remote = self._identity.remote_namespace(namespace)
        return ReconcileBlocked(
            "RemoteClash",
            f"home has no {ref.kind} {namespace}/{ref.name}, and {ref.kind} {remote}/{ref.name} of "
            "the remote cluster is not managed by this bridge, so the pod must not read it; create "
            f"the {ref.kind} at home under another name, or delete that one",
        )

    def _missing(self, namespace: HomeNamespace, ref: Reference) -> ReconcileBlocked:
        remote = self._identity.remote_namespace(namespace)
        return ReconcileBlocked(
            "ReferenceMissing",
            f"home has no {ref.kind} {namespace}/{ref.name}; namespace {remote} of the remote "
            "cluster is shared with other tenants, so the pod is created only when home has it",
        )
