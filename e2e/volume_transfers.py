"""Runs `bridge volume` on claims with data, and reads the data by pods."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from e2e import bridge_process
from e2e.bridge_process import BRIDGE
from e2e.kubectl import get, wait_for
from e2e.provisioned_storage import DATA, ProvisionedStorage
from e2e.workload_manifests import shell

#: Writes files of which each property is to be copied.
WRITE = """cd /data && mkdir -p 'a directory/below' && head -c 3000000 /dev/urandom > big &&
echo text > 'a directory/file' && ln -s 'a directory/file' link && ln big 'a directory/hard' &&
chown -R 1234:5678 'a directory' && chmod 4750 'a directory/file' && touch -d @1000000000 big &&
i=0; while [ $i -lt 300 ]; do echo $i > below-$i; i=$((i+1)); done; sleep 3600"""
#: Prints a digest of all of it.
DIGEST = """cd /data && (find . | sort | while read -r it; do stat -c '%A %u %g %h %n' "$it"; done
find . -type f | sort | while read -r it; do sha256sum "$it"; stat -c %Y "$it"; done) | sha256sum"""


def run_volume(storage: ProvisionedStorage, *args: str, succeeds: bool = True) -> str:
    """Runs `bridge volume`; returns its standard error and output."""
    done = bridge_process.run("volume", *args, home=storage.home)
    output = done.stderr + done.stdout
    assert (done.returncode == 0) == succeeds, output
    return output


@contextlib.contextmanager
def started(kubeconfig: Path, log: Path, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `bridge volume` with this home, and kills it at the end of the block."""
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with log.open("wb") as output:
        process = subprocess.Popen([BRIDGE, "volume", *args], env=env, stderr=output, stdout=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def node_of_home(storage: ProvisionedStorage) -> str:
    """The name of home's real node."""
    (node,) = get(storage.home, "nodes", selector="!cluster-bridge.io/virtual-node")
    return str(node["metadata"]["name"])


def digest(storage: ProvisionedStorage, claim: str, node: str, script: str = "sleep 3600") -> str:
    """The digest of the claim's data, by a pod on the node, which ends before."""
    spec = {
        "containers": [shell("main", script, volumeMounts=DATA)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        **storage.placement(),
        "nodeSelector": {"kubernetes.io/hostname": node},
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reader"}, "spec": spec}
    storage.bridged.apply(json.dumps(manifest))
    storage.wait_until_ready("reader")
    if script != "sleep 3600":
        wait_for(
            lambda: (
                storage.bridged.kubectl("exec", "reader", "--", "ls", "/data").count("\n") > 300
            ),
            "the pod has written",
        )
    found = storage.bridged.kubectl("exec", "reader", "--", "sh", "-c", DIGEST)
    storage.bridged.kubectl("delete", "pod", "reader", "--wait=true")
    return found
