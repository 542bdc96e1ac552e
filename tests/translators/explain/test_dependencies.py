"""The dependencies of a pod, and whether they are required."""

from __future__ import annotations

from tests.translators.golden import homes
from translators.explain.dependencies import Dependency, dependencies_of
from translators.object_accessors import Object
from translators.pods.references import references


def test_optional_dependencies_and_keys() -> None:
    pod: Object = {
        "spec": {
            "serviceAccountName": "robot",
            "priorityClassName": "high",
            "runtimeClassName": "gvisor",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [
                {
                    "name": "main",
                    "envFrom": [{"configMapRef": {"name": "a", "optional": True}}],
                    "env": [
                        {"valueFrom": {"configMapKeyRef": {"name": "b", "key": "one"}}},
                        {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                        {
                            "valueFrom": {
                                "secretKeyRef": {"name": "s", "key": "l", "optional": True}
                            }
                        },
                    ],
                }
            ],
            "volumes": [
                {"name": "1", "configMap": {"name": "b", "items": [{"key": "two"}]}},
                {"name": "2", "secret": {"secretName": "t", "optional": True}},
                {"name": "3", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
                {"name": "4", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "5", "csi": {"nodePublishSecretRef": {"name": "driver"}}},
            ],
        }
    }
    assert dependencies_of(pod) == [
        Dependency("ConfigMap", "a", required=False),
        Dependency("ConfigMap", "b", keys=frozenset({"one", "two"})),
        Dependency("ConfigMap", "c"),
        Dependency("Secret", "driver"),
        Dependency("Secret", "pull", required=False),
        Dependency("Secret", "s", keys=frozenset({"k"})),
        Dependency("Secret", "t", required=False),
        Dependency("ServiceAccount", "robot"),
        Dependency("PersistentVolumeClaim", "data"),
        Dependency("PriorityClass", "high", required=False),
        Dependency("RuntimeClass", "gvisor"),
    ]


def test_all_copied_objects_are_dependencies() -> None:
    for pod in homes("pod"):
        named = {
            (it.kind, it.name) for it in dependencies_of(pod) if it.kind in ("ConfigMap", "Secret")
        }
        assert named == {(it.kind, it.name) for it in references(pod)}
