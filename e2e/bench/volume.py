"""`bridge volume copy` between two clusters, compared with `kubectl cp` to one in the same run.

In each round, in turn, kubectl copies a file of random bytes from this machine into a pod of the
remote, and the bridge copies a volume of the home cluster with such a file to a new volume of the
remote, and then once more to that volume. The rate of the bridge is that of the whole command, with
the start of its pods, the comparison of checksums, and for a new volume its provisioning in the
remote. All pods have the command's default image (`e2e.debian_image`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e import bridge_process
from e2e.bench import streams
from e2e.bench.report import Report
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster, Provisioner
from e2e.kubectl import wait_for
from e2e.storage_classes import local_path, served_class
from e2e.workload_manifests import pod, shell, volume_claim

NAMESPACE, CLASS, CLAIM, COPY, POD = "bench", "bench-volume", "source", "copy", "cp"
#: Seconds for one copy.
PATIENCE = 900.0
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Settings:
    """The parameters of a run."""

    rounds: int
    size: int
    """Bytes of the volume."""


def run(
    home: Cluster,
    remote: Cluster,
    settings: Settings,
    say: Callable[[str], None],
    log: Path,
    *,
    image: str,
) -> Report:
    """Joins, measures, and leaves; all pods use the image."""
    report = Report("volume", {"rounds": settings.rounds, "bytes": settings.size})
    taken: dict[str, list[float]] = {"kubectl_cp": [], "new_volume": [], "command": []}
    file = log.with_name("random")
    _write_random(file, settings.size)
    with _volume(home, remote, settings.size, log, image):
        for number in range(settings.rounds):
            taken["kubectl_cp"].append(_kubectl_cp(remote, file, settings.size))
            _apply(home, volume_claim(COPY, CLASS, f"{settings.size // 10**6 + 64}M"))
            taken["new_volume"].append(_bridge_copy(home, settings.size, "--to", streams.NODE))
            taken["command"].append(_bridge_copy(home, settings.size, "--overwrite"))
            _delete_copy(home, remote)
            latest = ", ".join(f"{name} {found[-1]:.1f} MB/s" for name, found in taken.items())
            say(f"volume, round {number + 1}: {latest}")
    for name, found in taken.items():
        report.add(f"{name}.rate", "MB/s", found)
    for name in ("new_volume", "command"):
        pairs = zip(taken[name], taken["kubectl_cp"], strict=True)
        report.add(f"{name}.of_kubectl_cp", "x", [ours / theirs for ours, theirs in pairs])
    return report


def _write_random(file: Path, size: int) -> None:
    with file.open("wb") as out:
        for begin in range(0, size, _CHUNK):
            out.write(os.urandom(min(_CHUNK, size - begin)))


def _kubectl_cp(remote: Cluster, file: Path, size: int) -> float:
    """MB/s of `kubectl cp` into a pod of the remote."""
    began = time.perf_counter()
    remote.kubectl("cp", "-n", NAMESPACE, str(file), f"{POD}:/data/file", timeout=PATIENCE)
    rate = size / (time.perf_counter() - began) / 1e6
    count = remote.kubectl("exec", "-n", NAMESPACE, POD, "--", "stat", "-c", "%s", "/data/file")
    if int(count.stdout) != size:
        raise RuntimeError(f"kubectl cp copied {count.stdout} of {size} bytes")
    remote.kubectl("exec", "-n", NAMESPACE, POD, "--", "rm", "/data/file")
    return rate


def _bridge_copy(home: Cluster, size: int, *options: str) -> float:
    """MB/s of `bridge volume copy`."""
    claims = (f"{NAMESPACE}/{CLAIM}", f"{NAMESPACE}/{COPY}")
    began = time.perf_counter()
    done = bridge_process.run("volume", "copy", *claims, *options, home=home, timeout=PATIENCE)
    rate = size / (time.perf_counter() - began) / 1e6
    if done.returncode:
        raise RuntimeError(f"bridge volume copy failed: {done.stderr}")
    return rate


def _delete_copy(home: Cluster, remote: Cluster) -> None:
    home.kubectl("delete", "pvc", "-n", NAMESPACE, COPY, timeout=120)
    # The bridge deletes the empty namespace; the next command would wait for its end.
    namespace = ("get", "namespace", streams.REMOTE_NAMESPACE)
    wait_for(
        lambda: remote.kubectl(*namespace, check=False).returncode != 0,
        "the remote's namespace is deleted",
        seconds=120,
    )


@contextmanager
def _volume(home: Cluster, remote: Cluster, size: int, log: Path, image: str) -> Iterator[Bridge]:
    """A joined node, a home volume with random bytes, and a pod of the remote for kubectl."""
    home.provision_volumes(Provisioner.LOCAL_PATH, print)
    with (
        streams.joined(home, remote, log) as bridge,
        local_path(home, default=True) as near,
        local_path(remote, default=True),
        served_class(home, CLASS),
    ):
        clusters = (home, remote)
        for cluster in clusters:
            cluster.kubectl("create", "namespace", NAMESPACE)
        try:
            _apply(home, volume_claim(CLAIM, near, f"{size // 10**6 + 64}M"))
            script = (
                f"head -c {size} /dev/urandom > /data/file && sync && touch /tmp/done; sleep 3600"
            )
            claim = {"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}
            _start(home, "writer", script, claim, image)
            probe = ("exec", "-n", NAMESPACE, "writer", "--", "ls", "/tmp/done")
            wait_for(
                lambda: home.kubectl(*probe, check=False).returncode == 0,
                "the volume is written",
                seconds=PATIENCE,
            )
            home.kubectl("delete", "pod", "-n", NAMESPACE, "writer", timeout=120)
            _start(remote, POD, "sleep 36000", {"name": "data", "emptyDir": {}}, image)
            yield bridge
        finally:
            for cluster in clusters:
                cluster.kubectl("delete", "namespace", NAMESPACE, timeout=120)
            claims = ("get", "pv", "-o", "jsonpath={.items[*].spec.claimRef.namespace}")
            wait_for(
                lambda: NAMESPACE not in home.kubectl(*claims).stdout.split(),
                "the volumes are deleted",
                seconds=120,
            )


def _start(cluster: Cluster, name: str, script: str, volume: dict[str, Any], image: str) -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    main = shell("main", script, image=image, volumeMounts=mounts)
    node = cluster.node_names[0]
    _apply(cluster, pod(node, name, containers=[main], volumes=[volume]))
    ready = ("wait", "-n", NAMESPACE, "--for=condition=Ready", f"pod/{name}")
    cluster.kubectl(*ready, "--timeout=90s", timeout=100)


def _apply(cluster: Cluster, manifest: str) -> None:
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=manifest)
