"""Runs `bridge placement run` at home, with the permissions of `bridge placement render`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from bridge.placement.manifests import NAME
from bridge.rbac.rbac_manifests import Account
from e2e import background_process, bridge_process, service_accounts
from e2e.bridge_process import BRIDGE
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, wait_for

ACCOUNT = Account(name=NAME)
#: The line that is printed once Kueue's check is decided.
DECIDING = "deciding"


@contextmanager
def deciding(home: Cluster, folder: Path) -> Iterator[None]:
    """The process decides Kueue's admission check for the block."""
    with installed(home):
        limited = service_accounts.handle_of(home, folder, ACCOUNT)
        log = folder / "placement.log"
        command: list[str | Path] = [BRIDGE, "placement", "run", "--kueue", "auto"]
        env = {"KUBECONFIG": str(limited.kubeconfig), "NO_COLOR": "1"}
        process = background_process.start(command, log, env=env)
        try:
            wait_for(lambda: DECIDING in log.read_text(), "the process decides the check")
            yield
            assert process.poll() is None, "the process has ended"
        finally:
            has_stopped = background_process.end(process, grace=bridge_process.STOP_SECONDS)
            print(log.read_text())
        assert has_stopped, f"not stopped in {bridge_process.STOP_SECONDS:.0f} s"


@contextmanager
def installed(home: Cluster) -> Iterator[None]:
    """Home has the objects of placement for the block, without an admission policy."""
    objects = _objects()
    _kubectl(home, "apply", objects)
    try:
        yield
    finally:
        # Bridges use the namespace too.
        _kubectl(home, "delete", [it for it in objects if it["kind"] != "Namespace"])


def _objects() -> list[Json]:
    printed = bridge_process.run("placement", "render", "--admission", "none")
    assert printed.returncode == 0, printed.stderr
    return [*yaml.safe_load_all(printed.stdout)]


def _kubectl(home: Cluster, verb: str, objects: list[Json]) -> None:
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    ignore = ("--ignore-not-found",) if verb == "delete" else ()
    home.kubectl(verb, *ignore, "-f", "-", input=listed)
