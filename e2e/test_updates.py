"""Changes of a running pod are applied in the remote, and its status returns."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from e2e.clusters.cluster import Cluster
from e2e.clusters.errors import CommandFailed
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.workload_manifests import BUSYBOX, config_map, pod, shell

#: The same program under another name.
OTHER_BUSYBOX = "docker.io/library/busybox:1.37"


@pytest.mark.core
def test_metadata_image_tolerations_and_deadline_are_updated(bridged: Bridged) -> None:
    """Mutable fields; a key with a domain is removed when home removes it."""
    labels = {"plain": "1", "example.com/mine": "1"}
    bridged.apply(pod(bridged.node, "changes", {"labels": labels}))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/changes", "--timeout=60s")
    bridged.remote.kubectl(
        *("-n", bridged.remote_namespace, "label", "pod", "changes", "example.com/theirs=1")
    )
    bridged.kubectl("label", "pod", "changes", "plain-", "example.com/mine-", "example.com/new=1")
    bridged.kubectl("annotate", "pod", "changes", "note=new")
    wait_for(
        lambda: _keys(bridged, "labels") == {"example.com/theirs", "example.com/new"},
        "labels follow, and the remote's own stays",
    )
    wait_for(
        lambda: _remote(bridged)["metadata"]["annotations"].get("note") == "new",
        "the annotation follows",
    )

    bridged.kubectl("set", "image", "pod/changes", f"main={OTHER_BUSYBOX}")
    wait_for(
        lambda: (
            (status := _home(bridged)["status"]["containerStatuses"][0])["restartCount"] == 1
            and status["image"] == OTHER_BUSYBOX
            and status["ready"]
        ),
        "the container restarts with the other image",
    )

    tolerations = _home(bridged)["spec"]["tolerations"]
    added = {"key": "example.com/t", "operator": "Exists", "effect": "NoExecute"}
    patch = {"spec": {"tolerations": [*tolerations, added], "activeDeadlineSeconds": 3}}
    bridged.kubectl("patch", "pod", "changes", "-p", json.dumps(patch))
    wait_for(lambda: added in _remote(bridged)["spec"]["tolerations"], "the toleration follows")
    wait_for(
        lambda: (
            (status := _home(bridged)["status"])["phase"] == "Failed"
            and status["reason"] == "DeadlineExceeded"
        ),
        "the deadline follows",
    )


@pytest.mark.core
def test_debug_container_has_logs_and_attach(bridged: Bridged, tmp_path: Path) -> None:
    """`kubectl debug`, with the objects that its container references."""
    bridged.apply(pod(bridged.node, "changes"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/changes", "--timeout=60s")
    bridged.apply(config_map("tools", {"GREETING": "hello"}))
    reference = {"fieldRef": {"fieldPath": "metadata.namespace"}}
    custom = {
        "envFrom": [{"configMapRef": {"name": "tools"}}],
        "env": [{"name": "NAMESPACE", "valueFrom": reference}],
    }
    file = tmp_path / "custom.json"
    file.write_text(json.dumps(custom))
    script = "echo $GREETING from $NAMESPACE; ps | grep -c '[s]leep 3600'; sleep 600"
    debug = ("debug", "changes", f"--image={BUSYBOX}")
    bridged.kubectl(
        *(*debug, "-c", "looks", "--target=main", f"--custom={file}", "--"), "sh", "-c", script
    )
    expected = ["hello", "from", bridged.namespace, "1"]
    wait_for(
        lambda: (
            bridged.home.kubectl(
                "-n", bridged.namespace, "logs", "changes", "-c", "looks", check=False
            ).stdout.split()
            == expected
        ),
        "its log is there",
    )
    # A kubelet serves logs up to a second before its next look at the runtime changes the status.
    wait_for(
        lambda: (
            [
                "running" in status["state"]
                for status in _home(bridged)["status"].get("ephemeralContainerStatuses", ())
            ]
            == [True]
        ),
        "its status is running",
    )
    assert get_one(bridged.remote, "configmap", "tools", namespace=bridged.remote_namespace)

    # A node may lose output after the end of the input, so the input does not end.
    answers = "while read line; do echo got $line; done"
    with subprocess.Popen(
        [
            *(bridged.home.kubectl_path, f"--kubeconfig={bridged.home.kubeconfig}"),
            *("-n", bridged.namespace, *debug, "-i", "-c", "talks", "--", "sh", "-c", answers),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as talk:
        assert talk.stdin
        assert talk.stdout
        talk.stdin.write("typed in\n")
        talk.stdin.flush()
        line = talk.stdout.readline()
        talk.kill()
    assert line == "got typed in\n"
    assert _home(bridged)["status"]["containerStatuses"][0]["restartCount"] == 0


#: The minor version of Kubernetes from which an API server rejects a resize that the node has no
#: room for. Before, the kubelet reports it in a condition; home's pod has that in either case.
REFUSES = 36


def _minor(cluster: Cluster) -> int:
    return int(cluster.kubernetes.split(".")[1])


def _is_refused(bridged: Bridged, name: str) -> bool:
    if (_condition(bridged, "PodResizePending") or {}).get("reason") != "Infeasible":
        return False
    if _minor(bridged.remote) < REFUSES:
        return True
    return any(it["involvedObject"]["name"] == name for it in bridged.events("UpdateRefused"))


@pytest.mark.core
def test_in_place_resize_is_applied_with_its_status(bridged: Bridged) -> None:
    """`kubectl patch --subresource resize`, and one that no node can satisfy."""
    resources = {"requests": {"cpu": "50m", "memory": "32Mi"}}
    side = shell("side", "sleep 3600", resources=resources, restartPolicy="Always")
    main = shell("main", "sleep 3600", resources=resources)
    bridged.apply(pod(bridged.node, "changes", initContainers=[side], containers=[main]))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/changes", "--timeout=60s")
    _resize(bridged, "containers", "main", {"cpu": "0.1", "memory": "48Mi"})
    wait_for(
        lambda: _given(bridged, "containerStatuses") == {"cpu": "100m", "memory": "48Mi"},
        "home shows the new resources",
    )
    _resize(bridged, "initContainers", "side", {"cpu": "70m"})
    wait_for(
        lambda: _given(bridged, "initContainerStatuses") == {"cpu": "70m", "memory": "32Mi"},
        "the sidecar's too",
    )
    assert _home(bridged)["status"]["containerStatuses"][0]["restartCount"] == 0

    if _minor(bridged.home) < REFUSES:
        _resize(bridged, "containers", "main", {"cpu": "4000"})
        wait_for(
            lambda: _is_refused(bridged, "changes"),
            "home reports that it is infeasible",
        )
    else:
        with pytest.raises(CommandFailed, match="allocatable"):
            _resize(bridged, "containers", "main", {"cpu": "4000"})
    _resize(bridged, "containers", "main", {"cpu": "60m"})
    wait_for(
        lambda: (
            not _condition(bridged, "PodResizePending")
            and _given(bridged, "containerStatuses") == {"cpu": "60m", "memory": "48Mi"}
        ),
        "and what can be is",
    )


def _resize(bridged: Bridged, kind: str, name: str, requests: Json) -> None:
    patch = {"spec": {kind: [{"name": name, "resources": {"requests": requests}}]}}
    bridged.kubectl("patch", "pod", "changes", "--subresource=resize", "-p", json.dumps(patch))


def _given(bridged: Bridged, statuses: str) -> Json | None:
    found = _home(bridged)["status"][statuses][0]
    requests: Json | None = (found.get("resources") or {}).get("requests")
    return requests if requests == found.get("allocatedResources") else None


def _condition(bridged: Bridged, kind: str) -> Json | None:
    conditions = _home(bridged)["status"]["conditions"]
    return next((it for it in conditions if it["type"] == kind), None)


def _keys(bridged: Bridged, field: str) -> set[str]:
    return {key for key in _remote(bridged)["metadata"][field] if "cluster-bridge.io" not in key}


def _home(bridged: Bridged) -> Json:
    return get_one(bridged.home, "pod", "changes", namespace=bridged.namespace)


def _remote(bridged: Bridged) -> Json:
    return get(bridged.remote, "pods", namespace=bridged.remote_namespace)[0]
