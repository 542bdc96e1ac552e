"""References to ConfigMaps and Secrets in all fields of a pod."""

from __future__ import annotations

import copy

import pytest

from translators.object_accessors import Object
from translators.pods.references import REFERENCE_FIELDS, Reference, all_containers, references


def _container(name: str) -> Object:
    """A container with a distinct reference in each field."""
    return {
        "name": name,
        "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": f"{name}-env", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": f"{name}-env", "key": "k"}}},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "D", "value": "plain"},
        ],
        "envFrom": [
            {"configMapRef": {"name": f"{name}-from"}},
            {"secretRef": {"name": f"{name}-from", "optional": True}},
        ],
    }


_KINDS = ("main", "init", "ephemeral")
_PLACES: dict[str, Object] = {
    "azure-file": {"azureFile": {"secretName": "azure-file", "shareName": "s"}},
    "ceph-fs": {"cephfs": {"secretRef": {"name": "ceph-fs"}}},
    "cinder": {"cinder": {"secretRef": {"name": "cinder"}}},
    "csi": {"csi": {"nodePublishSecretRef": {"name": "csi"}}},
    "flex": {"flexVolume": {"secretRef": {"name": "flex"}}},
    "iscsi": {"iscsi": {"secretRef": {"name": "iscsi"}}},
    "projected": {"projected": {"sources": [{"secret": {"name": "projected"}}]}},
    "rbd": {"rbd": {"secretRef": {"name": "rbd"}}},
    "scale-io": {"scaleIO": {"secretRef": {"name": "scale-io"}}},
    "secret": {"secret": {"secretName": "secret", "optional": True}},
    "storage-os": {"storageos": {"secretRef": {"name": "storage-os"}}},
}
_MAPS: dict[str, Object] = {
    "map": {"configMap": {"name": "map"}},
    "projected": {
        "projected": {
            "sources": [
                {"configMap": {"name": "projected"}},
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"downwardAPI": {}},
                {"serviceAccountToken": {"path": "token"}},
            ]
        }
    },
}


def test_references_in_all_fields_are_found() -> None:
    volumes = [{"name": "v", **source} for source in (*_PLACES.values(), *_MAPS.values())]
    spec: Object = {
        "containers": [_container("main")],
        "initContainers": [_container("init")],
        "ephemeralContainers": [_container("ephemeral")],
        "volumes": [*volumes, {"name": "v", "persistentVolumeClaim": {"claimName": "no"}}],
        "imagePullSecrets": [{"name": "pull"}, {}],
    }
    before = copy.deepcopy(spec)
    env = {f"{kind}-{place}" for kind in _KINDS for place in ("env", "from")}

    assert references({"spec": spec}) == {
        *(Reference("ConfigMap", name) for name in env | set(_MAPS)),
        *(Reference("Secret", name) for name in env | set(_PLACES) | {"pull"}),
    }
    assert spec == before


@pytest.mark.parametrize(("name", "source"), _PLACES.items(), ids=_PLACES.keys())
def test_secret_of_a_volume_is_found(name: str, source: Object) -> None:
    assert references({"spec": {"volumes": [{"name": "v", **source}]}}) == {
        Reference("Secret", name)
    }


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"spec": {"containers": None}},
        {"spec": {"volumes": [{"name": "v", "iscsi": {"secretRef": None}}]}},
        {"spec": {"volumes": [{"name": "v", "csi": {"driver": "d"}}]}},
        {"spec": {"imagePullSecrets": [{"name": ""}]}},
    ],
    ids=["no spec", "no containers", "null", "a driver without a secret", "an empty name"],
)
def test_pod_without_references(pod: Object) -> None:
    assert references(pod) == frozenset()


def test_repeated_reference_is_listed_once() -> None:
    volumes = [{"name": name, "configMap": {"name": "same"}} for name in "ab"]

    assert references({"spec": {"volumes": volumes}}) == {Reference("ConfigMap", "same")}


def test_all_container_kinds_are_listed() -> None:
    kinds = ("initContainers", "containers", "ephemeralContainers")
    spec = {kind: [{"name": kind}] for kind in kinds}

    assert [container["name"] for container in all_containers(spec)] == list(kinds)


def test_reference_fields_are_complete() -> None:
    """If none of these fields changes, references are not read again."""
    read: set[str] = set()

    class Noted(dict[str, object]):
        def get(self, key: str, default: object = None) -> object:
            read.add(f"spec.{key}")
            return super().get(key, default)

    references({"spec": Noted(nodeName="n")})
    assert read == set(REFERENCE_FIELDS)
