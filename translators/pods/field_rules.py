"""What becomes of each field of a pod in the remote: the one table that decides it.

`TABLE` maps paths of the v1 API to rules. In a path ``[]`` is any item of a list, and a last part
``**`` is everything below. Init and ephemeral containers are decided as ``spec.containers[]``
is, both kinds of pod affinity as ``podAffinity``.

- *carried*: as it is. So is every field that no rule names: fields of the future work at once.
- *translated*: carried under the name or with the value that it has in the remote, by the module
  that ``why`` names.
- *dropped*: not in the remote pod. ``why`` is for the pod's owner, who gets an Event of it, unless
  the rule is *quiet*: then home has done already what the field says, or home set it by itself.
- *refused*: the pod does not run in the remote; ``why`` says what to do.

`pod.to_remote` takes out what is dropped, and `refused` finds what is refused, by this table. Tests
hold every field of the API against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from translators.fieldpaths import FieldMessage, FieldPaths, find_fields, remove_fields
from translators.objects import Object

Decision = Literal["carried", "translated", "dropped", "refused"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of a field, and why."""

    decision: Decision
    reason: str
    silent: bool = False
    """Whether the owner is not told that it is dropped."""
    admission_defaults: tuple[Any, ...] = ()
    """Values that home's admission writes where the owner says nothing: not told either."""


def _all(paths: str, rule: Rule, *, under: str = "") -> dict[str, Rule]:
    return {under + path: rule for path in paths.split()}


_AS_IT_IS = Rule("carried", "means the same in the remote")
_MACHINES = Rule("carried", "speaks of the machine, which is one of the remote's")
_HOMES = Rule("dropped", "belongs to home's object alone", silent=True)
_OBEYED = Rule("dropped", "home's admission and scheduler have done what it says", silent=True)
_PLACED = Rule("translated", "placement: what means something among the remote's nodes and pods")
_COPIED = Rule("translated", "references: the object that it names is copied first")
_ACCOUNT = Rule("dropped", "serviceaccount: the identity is given by the bridge", silent=True)
_HOST = "the remote's machines are not home's: remove it, or keep the pod off this node"

_METADATA: dict[str, Rule] = {
    **_all("name", _AS_IT_IS, under="metadata."),
    **_all(
        "namespace labels annotations",
        Rule("translated", "naming: the remote's namespace, with ownership"),
        under="metadata.",
    ),
    **_all(
        "creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName "
        "generation managedFields[].** ownerReferences[].** resourceVersion selfLink uid",
        _HOMES,
        under="metadata.",
    ),
}

_SPEC: dict[str, Rule] = {
    **_all(
        "activeDeadlineSeconds dnsConfig.** dnsPolicy enableServiceLinks hostAliases[].** "
        "hostUsers hostname hostnameOverride os.** resources.limits resources.requests "
        "restartPolicy securityContext.** setHostnameAsFQDN shareProcessNamespace subdomain "
        "terminationGracePeriodSeconds",
        _AS_IT_IS,
        under="spec.",
    ),
    **_all(
        "runtimeClassName",
        Rule("carried", "names a class of the remote, which refuses the pod where it has none"),
        under="spec.",
    ),
    **_all(
        "overhead",
        Rule("dropped", "the remote's runtime class sets its own", silent=True),
        under="spec.",
    ),
    **_all("imagePullSecrets[].name", _COPIED, under="spec."),
    **_all(
        "automountServiceAccountToken",
        Rule("translated", "serviceaccount: mounted in the remote only of its own accounts"),
        under="spec.",
    ),
    **_all("serviceAccount serviceAccountName", _ACCOUNT, under="spec."),
    **_all("nodeName preemptionPolicy priority schedulingGates[].**", _OBEYED, under="spec."),
    **_all(
        "readinessGates[].**",
        Rule("dropped", "podstatus: home's status counts its gates", silent=True),
        under="spec.",
    ),
    **_all(
        "schedulerName",
        Rule(
            "dropped",
            "names a scheduler of home's; the remote's default one places the pod there",
            admission_defaults=("default-scheduler",),
        ),
        under="spec.",
    ),
    **_all(
        "priorityClassName",
        Rule("translated", "pod: carried where the remote has a class of that name"),
        under="spec.",
    ),
    **_all(
        "schedulingGroup.** workloadRef.**",
        Rule("dropped", "names a group of pods of home's, which the remote does not know"),
        under="spec.",
    ),
    **_all(
        "evictionResponders[].**",
        Rule("dropped", "names responders of home's, which do not answer in the remote"),
        under="spec.",
    ),
    **_all("nodeSelector tolerations[].**", _PLACED, under="spec."),
    **_all(
        "resourceClaims[].** resources.claims[].**",
        Rule(
            "refused",
            "its devices are allocated on home's nodes: ask for them as resources with limits "
            "(example.com/gpu), or keep the pod off this node",
        ),
        under="spec.",
    ),
    **_all("hostNetwork hostPID hostIPC", Rule("refused", _HOST), under="spec."),
}

