"""Decides for each field of a pod whether it is kept, translated, dropped or rejected.

`TABLE` maps field paths of the v1 API to rules. In a path, ``[]`` stands for each item of a list,
and a trailing ``**`` for all fields below. Init and ephemeral containers follow the rules of
``spec.containers[]``, pod anti-affinity those of ``podAffinity``. Tests compare the table with all
fields of the API.

- *kept*: unchanged in the remote pod. Fields without a rule are kept too, so that new fields of the
  API work at once.
- *translated*: changed, renamed or removed by the module that ``module`` names.
- *dropped*: not in the remote pod. Each non-empty dropped field causes a ``FieldDropped`` Event
  with the ``reason``, unless the rule is *silent*: then home has already applied the field, or set
  it itself.
- *rejected*: the pod does not run in the remote; ``reason`` explains what to do.

To drop a new field, add its path to the section that it belongs to (here `_SPEC`):

    "newField.**": Rule("dropped", "names an object of home"),

`drop_fields` and `rejected_fields` apply the table; no other code is needed. Add a pair of pods to
``tests/translators/golden``, and update the documentation with ``make docs-write``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from translators.field_paths import FieldMessage, FieldPaths, find_fields, remove_fields
from translators.object_accessors import Object

Decision = Literal["kept", "translated", "dropped", "rejected"]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a field is translated, and why."""

    decision: Decision
    reason: str
    module: str = ""
    """For translated fields: the module of `translators.pods` that translates them."""
    silent: bool = False
    """Whether a dropped field causes no Event."""
    admission_defaults: tuple[Any, ...] = ()
    """Values that home's admission sets by default; they cause no Event either."""


