"""The endpoint of one configuration with another bearer token as the credential.

For a request in the name of a caller who has sent a token. Address, CA and proxy are those of the
configuration at this moment; impersonation does not apply.
"""

from __future__ import annotations

from sync.kube.credentials import ClientConfig
from sync.kube.kubeconfig import ResolvedContext


class TokenConfig(ClientConfig):
    """The configuration ``base`` with this token, which is never renewed."""

    def __init__(self, base: ClientConfig, token: str) -> None:
        super().__init__(base.ref, side=base.side)
        self.server_clock = base.server_clock
        self._apply(
            ResolvedContext(
                host=base.server,
                verify_ssl=base.is_verified or base.ssl is None,
                ca=base.authorities,
                tls_server_name=base.server_hostname,
                proxy=base.proxy,
                authorization=f"Bearer {token}",
                context=base.context,
                namespace=base.namespace,
            )
        )
        self.generation = 1

    def reload_token(self) -> None:
        """The token is the caller's."""

    def recheck_files(self) -> None:
        """The credential is in no file."""

    async def renew(self, seen: int) -> bool:
        """False: a rejected token stays rejected."""
        del seen
        return False
