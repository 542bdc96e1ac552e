"""Runs `bridge kueue run` at home, with the permissions that `bridge rbac kueue` prints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.bridge_process import BRIDGE
from e2e.clusters.cluster import Cluster
from e2e.kubectl import wait_for

ACCOUNT = Account(name="e2e-kueue")


@contextmanager
def deciding(home: Cluster, folder: Path) -> Iterator[Path]:
    """The process decides for the block; yields its log."""
    home.kubectl("apply", "-f", "-", input=_permissions())
    limited = service_accounts.handle_of(home, folder, ACCOUNT)
    log = folder / "kueue-check.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BRIDGE, "kueue", "run"],
            env={**os.environ, "KUBECONFIG": str(limited.kubeconfig), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "deciding" in log.read_text(), "the process decides")
        yield log
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(bridge_process.STOP_SECONDS)
        print(log.read_text())
        home.kubectl("delete", "--ignore-not-found", "-f", "-", input=_roles())


def _permissions() -> str:
    return bridge_process.run("rbac", "kueue", "--account", str(ACCOUNT)).stdout


def _roles() -> str:
    """All but the namespace, which bridges use too."""
    _, rest = _permissions().split("---\n", 1)
    return rest
