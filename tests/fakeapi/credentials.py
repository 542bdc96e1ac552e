"""Credentials for fake servers, without a kubeconfig file."""

from __future__ import annotations

import ssl
from pathlib import Path

from sync.kube.api_errors import Side
from sync.kube.credentials import Credentials
from sync.kube.endpoint import Credential, Endpoint
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi.server import FakeApi


class StaticCredentials(Credentials):
    """Credentials as `sync.kube.credentials.load` returns them, without a file: a rejected one
    stays rejected."""

    def __init__(
        self,
        endpoint: str | Endpoint,
        side: Side,
        *,
        token: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(KubeconfigRef(Path("none")), side=side)
        self.endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.credential = Credential(authorization=f"Bearer {token}" if token else "")
        self.tls = context
        self.context = "fake"


def credentials_for(server: FakeApi, side: Side = "remote") -> Credentials:
    """Credentials for the server, with its token."""
    return StaticCredentials(server.url, side, token=server.token)
