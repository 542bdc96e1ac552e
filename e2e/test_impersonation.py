"""A kubeconfig with ``as``: the bridge has only the impersonated user's permissions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, usual_options
from e2e.kubectl import get
from e2e.service_accounts import OURS
from e2e.workload_manifests import busybox


def _impersonating(cluster: Cluster, path: Path, user: dict[str, Any]) -> Path:
    """The administrator's kubeconfig, impersonating another user."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for entry in config["users"]:
        entry["user"] |= user
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.core
def test_impersonated_user_without_permissions_is_refused(
    home: Cluster, remote: Cluster, tmp_path: Path, node_name: str
) -> None:
    """Even though the credential is an administrator's."""
    path = _impersonating(
        remote, tmp_path / "config", {"as": "unprivileged", "as-groups": ["system:authenticated"]}
    )
    done = bridge_process.run("join", "--kubeconfig", path, *usual_options(node_name), home=home)
    assert done.returncode != 0
    assert "bridge rbac remote" in done.stderr, "the permissions that are missing are named"
    assert not [it for it in get(home, "nodes") if it["metadata"]["name"] == node_name]


def test_bridge_works_with_exactly_the_impersonated_permissions(
    bridged: Bridged, tmp_path: Path
) -> None:
    """Requests, watches, and an upgrade for exec. In the remote's audit log each has the bridge's
    ServiceAccount as the impersonated user."""
    remote, log = bridged.remote, bridged.remote.audit_log
    account = f"system:serviceaccount:{OURS.namespace}:{OURS.name}"
    groups = ["system:serviceaccounts", "system:authenticated"]
    user = {"as": account, "as-groups": groups}
    path = _impersonating(remote, tmp_path / "config", user)
    assert bridged.bridge.stop() == 0
    bridged.bridge.remote = dataclasses.replace(remote, kubeconfig=path)
    begin = log.stat().st_size if log is not None else 0
    bridged.bridge.start()
    bridged.apply(busybox(bridged.node, "a", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/a", "--timeout=90s")
    assert bridged.kubectl("exec", "a", "--", "echo", "hello").strip() == "hello"
    assert bridged.bridge.stop() == 0
    if log is None:
        return
    with log.open("rb") as lines:
        lines.seek(begin)
        events = [json.loads(line) for line in lines if b'"userAgent":"cluster-bridge' in line]
    verbs = {it["verb"] for it in events}
    assert {"create", "get", "list", "watch"} <= verbs
    assert any(it["objectRef"].get("subresource") == "exec" for it in events if "objectRef" in it)
    impersonated = {it.get("impersonatedUser", {}).get("username") for it in events}
    assert impersonated == {account}
