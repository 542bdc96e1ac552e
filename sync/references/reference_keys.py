"""Names the home objects that are copied to the remote, and those to which a pod refers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sync.base.identity_cache import CACHED_SPECS, IdentityCache
from sync.kube.api_resources import CONFIG_MAPS, SECRETS, Resource
from translators.object_accessors import HomeNamespace, Object, namespace_of
from translators.pods import service_accounts
from translators.pods.references import ROOT_CA, references
from translators.pods.references import Kind as ReferenceKind
from translators.translation_options import Policy

#: The resources to which pods refer by name.
REFERENCED_RESOURCES: dict[ReferenceKind, Resource] = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}


class CopyKey(NamedTuple):
    """A home object that has, or should have, a copy."""

    resource: Resource
    namespace: HomeNamespace
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


_NO_SPEC: Object = {}
#: The steps of a pod's life ask for the references of one spec again and again.
_references_of_spec = IdentityCache(lambda spec: references({"spec": spec}), maxsize=CACHED_SPECS)


def reference_keys(pod: Object, namespace: HomeNamespace) -> Iterator[CopyKey]:
    """The ConfigMaps and Secrets to which a pod of either cluster refers; ``namespace`` is its home
    namespace."""
    for ref in _references_of_spec(pod.get("spec") or _NO_SPEC):
        yield CopyKey(REFERENCED_RESOURCES[ref.kind], namespace, ref.name)


def root_ca_key(namespace: HomeNamespace) -> CopyKey:
    """Home's CA as it is published in a namespace. It has no copy: the remote publishes its own."""
    return CopyKey(CONFIG_MAPS, namespace, ROOT_CA)


def watched_keys(home_pod: Object, policy: Policy) -> Iterator[CopyKey]:
    """The ConfigMaps and Secrets of home that a pod needs: those to which it refers, and home's CA
    if the bridge mounts it beside a token."""
    namespace = HomeNamespace(namespace_of(home_pod))
    yield from reference_keys(home_pod, namespace)
    if policy.service_accounts == "home" and service_accounts.required_tokens(home_pod).needs_ca:
        yield root_ca_key(namespace)
