"""YAML manifests of the tests' workloads."""

from __future__ import annotations

import json
from typing import Any

from e2e.kubectl import Json

AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.56"
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"

_PLACED = """
      nodeSelector: {kubernetes.io/hostname: THE-NODE}
      tolerations: [{key: cluster-bridge.io/virtual-node, operator: Exists}]
      terminationGracePeriodSeconds: 2
"""

WEB = (
    """
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {GREETING: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: web}
stringData: {password: correct-horse}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:"""
    + _PLACED
    + """
      containers:
        - name: web
          image: registry.k8s.io/e2e-test-images/agnhost:2.56
          args: [netexec, --http-port=8080]
          envFrom: [{configMapRef: {name: web}}]
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
          volumeMounts:
            - {name: config, mountPath: /config}
            - {name: secret, mountPath: /secret}
            - {name: projected, mountPath: /projected}
            - {name: pod, mountPath: /pod}
          env:
            - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
      volumes:
        - {name: config, configMap: {name: web}}
        - {name: secret, secret: {secretName: web}}
        - name: projected
          projected:
            sources:
              - configMap: {name: web, items: [{key: GREETING, path: greeting}]}
              - secret: {name: web}
        - name: pod
          downwardAPI: {items: [{path: uid, fieldRef: {fieldPath: metadata.uid}}]}
"""
)


def web(node: str) -> str:
    """A Deployment with 3 replicas, ConfigMap, Secret and Service, on the virtual node."""
    return WEB.replace("THE-NODE", node)


def busybox(node: str, name: str, command: str, *, restart: str = "Always") -> str:
    """A pod that runs a shell command."""
    script = command.replace("'", "''")
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
  terminationGracePeriodSeconds: 2
  restartPolicy: {restart}
  containers:
    - name: main
      image: {BUSYBOX}
      command: [sh, -c, '{script}']
"""


def pod(node: str, name: str, meta: Json | None = None, **spec: Any) -> str:
    """A pod with the fields of ``spec``; without containers in it, a container that sleeps."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **(meta or {})},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
                "terminationGracePeriodSeconds": 1,
                "containers": [shell("main", "sleep 3600")],
                **spec,
            },
        }
    )


def shell(name: str, script: str, **fields: Any) -> Json:
    """A container that runs a script."""
    return {"name": name, "image": BUSYBOX, "command": ["sh", "-c", script], **fields}


def volume_claim(
    name: str,
    storage_class: str | None,
    size: str = "1Gi",
    mode: str = "ReadWriteOnce",
    **spec: Any,
) -> str:
    """A PersistentVolumeClaim; without a class it has the default one."""
    class_field = {} if storage_class is None else {"storageClassName": storage_class}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {
                "accessModes": [mode],
                "resources": {"requests": {"storage": size}},
                **class_field,
                **spec,
            },
        }
    )


def config_map(name: str, data: Json, **fields: Any) -> str:
    """A ConfigMap."""
    meta = {"name": name}
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data, **fields}
    )


def secret(name: str, data: Json, **fields: Any) -> str:
    """A Secret with plain text."""
    meta = {"name": name}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data, **fields}
    )


def workload(kind: str, name: str, namespace: str, replicas: int, pod_spec: Json) -> Json:
    """A Deployment or StatefulSet; its pods have the label ``app`` with its name."""
    labels = {"app": name}
    spec: Json = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod_spec},
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


def loss_tolerations(seconds: int) -> list[Json]:
    """The tolerations that evict a pod ``seconds`` after its node is lost."""
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    ]
