"""Changes by users of the remote, who delete and edit managed objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from e2e.audit.findings import HOME_NAME, LABEL_HOME, LABEL_NODE
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault
from e2e.kubectl import Json, get

#: Resources that the bridge creates in the remote, beside pods and namespaces.
_COPIES = "configmaps,secrets,services,endpointslices"


@contextmanager
def _pods_deleted(stage: Stage) -> Iterator[None]:
    names = _half(stage, _removable_pods(stage.bridged.remote_pods()))
    how = stage.random.choice((["--grace-period=0", "--force"], ["--grace-period=1"], []))
    _in_remote(stage, "delete", "pod", *names, "--wait=false", *how)
    yield


@contextmanager
def _copies_deleted(stage: Stage) -> Iterator[None]:
    for kind in _COPIES.split(","):
        names = _half(stage, _managed(stage, kind))
        if names:
            _in_remote(stage, "delete", kind, *names, "--wait=false")
    yield


@contextmanager
def _copies_edited(stage: Stage) -> Iterator[None]:
    patch = json.dumps({"data": {"KEY": None, "by-hand": "Z3VpbHR5"}})
    for kind in ("configmap", "secret"):
        for name in _managed(stage, kind):
            if "KEY" in (get_from_remote(stage, kind, name).get("data") or {}):
                _in_remote(stage, "patch", kind, name, "--type=merge", "--patch", patch)
    for name in _managed(stage, "service"):
        port = json.dumps([{"op": "replace", "path": "/spec/ports/0/port", "value": 4711}])
        _in_remote(stage, "patch", "service", name, "--type=json", "--patch", port)
    yield


@contextmanager
def _pods_edited(stage: Stage) -> Iterator[None]:
    for name in _removable_pods(stage.bridged.remote_pods()):
        _in_remote(stage, "label", "pod", name, "app=by-hand", "by-hand=yes", "--overwrite")
        _in_remote(stage, "annotate", "pod", name, "by-hand=yes", "--overwrite")
    yield


@contextmanager
def _labels_taken(stage: Stage) -> Iterator[None]:
    """Without its labels an object is unmanaged. Afterwards the user restores the labels, or
    deletes the object."""
    restore = stage.random.random() < 0.5
    taken = [
        ("pod", name) for name in _half(stage, _removable_pods(stage.bridged.remote_pods()))[:3]
    ]
    taken += [("configmap", name) for name in _half(stage, _managed(stage, "configmap"))[:2]]
    labels = {}
    for kind, name in taken:
        labels[kind, name] = get_from_remote(stage, kind, name)["metadata"].get("labels") or {}
        _in_remote(stage, "label", kind, name, f"{LABEL_NODE}-", f"{LABEL_HOME}-")
    yield
    for (kind, name), before in labels.items():
        if restore:
            values = [f"{key}={before[key]}" for key in (LABEL_NODE, LABEL_HOME) if key in before]
            _in_remote(stage, "label", kind, name, *values, "--overwrite")
        else:
            _in_remote(stage, "delete", kind, name, "--wait=false")


def _removable_pods(pods: Sequence[Json]) -> list[str]:
    """The names of managed pods, except the untouched ones."""
    return [
        pod["metadata"]["name"]
        for pod in pods
        if LABEL_NODE in (pod["metadata"].get("labels") or {})
        and not pod["metadata"]["name"].startswith("witness-")
    ]


def _managed(stage: Stage, kind: str) -> list[str]:
    selector = f"{LABEL_NODE}={stage.bridged.node}"
    found = get(stage.remote, kind, namespace=stage.bridged.remote_namespace, selector=selector)
    # The remote's own controller copies a Service's labels to its EndpointSlices.
    return [
        obj["metadata"]["name"]
        for obj in found
        if kind != "endpointslices" or HOME_NAME in (obj["metadata"].get("annotations") or {})
    ]


def _half(stage: Stage, names: list[str]) -> list[str]:
    return stage.random.sample(names, k=(len(names) + 1) // 2)


def get_from_remote(stage: Stage, kind: str, name: str) -> Json:
    """An object in the bridge's remote namespace; without content if it no longer exists."""
    args = ("get", kind, name, "-n", stage.bridged.remote_namespace, "-o", "json")
    found = stage.remote.kubectl(*args, check=False)
    made: Json = json.loads(found.stdout) if found.returncode == 0 else {"metadata": {}}
    return made


def _in_remote(stage: Stage, *args: str) -> None:
    """Runs kubectl in the bridge's remote namespace; absent objects are no error."""
    stage.load.note(f"by hand: {' '.join(args)}")
    stage.remote.kubectl("-n", stage.bridged.remote_namespace, *args, check=False)


_LEFT_ALONE = "the bridge repairs it"

FAULTS = (
    Fault(
        "by hand: pods deleted",
        "half of the remote's pods are deleted, by force or gracefully",
        _LEFT_ALONE,
        _pods_deleted,
        trials=2,
        short=True,
    ),
    Fault(
        "by hand: copies deleted",
        "half of the ConfigMaps, Secrets, Services and endpoints are deleted",
        _LEFT_ALONE,
        _copies_deleted,
        trials=2,
        short=True,
    ),
    Fault(
        "by hand: copies edited",
        "every ConfigMap, Secret and Service has other content",
        _LEFT_ALONE,
        _copies_edited,
        trials=2,
    ),
    Fault(
        "by hand: pods edited",
        "every remote pod has other labels and annotations",
        _LEFT_ALONE,
        _pods_edited,
    ),
    Fault(
        "by hand: labels taken away",
        "some pods and ConfigMaps lose the labels of their owner",
        "the user restores the labels, or deletes the objects",
        _labels_taken,
        trials=2,
    ),
)