_SPREAD: dict[str, Rule] = {
    **_all(
        "labelSelector.** maxSkew minDomains nodeAffinityPolicy nodeTaintsPolicy topologyKey "
        "whenUnsatisfiable",
        Rule("carried", "holds among the remote's nodes"),
        under="spec.topologySpreadConstraints[].",
    ),
    **_all("matchLabelKeys", _PLACED, under="spec.topologySpreadConstraints[]."),
}

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITY: dict[str, Rule] = {
    **_all("nodeAffinity.**", _PLACED, under="spec.affinity."),
    **_all(f"{_PREFERRED}[].weight", _AS_IT_IS, under="spec.affinity.podAffinity."),
}
for _term in (f"{_REQUIRED}[].", f"{_PREFERRED}[].podAffinityTerm."):
    _under = f"spec.affinity.podAffinity.{_term}"
    _AFFINITY |= _all("labelSelector.** topologyKey", _AS_IT_IS, under=_under)
    _AFFINITY |= _all(
        "namespaces namespaceSelector.** matchLabelKeys mismatchLabelKeys", _PLACED, under=_under
    )

_CONTAINERS: dict[str, Rule] = {
    **_all(
        "args command image imagePullPolicy lifecycle.** livenessProbe.** name ports[].** "
        "readinessProbe.** resizePolicy[].** resources.limits resources.requests restartPolicy "
        "restartPolicyRules[].** securityContext.** startupProbe.** stdin stdinOnce "
        "targetContainerName terminationMessagePath terminationMessagePolicy tty "
        "volumeDevices[].** workingDir",
        _AS_IT_IS,
        under="spec.containers[].",
    ),
    **_all(
        "volumeMounts[].**",
        Rule("translated", "serviceaccount: less mounts of tokens that stay at home"),
        under="spec.containers[].",
    ),
    **_all("resources.claims[].**", _SPEC["spec.resourceClaims[].**"], under="spec.containers[]."),
    **_all(
        "env[].name env[].value env[].valueFrom.resourceFieldRef.** "
        "env[].valueFrom.fileKeyRef.** envFrom[].prefix",
        _AS_IT_IS,
        under="spec.containers[].",
    ),
    **_all(
        "env[].valueFrom.fieldRef.**",
        Rule("translated", "downward: identity stays home's"),
        under="spec.containers[].",
    ),
    **_all(
        "env[].valueFrom.configMapKeyRef.** env[].valueFrom.secretKeyRef.** "
        "envFrom[].configMapRef.** envFrom[].secretRef.**",
        _COPIED,
        under="spec.containers[].",
    ),
}

