"""A credential of the remote that is revoked while the bridge runs, and a new one in its place."""

from __future__ import annotations

import time
from pathlib import Path

from bridge.rbac.rbac_manifests import Account
from e2e import service_accounts
from e2e.conftest import Bridged
from e2e.kubectl import get, get_one, uids, wait_for
from e2e.workload_manifests import busybox

#: Seconds until it is told: the server believes a token for 10 more, and 15 more make an outage.
TOLD_SECONDS = 60.0


def _ready(bridged: Bridged) -> tuple[str, str]:
    node = get_one(bridged.home, "node", bridged.node)
    ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    return ready["status"], ready["reason"]


def _is_told(bridged: Bridged) -> bool:
    """Something is asked of the remote each time: a watch that stands goes on without a credential,
    and the first request that is refused shows it."""
    bridged.kubectl("annotate", "pod", "stays", f"asked={time.monotonic()}", "--overwrite")
    return _ready(bridged) == ("False", "RemoteCredentialRefused")


def test_revoked_credential_is_reported_and_a_new_one_is_used(
    bridged: Bridged, tmp_path: Path
) -> None:
    """The node says what is the matter, and again that all is well; pods run on."""
    remote, own = bridged.remote, Account("default", bridged.node)
    try:
        assert bridged.bridge.stop() == 0
        bridged.bridge.remote = service_accounts.granted(remote, tmp_path, "remote", account=own)
        bridged.bridge.start()
        bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
        running = uids(bridged.remote_pods())

        remote.kubectl("delete", "serviceaccount", own.name, "-n", own.namespace)
        wait_for(lambda: _is_told(bridged), "the node tells it", seconds=TOLD_SECONDS)
        bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
        # In the same file: the account is another one, of the same name.
        service_accounts.granted(remote, tmp_path, "remote", account=own)
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
        service_accounts.take_away(remote, own)
