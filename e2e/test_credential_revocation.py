"""A credential of the remote is revoked while the bridge runs, and replaced."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.rbac.rbac_manifests import Account
from e2e import service_accounts
from e2e.conftest import Bridged
from e2e.kubectl import get_events, get_one, uids, wait_for
from e2e.workload_manifests import busybox

pytestmark = pytest.mark.core

#: Seconds until the report: the server caches the token for 10, an outage is reported after 15.
REPORT_SECONDS = 60.0


def _ready(bridged: Bridged) -> tuple[str, str]:
    node = get_one(bridged.home, "node", bridged.node)
    ready = next(c for c in node["status"]["conditions"] if c["type"] == "Ready")
    return ready["status"], ready["reason"]


def _outage_is_reported(bridged: Bridged) -> bool:
    """Sends requests to the remote first: an open watch continues without a valid credential, and
    the first rejected request reveals it."""
    bridged.kubectl("annotate", "pod", "stays", f"asked={time.monotonic()}", "--overwrite")
    return _ready(bridged) == ("False", "RemoteCredentialRefused")


def test_revoked_credential_is_reported_and_a_new_one_is_used(
    bridged: Bridged, tmp_path: Path
) -> None:
    """The node reports the outage and its end; pods continue to run."""
    remote, own = bridged.remote, Account("default", bridged.node)
    try:
        assert bridged.bridge.stop() == 0
        bridged.bridge.remote = service_accounts.granted(remote, tmp_path, "remote", account=own)
        bridged.bridge.start()
        bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
        running = uids(bridged.remote_pods())

        remote.kubectl("delete", "serviceaccount", own.name, "-n", own.namespace)
        wait_for(
            lambda: _outage_is_reported(bridged), "the node reports it", seconds=REPORT_SECONDS
        )
        bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
        # Same file; another account with the same name.
        service_accounts.granted(remote, tmp_path, "remote", account=own)
        wait_for(lambda: _ready(bridged)[0] == "True", "it is well again", seconds=REPORT_SECONDS)
        bridged.kubectl("wait", "--for=condition=Ready", "pod/comes", "--timeout=90s")
        assert uids(bridged.remote_pods())["stays"] == running["stays"]
        events = get_events(bridged.home, bridged.node, namespace="default")
        assert {"NodeNotReady", "NodeReady"} <= {event["reason"] for event in events}
    finally:
        service_accounts.take_away(remote, own)