def _rules(under: str, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    return {under + path: rule for paths, rule in rules.items() for path in paths.split()}


_KEPT = Rule("kept", "has the same meaning in the remote")
_NODE_LEVEL = Rule("kept", "refers to the node, which is a node of the remote")
_APPLIED = Rule("dropped", "home's admission and scheduler have already applied it", silent=True)
_PLACEMENT = Rule(
    "translated", "restricted to what exists in the remote", module="scheduling_fields"
)
_REFERENCE = Rule("translated", "the referenced object is copied first", module="references")
_DEVICES = Rule(
    "rejected",
    "home allocates its devices on nodes of home: request them as extended resources in "
    "limits (example.com/gpu), or keep the pod off this node",
)
_HOST_NAMESPACE = Rule(
    "rejected",
    "the nodes of the remote are not nodes of home: remove it, or keep the pod off this node",
)

_METADATA = {
    "name": _KEPT,
    "namespace": Rule("translated", "the mapped namespace", module="remote_pod"),
    "labels annotations": Rule(
        "translated",
        "ownership; without keys that act on nodes, networks or identities",
        module="dropped_metadata",
    ),
    "creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName "
    "generation managedFields[].** ownerReferences[].** resourceVersion selfLink uid": Rule(
        "dropped", "belongs to the home object", silent=True
    ),
}
_SPEC = {
    "activeDeadlineSeconds dnsConfig.** dnsPolicy enableServiceLinks hostAliases[].** "
    "hostUsers hostname hostnameOverride os.** resources.limits resources.requests "
    "restartPolicy securityContext.** setHostnameAsFQDN shareProcessNamespace subdomain "
    "terminationGracePeriodSeconds": _KEPT,
    "runtimeClassName": Rule(
        "kept", "names a RuntimeClass of the remote, which rejects the pod without one"
    ),
    "overhead": Rule("dropped", "the remote's RuntimeClass sets its own", silent=True),
    "imagePullSecrets[].name": _REFERENCE,
    "automountServiceAccountToken": Rule(
        "translated", "true only for service accounts of the remote", module="service_accounts"
    ),
    "serviceAccount serviceAccountName": Rule(
        "dropped", "the bridge provides the service account identity", silent=True
    ),
    "nodeName preemptionPolicy priority schedulingGates[].**": _APPLIED,
    "readinessGates[].**": Rule(
        "dropped", "home's status evaluates the readiness gates", silent=True
    ),
    "schedulerName": Rule(
        "dropped",
        "names a scheduler of home; the remote's default scheduler places the pod there",
        admission_defaults=("default-scheduler",),
    ),
    "priorityClassName": Rule(
        "translated",
        "kept if the remote has a PriorityClass of this name",
        module="scheduling_fields",
    ),
    "schedulingGroup.** workloadRef.**": Rule(
        "dropped", "names a pod group of home, which does not exist in the remote"
    ),
    "evictionResponders[].**": Rule(
        "dropped", "names eviction responders of home, which do not run in the remote"
    ),
    "nodeSelector tolerations[].**": _PLACEMENT,
    "resourceClaims[].** resources.claims[].**": _DEVICES,
    "hostNetwork hostPID hostIPC": _HOST_NAMESPACE,
}
_SPREAD = {
    "labelSelector.** maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
    "whenUnsatisfiable": Rule("kept", "applies to the remote's nodes"),
    "matchLabelKeys": _PLACEMENT,
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution[]"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution[]"
_AFFINITY = {"nodeAffinity.**": _PLACEMENT, f"podAffinity.{_PREFERRED}.weight": _KEPT}
for _term in (_REQUIRED, f"{_PREFERRED}.podAffinityTerm"):
    _AFFINITY |= _rules(
        f"podAffinity.{_term}.",
        {
            "labelSelector.** topologyKey": _KEPT,
            "namespaces namespaceSelector.** matchLabelKeys mismatchLabelKeys": _PLACEMENT,
        },
    )
_CONTAINERS = {
    "args command image imagePullPolicy lifecycle.** livenessProbe.** name ports[].** "
    "readinessProbe.** resizePolicy[].** resources.limits resources.requests restartPolicy "
    "restartPolicyRules[].** securityContext.** startupProbe.** stdin stdinOnce "
    "targetContainerName terminationMessagePath terminationMessagePolicy tty "
    "volumeDevices[].** workingDir": _KEPT,
    "volumeMounts[].**": Rule(
        "translated", "without mounts of tokens that stay at home", module="service_accounts"
    ),
    "resources.claims[].**": _DEVICES,
    "env[].name env[].value env[].valueFrom.resourceFieldRef.** "
    "env[].valueFrom.fileKeyRef.** envFrom[].prefix": _KEPT,
    "env[].valueFrom.fieldRef.**": Rule(
        "translated", "keeps home's identity", module="downward_api"
    ),
    "env[].valueFrom.configMapKeyRef.** env[].valueFrom.secretKeyRef.** "
    "envFrom[].configMapRef.** envFrom[].secretRef.**": _REFERENCE,
}
_VOLUMES = {
    "name emptyDir.** image.**": _KEPT,
    "hostPath.**": _NODE_LEVEL,
    "configMap.** secret.**": _REFERENCE,
    "downwardAPI.** projected.sources[].downwardAPI.**": Rule(
        "translated", "keeps home's identity, labels and annotations", module="downward_api"
    ),
    "projected.sources[].configMap.** projected.sources[].secret.**": _REFERENCE,
    "projected.defaultMode projected.defaultUser": _KEPT,
    "projected.sources[].serviceAccountToken.**": Rule(
        "translated",
        "read from a Secret, kept or dropped, depending on --service-accounts",
        module="service_accounts",
    ),
    "projected.sources[].clusterTrustBundle.** projected.sources[].podCertificate.**": Rule(
        "dropped", "home's signers do not run in the remote, and the remote's are not trusted"
    ),
    "persistentVolumeClaim.** ephemeral.**": Rule(
        "kept",
        "the remote's PersistentVolumeClaim for that of home, or without --storage provision the "
        "remote's of the same name",
    ),
    # Volumes of drivers on the remote's nodes, or of external servers.
    "awsElasticBlockStore.** azureDisk.** fc.** flocker.** gcePersistentDisk.** gitRepo.** "
    "glusterfs.** nfs.** photonPersistentDisk.** portworxVolume.** quobyte.** "
    "vsphereVolume.**": _NODE_LEVEL,
    # The same, with a reference to a Secret.
    "azureFile.** cephfs.** cinder.** csi.** flexVolume.** iscsi.** rbd.** scaleIO.** "
    "storageos.**": _REFERENCE,
}

TABLE: dict[str, Rule] = {
    **_rules("", {"apiVersion kind": _KEPT}),
    **_rules("metadata.", _METADATA),
    **_rules("spec.", _SPEC),
    **_rules("spec.topologySpreadConstraints[].", _SPREAD),
    **_rules("spec.affinity.", _AFFINITY),
    **_rules("spec.containers[].", _CONTAINERS),
    **_rules("spec.volumes[].", _VOLUMES),
    "status.**": Rule("dropped", "the status comes from the remote", silent=True),
}

_CONTAINER_KINDS = ("containers", "initContainers", "ephemeralContainers")
_OTHER_CONTAINERS = re.compile(r"^spec\.(init|ephemeral)Containers\[\]")


def table_path(path: str) -> str:
    """The path of the field in `TABLE`."""
    path = _OTHER_CONTAINERS.sub("spec.containers[]", path)
    return path.replace("spec.affinity.podAntiAffinity.", "spec.affinity.podAffinity.")


def rule_for(path: str) -> Rule | None:
    """The rule for a field such as ``spec.volumes[].hostPath.path``; None if there is none."""
    path = table_path(path)
    if path in TABLE:
        return TABLE[path]
    while path and f"{path}.**" not in TABLE:
        path, _, _ = path.rpartition(".")
    return TABLE.get(f"{path}.**")


def _with_decision(decision: Decision) -> Iterator[tuple[str, Rule]]:
    """The paths below ``spec`` with this decision, one per container kind."""
    for path, rule in TABLE.items():
        if rule.decision != decision or not path.startswith("spec."):
            continue
        top = path.removesuffix(".**").removesuffix("[]")
        if top.startswith("spec.containers[]."):
            for kind in _CONTAINER_KINDS:
                yield top.replace("containers[]", f"{kind}[]", 1), rule
        else:
            yield top, rule


_DROPPED = dict(_with_decision("dropped"))
_DROPPED_WITH_EVENT = FieldPaths(*(path for path, rule in _DROPPED.items() if not rule.silent))
_DROPPED_PATHS = FieldPaths(*_DROPPED)
_REJECTED = dict(_with_decision("rejected"))
_REJECTED_PATHS = FieldPaths(*_REJECTED)


def drop_fields(pod: Object) -> tuple[Object, list[FieldMessage]]:
    """The pod without the dropped fields, and those that its owner has to know about."""
    messages = [
        FieldMessage(at, _DROPPED[path].reason)
        for path, at, value in find_fields(pod, _DROPPED_WITH_EVENT)
        if value not in _DROPPED[path].admission_defaults
    ]
    return remove_fields(pod, _DROPPED_PATHS), messages


def rejected_fields(pod: Object) -> list[FieldMessage]:
    """The fields for which the pod cannot run in the remote, each with what to do about it."""
    return [
        FieldMessage(at, _REJECTED[path].reason)
        for path, at, _ in find_fields(pod, _REJECTED_PATHS)
    ]
