"""Defaults, and the fields that default admission plugins add. Objects are changed in place.

Clients that compare desired with stored objects meet these fields in every cluster.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import Any

from sync.kube.api_resources import Object

_TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"


def fill(obj: Object) -> None:
    """Adds the defaults of the kind."""
    if filler := _FILLERS.get(obj["kind"]):
        filler(obj)


def admit(obj: Object) -> None:
    """Adds what admission plugins add on creation."""
    if plugin := _ADMISSION.get(obj["kind"]):
        plugin(obj)


def refill(old: Object, new: Object) -> None:
    """Adds defaults to the replacement of ``old``, and keeps allocated values."""
    if old["kind"] == "Service":
        for field in ("clusterIP", "clusterIPs"):
            if not new["spec"].get(field) and field in old["spec"]:
                new["spec"][field] = old["spec"][field]
    if old["kind"] == "Pod":
        for field in ("priority", "preemptionPolicy", "serviceAccountName", "serviceAccount"):
            if field in old["spec"]:
                new["spec"].setdefault(field, old["spec"][field])
    fill(new)


def _namespace(obj: Object) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"][
        "name"
    ]
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    for key, text in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _admit_node(obj: Object) -> None:
    taints = obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(taint["key"] == "node.kubernetes.io/not-ready" for taint in taints):
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _absent(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    if spec["type"] != "ExternalName":
        octets = secrets.token_bytes(2)
        spec.setdefault("clusterIP", f"10.96.{octets[0]}.{octets[1] or 1}")
        _absent(spec, clusterIPs=[spec["clusterIP"]])
        _absent(spec, ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    for port in spec.get("ports") or []:
        _absent(port, protocol="TCP", targetPort=port["port"])
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _slice(obj: Object) -> None:
    for port in obj.get("ports") or []:
        _absent(port, name="", protocol="TCP")


def _pod(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _absent(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
        enableServiceLinks=True,
    )
    for volume in spec.get("volumes") or []:
        _volume(volume)
    for container in (spec.get("initContainers") or []) + (spec.get("containers") or []):
        fill_container(container)


def _admit_pod(obj: Object) -> None:
    spec = obj["spec"]
    account = spec.get("serviceAccountName") or "default"
    _absent(spec, serviceAccountName=account, serviceAccount=account)
    _absent(spec, priority=0, preemptionPolicy="PreemptLowerPriority")
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("key", key) == key for t in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
    if spec.get("automountServiceAccountToken") is not False:
        _mount_token(spec)
    status = obj.setdefault("status", {})
    _absent(status, phase="Pending", qosClass=_qos(spec))
    if spec.get("schedulingGates"):
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        _absent(status, conditions=[gated])


def fill_container(container: Object) -> None:
    """Adds the defaults of a container, also of an ephemeral one."""
    image = container.get("image", "").rpartition("/")[2]
    latest = image.endswith(":latest") or (":" not in image and "@" not in image)
    _absent(
        container,
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if latest else "IfNotPresent",
        resources={},
    )
    resources = container["resources"]
    for name, limit in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, limit)
    for port in container.get("ports") or []:
        _absent(port, protocol="TCP")
    for env in container.get("env") or []:
        if reference := (env.get("valueFrom") or {}).get("fieldRef"):
            _absent(reference, apiVersion="v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := container.get(name):
            _absent(
                probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3
            )
            if http := probe.get("httpGet"):
                _absent(http, path="/", scheme="HTTP")


def _volume(volume: Object) -> None:
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        if source in volume:
            _absent(volume[source], defaultMode=0o644)
    if "hostPath" in volume:
        _absent(volume["hostPath"], type="")


def _mount_token(spec: Object) -> None:
    """As the ServiceAccount admission plugin: a projected token, mounted into each container."""
    containers = (spec.get("initContainers") or []) + (spec.get("containers") or [])
    without = [
        container
        for container in containers
        if all(mount["mountPath"] != _TOKENS for mount in container.get("volumeMounts") or [])
    ]
    if not without:
        return
    name = f"kube-api-access-{secrets.token_hex(3)[:5]}"
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    spec.setdefault("volumes", []).append(
        {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}
    )
    for container in without:
        mount = {"name": name, "readOnly": True, "mountPath": _TOKENS}
        container.setdefault("volumeMounts", []).append(mount)


def _qos(spec: Object) -> str:
    named = [c["resources"] for c in (spec.get("containers") or []) if c["resources"]]
    if not named:
        return "BestEffort"
    complete = len(named) == len(spec["containers"]) and all(
        resources.get("limits") == resources.get("requests")
        and {"cpu", "memory"} <= set(resources.get("limits") or {})
        for resources in named
    )
    return "Guaranteed" if complete else "Burstable"


def _absent(target: Object, **values: Any) -> None:
    for key, value in values.items():
        target.setdefault(key, value)


_FILLERS: dict[str, Callable[[Object], None]] = {
    "Namespace": _namespace,
    "Secret": _secret,
    "Service": _service,
    "EndpointSlice": _slice,
    "Pod": _pod,
}
_ADMISSION: dict[str, Callable[[Object], None]] = {"Node": _admit_node, "Pod": _admit_pod}
