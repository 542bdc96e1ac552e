"""A pod's own credential: the token and the CA that its kubelet mounts.

It is taken where no kubeconfig is named or found, as kubectl and client-go do. The token is renewed
in its file long before it ends (after 80 % of its life), so whoever uses it reads the file again
every `LOOK_SECONDS`.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Where every kubelet mounts it.
FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds between looks at the token's file, as client-go.
LOOK_SECONDS = 60.0
#: What stands for the name of a context.
CONTEXT = "in-cluster"


def token_file() -> Path:
    """Where the token is."""
    return FOLDER / "token"


def ca_file() -> Path:
    """The authorities that sign the API server's certificate."""
    return FOLDER / "ca.crt"


def namespace() -> str:
    """The pod's namespace; "" where it cannot be read."""
    try:
        return (FOLDER / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def available() -> bool:
    """Whether this process is in a pod that has a service account's token."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and token_file().is_file()


def server() -> str:
    """The API server's address, as the kubelet puts it into the environment."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def token() -> str:
    """The token of now. Raises OSError."""
    return token_file().read_text(encoding="utf-8").strip()
