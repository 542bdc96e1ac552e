"""The shapes of the remote's objects: the types of the fields that the bridge reads.

API servers send no others. A remote that does is hostile or broken: such an object is not used, so
that the code that reads objects need not expect a list where the API has a map. Fields that are not
listed here are copied or compared as they are, and never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from translators.object_accessors import Object
from translators.value_shapes import (
    NAME_LIMIT,
    Amounts,
    Fields,
    Int32,
    ListOf,
    MapOf,
    Name,
    Quantity,
    Shape,
    TextsOf,
    Time,
)

#: The kind of a pod of which only the usage is read.
POD_USAGE = "PodUsage"

#: Characters of the keys and values of an object's annotations (TotalAnnotationSizeLimitB of
#: k8s.io/apimachinery/pkg/api/validation, which counts bytes), or of its labels.
_METADATA_LIMIT = 256 * 1024

_RESOURCES = Fields({"requests": Amounts, "limits": Amounts})
_REFERENCE = Fields({"name": str, "key": str})

METADATA = Fields(
    {
        "name": Name,
        "namespace": Name,
        "uid": Name,
        "resourceVersion": Name,
        # Keys are in caches with many entries.
        "labels": TextsOf(each=NAME_LIMIT, together=_METADATA_LIMIT),
        "annotations": TextsOf(each=_METADATA_LIMIT, together=_METADATA_LIMIT),
        "finalizers": ListOf(str),
        "generation": int,
        "creationTimestamp": Time,
        "deletionTimestamp": Time,
        "deletionGracePeriodSeconds": int,
        "ownerReferences": ListOf(
            Fields({"apiVersion": str, "kind": str, "name": str, "uid": str, "controller": bool})
        ),
    },
    required=("name",),
)
_CONDITIONS = ListOf(
    Fields(
        {
            "type": Name,
            "status": str,
            "reason": str,
            "message": str,
            "lastTransitionTime": Time,
            "lastProbeTime": Time,
            "observedGeneration": int,
        },
        required=("type",),
    )
)
_PORTS = ListOf(
    Fields({"name": str, "protocol": str, "port": int, "containerPort": int, "hostPort": int})
)
_CONTAINERS = ListOf(
    Fields(
        {
            "name": Name,
            "image": str,
            "restartPolicy": str,
            "resources": _RESOURCES,
            "ports": _PORTS,
            "env": ListOf(
                Fields({"name": str, "value": str, "valueFrom": MapOf(Fields(_REFERENCE.known))})
            ),
            "envFrom": ListOf(Fields({"configMapRef": _REFERENCE, "secretRef": _REFERENCE})),
            "securityContext": Fields({}),
        },
        required=("name",),
    )
)
_SECRET_REF = Fields({"secretRef": _REFERENCE})
_VOLUMES = ListOf(
    Fields(
        {
            "name": str,
            "configMap": _REFERENCE,
            "secret": Fields({"secretName": str}),
            "azureFile": Fields({"secretName": str}),
            "projected": Fields(
                {
                    "sources": ListOf(
                        Fields(
                            {
                                "configMap": _REFERENCE,
                                "secret": _REFERENCE,
                                "serviceAccountToken": Fields({}),
                            }
                        )
                    )
                }
            ),
            "csi": Fields({"nodePublishSecretRef": _REFERENCE}),
            "persistentVolumeClaim": Fields({"claimName": str}),
            **dict.fromkeys(
                ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"),
                _SECRET_REF,
            ),
        }
    )
)
_STATE = Fields(
    {
        "waiting": Fields({"reason": str, "message": str}),
        "running": Fields({"startedAt": Time}),
        "terminated": Fields(
            {
                "exitCode": Int32,
                "signal": Int32,
                "reason": str,
                "message": str,
                "startedAt": Time,
                "finishedAt": Time,
                "containerID": str,
            }
        ),
    }
)
_CONTAINER_STATUSES = ListOf(
    Fields(
        {
            "name": Name,
            "state": _STATE,
            "lastState": _STATE,
            "ready": bool,
            "started": bool,
            "restartCount": Int32,
            "image": str,
            "imageID": str,
            "containerID": str,
            "resources": _RESOURCES,
            "allocatedResources": Amounts,
        },
        required=("name",),
    )
)
#: What `translators.capacity.pod_requests` reads of a container or its status.
_USED = ListOf(
    Fields(
        {
            "name": Name,
            "restartPolicy": str,
            "resources": _RESOURCES,
            "allocatedResources": Amounts,
        },
        required=("name",),
    )
)
_ADDRESSES = ListOf(Fields({"ip": str}))

_POD: Mapping[str, Shape | type] = {
    "spec": Fields(
        {
            "containers": _CONTAINERS,
            "initContainers": _CONTAINERS,
            "ephemeralContainers": _CONTAINERS,
            "volumes": _VOLUMES,
            "imagePullSecrets": ListOf(_REFERENCE),
            "nodeName": str,
            "restartPolicy": str,
            "serviceAccountName": str,
            "activeDeadlineSeconds": int,
            "terminationGracePeriodSeconds": int,
            "priority": int,
            "hostNetwork": bool,
            "overhead": Amounts,
            "resources": _RESOURCES,
            "nodeSelector": MapOf(str),
            "tolerations": ListOf(
                Fields({"key": str, "operator": str, "value": str, "effect": str})
            ),
            "schedulingGates": ListOf(_REFERENCE),
            "readinessGates": ListOf(Fields({"conditionType": str})),
        }
    ),
    "status": Fields(
        {
            "phase": str,
            "reason": str,
            "message": str,
            "qosClass": str,
            "resize": str,
            "nominatedNodeName": str,
            "startTime": Time,
            "observedGeneration": int,
            "hostIP": str,
            "hostIPs": _ADDRESSES,
            "podIP": str,
            "podIPs": _ADDRESSES,
            "conditions": _CONDITIONS,
            "containerStatuses": _CONTAINER_STATUSES,
            "initContainerStatuses": _CONTAINER_STATUSES,
            "ephemeralContainerStatuses": _CONTAINER_STATUSES,
            "resources": _RESOURCES,
            "allocatedResources": Amounts,
        }
    ),
}
#: The fields of ``nodeInfo`` that the virtual node may share with the remote's nodes.
NODE_INFO = (
    "architecture",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "operatingSystem",
)
_NODE: Mapping[str, Shape | type] = {
    "spec": Fields(
        {
            "unschedulable": bool,
            "podCIDR": str,
            "podCIDRs": ListOf(str),
            "taints": ListOf(Fields({"key": str, "value": str, "effect": str})),
        }
    ),
    "status": Fields(
        {
            "capacity": Amounts,
            "allocatable": Amounts,
            "conditions": _CONDITIONS,
            "addresses": ListOf(Fields({"type": str, "address": str})),
            "nodeInfo": Fields(dict.fromkeys((*NODE_INFO, "osImage"), str)),
        }
    ),
}
_OBJECT_REFERENCE = Fields(
    {"kind": str, "namespace": str, "name": str, "uid": str, "fieldPath": str, "apiVersion": str}
)
_EVENT: Mapping[str, Shape | type] = {
    "involvedObject": _OBJECT_REFERENCE,
    "related": _OBJECT_REFERENCE,
    "reason": str,
    "message": str,
    "type": str,
    "action": str,
    "count": int,
    "firstTimestamp": Time,
    "lastTimestamp": Time,
    "eventTime": Time,
    "reportingComponent": str,
    "reportingInstance": str,
    "source": Fields({"component": str, "host": str}),
    "series": Fields({"count": int, "lastObservedTime": Time}),
}
_SERVICE: Mapping[str, Shape | type] = {
    "spec": Fields(
        {
            "type": str,
            "clusterIP": str,
            "clusterIPs": ListOf(str),
            "ipFamilies": ListOf(str),
            "externalName": str,
            "selector": MapOf(str),
            "ports": _PORTS,
        }
    )
}
_ENDPOINT_SLICE: Mapping[str, Shape | type] = {
    "addressType": str,
    "endpoints": ListOf(
        Fields(
            {
                "addresses": ListOf(str),
                "conditions": MapOf(bool),
                "targetRef": _OBJECT_REFERENCE,
                "hostname": str,
                "nodeName": str,
            }
        )
    ),
    "ports": _PORTS,
}
_SHAPES: Mapping[str, Mapping[str, Shape | type]] = {
    "Pod": _POD,
    "Node": _NODE,
    "Event": _EVENT,
    "Service": _SERVICE,
    "EndpointSlice": _ENDPOINT_SLICE,
    "ResourceQuota": {
        "spec": Fields(
            {
                "hard": Amounts,
                "scopes": ListOf(str),
                "scopeSelector": Fields({"matchExpressions": ListOf(Fields({}))}),
            }
        ),
        "status": Fields({"hard": Amounts, "used": Amounts}),
    },
    # An unmanaged pod, of which only the usage counts.
    POD_USAGE: {
        "spec": Fields(
            {
                "containers": _USED,
                "initContainers": _USED,
                "nodeName": str,
                "overhead": Amounts,
                "resources": _RESOURCES,
            }
        ),
        "status": Fields(
            {
                "phase": str,
                "conditions": _CONDITIONS,
                "containerStatuses": _USED,
                "initContainerStatuses": _USED,
            }
        ),
    },
    "Namespace": {"status": Fields({"phase": str})},
    "ConfigMap": {"data": MapOf(str), "binaryData": MapOf(str), "immutable": bool},
    "Secret": {"data": MapOf(str), "type": str, "immutable": bool},
    "PodMetrics": {
        "timestamp": Time,
        "window": str,
        "containers": ListOf(Fields({"name": Name, "usage": Amounts}, required=("name", "usage"))),
    },
    "PersistentVolumeClaim": {
        "spec": Fields(
            {"resources": _RESOURCES, "storageClassName": str, "volumeName": str, "volumeMode": str}
        ),
        "status": Fields(
            {
                "phase": str,
                "capacity": Amounts,
                "conditions": _CONDITIONS,
                "allocatedResources": Amounts,
                "allocatedResourceStatuses": MapOf(str),
            }
        ),
    },
    "VolumeSnapshot": {
        "status": Fields(
            {
                "readyToUse": bool,
                "creationTime": Time,
                "restoreSize": Quantity,
                "error": Fields({"message": str, "time": Time}),
            }
        ),
    },
    "StorageClass": {
        "provisioner": str,
        "volumeBindingMode": str,
        "allowVolumeExpansion": bool,
    },
    "CSIStorageCapacity": {
        "storageClassName": str,
        "capacity": Quantity,
        "maximumVolumeSize": Quantity,
    },
    "PriorityClass": {"value": int, "globalDefault": bool, "preemptionPolicy": str},
    "ValidatingAdmissionPolicy": {
        "spec": Fields({"variables": ListOf(Fields({"name": str, "expression": str}))}),
        "status": Fields({"typeChecking": Fields({})}),
    },
    "ValidatingAdmissionPolicyBinding": {
        "spec": Fields({"policyName": str, "validationActions": ListOf(str)})
    },
    "Lease": {
        "spec": Fields(
            {
                "holderIdentity": str,
                "leaseDurationSeconds": int,
                "leaseTransitions": int,
                "acquireTime": Time,
                "renewTime": Time,
            }
        )
    },
}
#: An entry of a kubelet's ``/stats/summary``, which is no object.
POD_STATS = Fields(
    {
        "podRef": Fields({"namespace": str, "name": str, "uid": str}),
        "volume": ListOf(Fields({"pvcRef": Fields({"namespace": str, "name": str})})),
    }
)
_BY_KIND = {
    kind: Fields({"metadata": METADATA, **it}, required=("metadata",))
    for kind, it in _SHAPES.items()
}
_OTHER = Fields({"metadata": METADATA}, required=("metadata",))


def wrong_part(kind: str, obj: Any, before: Object | None = None) -> str:
    """The path of the first part of an object of ``kind`` that has the wrong type, such as
    ``status.conditions[0].type``; "" if there is none. Parts that are identical to those of
    ``before``, any object of the kind that was checked, are not checked again."""
    if type(obj) is not dict:
        return "the object"
    found = _BY_KIND.get(kind, _OTHER).wrong(obj, before)
    return found.removeprefix(".") if found is not None else ""
