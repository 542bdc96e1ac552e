"""By what the engine's informers look objects up, other than by name.

Nothing is watched or copied for pods that are not run. Objects of the remote count where their home
namespace is mapped to, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from sync.mirror.copies import reference_keys
from sync.pods import plan
from translators.identity import Identity, is_in_mapped_namespace, origin_of
from translators.objects import HomeNamespace, Object, namespace_of
from translators.relay import reverse
from translators.translation_policy import Policy


def namespaces(policy: Policy, home: Object) -> Iterable[Hashable]:
    """The namespace of a home pod that is to run."""
    return (namespace_of(home),) if plan.may_run(home, policy) else ()


def home_references(policy: Policy, home: Object) -> Iterable[Hashable]:
    """The ConfigMaps and Secrets that a home pod which is to run refers to."""
    if not plan.may_run(home, policy):
        return ()
    return reference_keys(home, HomeNamespace(namespace_of(home)))


def origins(identity: Identity, remote: Object) -> Iterable[Hashable]:
    """The home namespace of an object that is in the remote namespace which stands for it."""
    origin = origin_of(remote)
    in_place = origin is not None and is_in_mapped_namespace(remote, identity)
    return (origin.namespace,) if origin is not None and in_place else ()


def relayed(remote: Object) -> Iterable[Hashable]:
    """The home namespace that a relay agent or a slice of reverse forwarding is for."""
    home = reverse.relay_home_namespace(remote)
    return () if home is None else (home,)


def remote_references(identity: Identity, remote: Object) -> Iterator[Hashable]:
    """The ConfigMaps and Secrets that a remote pod refers to, as objects of home."""
    origin = origin_of(remote)
    if origin is not None and is_in_mapped_namespace(remote, identity):
        yield from reference_keys(remote, origin.namespace)
