"""Claims with files of each kind, and what a pod reads of them."""

from __future__ import annotations

import json

from e2e.kubectl import get, wait_for
from e2e.provisioned_storage import DATA, ProvisionedStorage
from e2e.workload_manifests import shell

#: Writes files of which each property is to be copied.
_WRITE = """cd /data && mkdir -p 'a directory/below' empty && head -c 3000000 /dev/urandom > big &&
echo text > 'a directory/file' && ln -s 'a directory/file' link && ln big 'a directory/hard' &&
chown -R 1234:5678 'a directory' && chmod 4750 'a directory/file' && chmod 1700 empty &&
printf odd > "$(printf 'a\\nline \\377')" && mkfifo pipe && touch -d @1000000000 big &&
dd if=/dev/zero of=sparse bs=1 count=1 seek=30000000 2>/dev/null &&
i=0; while [ $i -lt 300 ]; do echo $i > below-$i; i=$((i+1)); done; touch /tmp/written; sleep 3600
"""
#: Prints a digest of all these files. File systems count the links of directories differently.
_DIGEST = """cd /data && find . ! -path './lost+found*' -print0 | sort -z | xargs -0 sh -c '
for it; do
  stat -c "%f %u %g %N" "$it"
  [ ! -f "$it" ] || { stat -c "%h %s %Y" "$it"; sha256sum < "$it"; }
done' sh | sha256sum"""


def node_of_home(storage: ProvisionedStorage) -> str:
    """The name of the home cluster's real node."""
    (node,) = get(storage.home, "nodes", selector="!cluster-bridge.io/virtual-node")
    return str(node["metadata"]["name"])


def run_pod(
    storage: ProvisionedStorage, name: str, claim: str, node: str, script: str = "sleep 3600"
) -> None:
    """Starts a pod with the claim on a node of the home cluster, or on the virtual node, and waits
    until the pod is Ready."""
    spec = {
        "containers": [shell("main", script, volumeMounts=DATA)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        **storage.placement(),
        "nodeSelector": {"kubernetes.io/hostname": node},
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    storage.bridged.apply(json.dumps(manifest))
    storage.wait_until_ready(name)


def write(storage: ProvisionedStorage, claim: str, node: str, more: str = "") -> str:
    """Writes files to the claim with a pod, which has ended on return; returns their digest.
    ``more`` is a script that writes other files first."""
    run_pod(storage, "writer", claim, node, more + _WRITE)
    done = ("exec", "writer", "--", "ls", "/tmp/written")
    wait_for(lambda: storage.bridged.kubectl(*done, check=False) != "", "the files are written")
    return _read(storage, "writer")


def digest(storage: ProvisionedStorage, claim: str, node: str) -> str:
    """The digest of the claim's files, read with a pod on the node, which has ended on return."""
    run_pod(storage, "reader", claim, node)
    return _read(storage, "reader")


def _read(storage: ProvisionedStorage, pod: str) -> str:
    found = storage.bridged.kubectl("exec", pod, "--", "sh", "-c", _DIGEST)
    storage.bridged.kubectl("delete", "pod", pod, "--wait=true")
    return found
