"""Writes kubeconfig files for tests of `sync.kube.credentials`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import yaml

from sync.kube.api_resources import Object


def kubeconfig(
    server: str,
    *,
    user: Object | None = None,
    cluster: Object | None = None,
    context: str = "fake",
    namespace: str = "default",
) -> Object:
    """A kubeconfig with one cluster, user and context of the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": context, "user": {"token": "fake"} if user is None else user}],
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
    """A user entry whose credential plugin is this shell script."""
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
    """A script that prints an ExecCredential with this status."""
    found = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    return f"cat <<'END'\n{json.dumps(found)}\nEND\n"
