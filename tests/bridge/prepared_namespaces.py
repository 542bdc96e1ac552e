"""A remote whose administrator prepared namespaces, and accounts with these permissions alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bridge.base.join_settings import JoinSettings
from bridge.rbac.permissions import Permission, required_in_remote
from sync.kube.api_resources import Object
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from translators.capacity import pod_requests
from translators.capacity.node_capacity import OfferLimits
from translators.ownership_labels import ANNOTATION_ACCEPTS

#: The capacity that the options of `prepared` declare.
CAPACITY = {"cpu": "8", "memory": "16Gi", "pods": "20"}


def prepare(two: Clusters, *names: str) -> None:
    """Creates namespaces of the remote that are handed over."""
    for name in names:
        meta = {"name": name, "annotations": {ANNOTATION_ACCEPTS: "*"}}
        two.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def prepared(two: Clusters, *names: str, **changes: Any) -> JoinSettings:
    """The settings of a join with these prepared namespaces, which exist, and a declared
    capacity."""
    prepare(two, *names)
    limits = OfferLimits(caps=pod_requests.parse_resource_list(CAPACITY))
    options = {"remote_namespaces": names, "metrics": "none", "limits": limits}
    return two.but(**(options | changes))


def limit_to_roles(two: Clusters, settings: JoinSettings) -> None:
    """Gives the remote's account Roles in the prepared namespaces alone: access reviews, and
    requests for what the bridge is tempted to read."""
    two.remote.api.authorize = granting(required_in_remote(settings))
    for path in (
        *("nodes", "pods", "resourcequotas", "namespaces", "namespaces/kube-system"),
        "namespaces/kube-node-lease/*",
    ):
        two.remote.fail(Fault("*", f"/api/v1/{path}", code=403, times=None))
    two.remote.fail(Fault("*", "/apis/*/namespaces/kube-node-lease/*", code=403, times=None))
    two.remote.fail(Fault("*", "/apis/*/priorityclasses", code=403, times=None))


def granting(table: Iterable[Permission]) -> Callable[[Object], bool]:
    """The authorizer of an account with these permissions alone."""
    granted = list(table)

    def authorize(spec: Object) -> bool:
        attributes: Object = spec["resourceAttributes"]
        return any(
            (it.resource.group, it.resource.plural) == (attributes["group"], attributes["resource"])
            and it.subresource == attributes.get("subresource", "")
            and attributes["verb"] in it.verbs
            and it.namespace in ("", attributes.get("namespace", ""))
            for it in granted
        )

    return authorize
