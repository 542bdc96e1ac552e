"""Client configs for fake servers, without a kubeconfig file."""

from __future__ import annotations

import ssl
from pathlib import Path

from sync.kube.api_errors import Side
from sync.kube.credentials import ClientConfig, KubeconfigRef
from tests.fakeapi.server import FakeApi


class StaticConfig(ClientConfig):
    """A ClientConfig as `sync.kube.credentials.load` returns it, without a file.

    `load` needs a file, and 0.3 s for its first import. The credential is never read again: a
    rejected one stays rejected.
    """

    def __init__(
        self, server: str, side: Side, *, token: str | None, context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(KubeconfigRef(Path("none")), side=side)
        self.server = server
        self.ssl = context
        self.context = "fake"
        self.token = token

    def authorization(self) -> dict[str, str]:
        """The token, if there is one."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def renew(self, seen: int) -> bool:
        """There is nothing to read."""
        return False


def client_config_for(server: FakeApi, side: Side = "remote") -> ClientConfig:
    """A client config for the server, with its token."""
    return StaticConfig(server.url, side, token=server.token)
