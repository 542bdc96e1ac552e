"""Client config for a fake server without a kubeconfig file."""

from __future__ import annotations

import math
from pathlib import Path

from sync.kube.api_errors import Side
from sync.kube.credentials import ClientConfig, KubeconfigRef
from tests.fakeapi.server import FakeApi


def client_config_for(server: FakeApi, side: Side = "remote") -> ClientConfig:
    """A ClientConfig as `sync.kube.credentials.load` returns it, without a file.

    `load` needs a file, and 0.3 s for its first import. The credential is never read again: a
    rejected one stays rejected.
    """
    access = ClientConfig(KubeconfigRef(Path("none")), side=side)
    access.server = server.url
    access.context = "fake"
    access._authorization = f"Bearer {server.token}" if server.token else None
    access._renewed = math.inf
    return access
