"""Kubeconfig files for tests: whatever a user may write, for `sync.kube.credentials` to read."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import yaml

from sync.kube.resources import Object


def kubeconfig(
    server: str,
    *,
    user: Object | None = None,
    cluster: Object | None = None,
    context: str = "fake",
    namespace: str = "default",
) -> Object:
    """A kubeconfig of one cluster, user and context, all of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": context, "user": user or {}}],
        "contexts": [
            {
                "name": context,
                "context": {"cluster": context, "user": context, "namespace": namespace},
            }
        ],
    }


def write(path: Path, content: Object) -> Path:
    """Writes the file as YAML."""
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def plugin(path: Path, script: str) -> Object:
    """The user entry for a credential plugin that is this shell script."""
    path.write_text("#!/bin/sh\n" + script, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(path),
            "interactiveMode": "Never",
        }
    }


def credential(status: Object) -> str:
    """A script that prints this as what a credential plugin has to say."""
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    return f"cat <<'END'\n{json.dumps(said)}\nEND\n"
