"""The credential of a pod's service account: the token and the CA that the kubelet mounts.

Used if no kubeconfig is named or found, as in kubectl and client-go. The kubelet renews the token
in its file after 80 % of its life; callers read the file again every `RELOAD_SECONDS`.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Where every kubelet mounts the service account.
FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds between reads of the token, as in client-go.
RELOAD_SECONDS = 60.0
#: Shown as the name of the context.
CONTEXT = "in-cluster"


def token_file() -> Path:
    return FOLDER / "token"


def ca_file() -> Path:
    return FOLDER / "ca.crt"


def namespace() -> str:
    """The pod's namespace; "" if it cannot be read."""
    try:
        return (FOLDER / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def available() -> bool:
    """Whether this process runs in a pod with a service account token."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and token_file().is_file()


def server() -> str:
    """The API server's URL, from the environment that the kubelet sets."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def token() -> str:
    """Reads the token. Raises OSError."""
    return token_file().read_text(encoding="utf-8").strip()
