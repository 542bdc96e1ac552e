"""The objects that a transfer creates at home: the target claim and two transfer pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.volumes.volume_scripts import VOLUME, WAIT
from translators.derived_names import hashed_name
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.ownership_labels import DOMAIN, copied_labels
from translators.storage.identifiers import ANNOTATION_SELECTED_NODE
from translators.storage.remote_pvc import capacity, requested

#: On transfer pods: the UID of the source claim.
LABEL_TRANSFER = f"{DOMAIN}/volume-transfer"
CONTAINER = "transfer"
#: Capabilities by which tar reads each file, and restores owners, modes and devices; the Pod
#: Security level baseline permits them.
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD")


def target_claim(
    source: Object, name: str, storage_class: str, node: Object, annotations: Mapping[str, str]
) -> Object:
    """The claim that receives the data: as the source, as large as its volume, on the node."""
    spec: Object = source.get("spec") or {}
    kept = {key: spec[key] for key in ("accessModes", "volumeMode") if key in spec}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": namespace_of(source),
            "labels": copied_labels(source),
            "annotations": {
                # The provisioner need not wait for the scheduler, which does not see the pod.
                ANNOTATION_SELECTED_NODE: name_of(node),
                **annotations,
            },
        },
        "spec": {
            **kept,
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": capacity(source) or requested(source)}},
        },
    }


def transfer_pod(
    source: Object, claim: str, node: Object, image: str, *, reads_only: bool
) -> Object:
    """A pod with the claim at `VOLUME`; without ``reads_only``, for the target."""
    role = "source" if reads_only else "target"
    mount: Object = {"name": "volume", "mountPath": VOLUME}
    volume: Object = {"claimName": claim}
    if reads_only:
        mount["readOnly"] = True
    name = hashed_name(f"volume-{role}-{name_of(source)}", f"{uid_of(source)}/{role}")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace_of(source),
            "labels": {LABEL_TRANSFER: uid_of(source)},
        },
        "spec": {
            "nodeName": name_of(node),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": _tolerations(node),
            "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "volume", "persistentVolumeClaim": volume}],
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": ["sh", "-c", WAIT],
                    "volumeMounts": [mount],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"], "add": list(_CAPABILITIES)},
                    },
                }
            ],
        },
    }


def _tolerations(node: Object) -> list[Object]:
    """Tolerates the taints by which an administrator reserves the node."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return [
        {"key": it["key"], "operator": "Exists", "effect": it["effect"]}
        for it in taints
        if not str(it.get("key")).startswith("node.kubernetes.io/")
    ]


def is_transfer_pod(pod: Object) -> bool:
    return LABEL_TRANSFER in (metadata(pod).get("labels") or {})
