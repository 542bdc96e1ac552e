"""Builds Kueue's objects for virtual nodes: flavors, the admission check, and a queue. Pure.

By default one ResourceFlavor stands for all virtual nodes, and the admission check chooses the
remote of each Workload: Kueue itself would not try a second flavor after the check has refused the
first. With `per_node` each virtual node has its own flavor, in the order of the names, for
clusters where users or quotas choose the remote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sync.kube.api_resources import KUEUE_ADMISSION_CHECKS, KUEUE_RESOURCE_FLAVORS
from translators.capacity import pod_requests
from translators.capacity.pod_requests import Amounts
from translators.kueue.workload import CONTROLLER_NAME, LABEL_HOSTNAME, TOLERATION, hostname_of
from translators.object_accessors import Object, name_of
from translators.ownership_labels import LABEL_VIRTUAL

CHECK = "one-remote"
_API = KUEUE_ADMISSION_CHECKS.api_version
#: Resources that a queue counts first; others follow by name. Kueue requires the same order in
#: each flavor.
_FIRST = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options of `bridge kueue flavors`."""

    queue: str = "virtual-nodes"
    """The name of the ClusterQueue and of the common flavor."""
    namespaces: Sequence[str] = ()
    """Namespaces that get a LocalQueue of the same name."""
    per_node: bool = False
    """Whether each virtual node has a flavor of its own."""


def queue_objects(nodes: Sequence[Object], options: QueueOptions) -> list[Object]:
    """The objects for `kubectl apply`, with quotas from what the virtual nodes offer now."""
    offers = _offers(nodes, options)
    resources = _ordered({it for amounts in offers.values() for it in amounts})
    return [
        *(_flavor(name, labels) for name, labels in _labels(nodes, options).items()),
        KUEUE_ADMISSION_CHECKS.manifest({"name": CHECK}, spec={"controllerName": CONTROLLER_NAME}),
        _cluster_queue(options, offers, resources),
        *(_local_queue(options.queue, namespace) for namespace in options.namespaces),
    ]


def _labels(nodes: Iterable[Object], options: QueueOptions) -> dict[str, dict[str, str]]:
    """The node labels of each flavor."""
    if not options.per_node:
        return {options.queue: {LABEL_VIRTUAL: "true"}}
    return {name_of(it): {LABEL_HOSTNAME: hostname_of(it)} for it in nodes}


def _offers(nodes: Iterable[Object], options: QueueOptions) -> dict[str, Amounts]:
    """The sum of the allocatable resources behind each flavor."""
    offers: dict[str, Amounts] = {}
    for node in nodes:
        name = name_of(node) if options.per_node else options.queue
        total = offers.setdefault(name, {})
        status = node.get("status") or {}
        amounts = pod_requests.parse_resource_list(status.get("allocatable"))
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return offers


def _ordered(resources: Iterable[str]) -> list[str]:
    found = sorted(resources)
    return [*(it for it in _FIRST if it in found), *(it for it in found if it not in _FIRST)]


def _flavor(name: str, labels: dict[str, str]) -> Object:
    spec = {"nodeLabels": labels, "tolerations": [TOLERATION]}
    return KUEUE_RESOURCE_FLAVORS.manifest({"name": name}, spec=spec)


def _cluster_queue(
    options: QueueOptions, offers: dict[str, Amounts], resources: Sequence[str]
) -> Object:
    flavors = [
        {
            "name": flavor,
            "resources": [
                {
                    "name": resource,
                    "nominalQuota": pod_requests.format_amount(resource, amounts.get(resource, 0)),
                }
                for resource in resources
            ],
        }
        for flavor, amounts in offers.items()
    ]
    spec = {
        "namespaceSelector": _namespace_selector(options.namespaces),
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": [*resources], "flavors": flavors}],
        "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
    }
    meta = {"name": options.queue}
    return {"apiVersion": _API, "kind": "ClusterQueue", "metadata": meta, "spec": spec}


def _namespace_selector(namespaces: Sequence[str]) -> Object:
    """Selects these namespaces; without any, all."""
    if not namespaces:
        return {}
    term = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*namespaces]}
    return {"matchExpressions": [term]}


def _local_queue(name: str, namespace: str) -> Object:
    return {
        "apiVersion": _API,
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": name},
    }
