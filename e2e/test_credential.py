"""A credential of the remote that is revoked while the bridge runs, and a new one in its place."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import yaml

from e2e.clusters.model import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get, get_one, uids, wait_for
from e2e.workloads import busybox

#: Seconds until it is told: the server believes a token for 10 more, and 15 more make an outage.
TOLD_SECONDS = 60.0


def _kubeconfig(remote: Cluster, account: str, path: Path) -> None:
    """A kubeconfig of the remote with a new token of the service account."""
    remote.kubectl("create", "serviceaccount", account, "-n", "default")
    token = remote.kubectl("create", "token", account, "-n", "default").stdout.strip()
    config = yaml.safe_load(remote.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path.write_text(yaml.safe_dump(config))


def _ready(bridged: Bridged) -> tuple[str, str]:
    node = get_one(bridged.home, "node", bridged.node)
    ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    return ready["status"], ready["reason"]


def _is_told(bridged: Bridged) -> bool:
    """Something is asked of the remote each time: a watch that stands goes on without a credential,
    and the first request that is refused shows it."""
    bridged.kubectl("annotate", "pod", "stays", f"asked={time.monotonic()}", "--overwrite")
    return _ready(bridged) == ("False", "RemoteCredentialRefused")


def test_credential_that_is_revoked_is_told_and_a_new_one_is_taken_up(
    bridged: Bridged, tmp_path: Path
) -> None:
    """The node says what is the matter, and again that all is well; pods run on."""
    remote, account, path = bridged.remote, bridged.node, tmp_path / "remote.yaml"
    _kubeconfig(remote, account, path)
    binding = ("create", "clusterrolebinding", account, "--clusterrole=cluster-admin")
    remote.kubectl(*binding, f"--serviceaccount=default:{account}")
    try:
        assert bridged.bridge.stop() == 0
        bridged.bridge.remote = dataclasses.replace(remote, kubeconfig=path)
        bridged.bridge.start()
        bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
        running = uids(bridged.remote_pods())

        remote.kubectl("delete", "serviceaccount", account, "-n", "default")
        wait_for(lambda: _is_told(bridged), "the node tells it", seconds=TOLD_SECONDS)
        bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
        _kubeconfig(remote, account, path)
        wait_for(lambda: _ready(bridged)[0] == "True", "it is well again", seconds=TOLD_SECONDS)
        bridged.kubectl("wait", "--for=condition=Ready", "pod/comes", "--timeout=90s")
        assert uids(bridged.remote_pods())["stays"] == running["stays"]
        told = [
            event["reason"]
            for event in get(bridged.home, "events", namespace="default")
            if event["involvedObject"]["name"] == bridged.node
        ]
        assert {"NodeNotReady", "NodeReady"} <= set(told)
    finally:
        remote.kubectl("delete", "clusterrolebinding", account)
        remote.kubectl("delete", "serviceaccount", account, "-n", "default", check=False)