_VOLUMES: dict[str, Rule] = {
    **_all("name emptyDir.** image.**", _AS_IT_IS, under="spec.volumes[]."),
    **_all("hostPath.**", _MACHINES, under="spec.volumes[]."),
    **_all("configMap.** secret.**", _COPIED, under="spec.volumes[]."),
    **_all(
        "downwardAPI.** projected.sources[].downwardAPI.**",
        Rule("translated", "downward: identity, labels and annotations stay home's"),
        under="spec.volumes[].",
    ),
    **_all(
        "projected.sources[].configMap.** projected.sources[].secret.**",
        _COPIED,
        under="spec.volumes[].",
    ),
    **_all("projected.defaultMode projected.defaultUser", _AS_IT_IS, under="spec.volumes[]."),
    **_all(
        "projected.sources[].serviceAccountToken.**",
        Rule("translated", "serviceaccount: read from a Secret, carried or dropped, by the mode"),
        under="spec.volumes[].",
    ),
    **_all(
        "projected.sources[].clusterTrustBundle.** projected.sources[].podCertificate.**",
        Rule("dropped", "home's signers do not answer in the remote, whose own are not trusted"),
        under="spec.volumes[].",
    ),
    **_all(
        "persistentVolumeClaim.** ephemeral.**",
        Rule("carried", "claims are the remote's: its namespace and storage classes"),
        under="spec.volumes[].",
    ),
    # Volumes whose driver is on the remote's nodes, or whose server is somewhere else.
    **_all(
        "awsElasticBlockStore.** azureDisk.** fc.** flocker.** gcePersistentDisk.** gitRepo.** "
        "glusterfs.** nfs.** photonPersistentDisk.** portworxVolume.** quobyte.** vsphereVolume.**",
        _MACHINES,
        under="spec.volumes[].",
    ),
    # As these, with a Secret that may be named beside what the driver needs.
    **_all(
        "azureFile.** cephfs.** cinder.** csi.** flexVolume.** iscsi.** rbd.** scaleIO.** "
        "storageos.**",
        _COPIED,
        under="spec.volumes[].",
    ),
}

TABLE: dict[str, Rule] = {
    **_all("apiVersion kind", _AS_IT_IS),
    **_METADATA,
    **_SPEC,
    **_SPREAD,
    **_AFFINITY,
    **_CONTAINERS,
    **_VOLUMES,
    **_all("status.**", Rule("dropped", "podstatus: it comes from the remote", silent=True)),
}

_KINDS = ("containers", "initContainers", "ephemeralContainers")
_OTHER_CONTAINERS = re.compile(r"^spec\.(init|ephemeral)Containers\[\]")


def table_path(path: str) -> str:
    """The path by which the table decides the field."""
    path = _OTHER_CONTAINERS.sub("spec.containers[]", path)
    return path.replace("spec.affinity.podAntiAffinity.", "spec.affinity.podAffinity.")


def rule_for(path: str) -> Rule | None:
    """The rule for a field, such as ``spec.volumes[].hostPath.path``; None where there is none."""
    path = table_path(path)
    if path in TABLE:
        return TABLE[path]
    while path and f"{path}.**" not in TABLE:
        path, _, _ = path.rpartition(".")
    return TABLE.get(f"{path}.**")


def _with_decision(decision: Decision) -> Iterator[tuple[str, Rule]]:
    """The paths under ``spec`` where an object is to be looked at, one for each subtree."""
    for path, rule in TABLE.items():
        if rule.decision != decision or not path.startswith("spec."):
            continue
        top = path.removesuffix(".**").removesuffix("[]")
        if top.startswith("spec.containers[]."):
            for kind in _KINDS:
                yield top.replace("containers[]", f"{kind}[]", 1), rule
        else:
            yield top, rule


_DROPPED = dict(_with_decision("dropped"))
_TOLD = FieldPaths(*(path for path, rule in _DROPPED.items() if not rule.silent))
_GONE = FieldPaths(*_DROPPED)
_REFUSED = dict(_with_decision("refused"))
_REFUSING = FieldPaths(*_REFUSED)


def drop_fields(pod: Object) -> tuple[Object, list[FieldMessage]]:
    """The pod without what the table drops, and what of it its owner should know."""
    told = [
        FieldMessage(at, _DROPPED[path].reason)
        for path, at, value in find_fields(pod, _TOLD)
        if value not in _DROPPED[path].admission_defaults
    ]
    return remove_fields(pod, _GONE), told


def rejected_fields(pod: Object) -> list[FieldMessage]:
    """The fields for which the pod cannot run in the remote, each with what to do about it."""
    return [FieldMessage(at, _REFUSED[path].reason) for path, at, _ in find_fields(pod, _REFUSING)]
