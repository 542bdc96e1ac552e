"""Kubeconfigs of a remote, as users have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SERVER = "https://203.0.113.7:6443"
CANARY = "canary-4711"
#: A user with a credential plugin.
AWS = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws"}}


def config(
    *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, name: str = "far"
) -> dict[str, Any]:
    """A kubeconfig with one context, cluster and user."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": CANARY} if user is None else user}],
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    """Writes a kubeconfig; returns its path."""
    path.write_text(yaml.safe_dump(content))
    return path
