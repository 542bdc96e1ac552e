"""The endpoint of one configuration with a client certificate as the credential.

The bridge has two identities at home: its own account, from a kubeconfig or a pod's service
account, and that of the virtual node, a certificate which home signed. Both use one endpoint:
address, CA and proxy follow the account's configuration, and impersonation does not apply.
"""

from __future__ import annotations

from sync.kube.credentials import ClientConfig
from sync.kube.kubeconfig import ResolvedContext


class CertificateConfig(ClientConfig):
    """The configuration ``account`` with this certificate and its key (PEM) as the credential.
    Raises ClientConfigError if certificate and key cannot be used."""

    def __init__(self, account: ClientConfig, certificate: bytes, key: bytes) -> None:
        super().__init__(account.ref, side=account.side)
        self._account = account
        self._pair = certificate, key
        self.in_cluster = account.in_cluster
        self.server_clock = account.server_clock
        self._rebuild()
        account.renewed.add(self._rebuild)

    def replace_certificate(self, certificate: bytes, key: bytes) -> None:
        """Uses this certificate from now on; open connections continue with the previous one.
        Raises ClientConfigError."""
        previous, self._pair = self._pair, (certificate, key)
        try:
            self._rebuild()
        except BaseException:
            self._pair = previous
            raise

    def reload_token(self) -> None:
        """The credential is no token."""

    def recheck_files(self) -> None:
        self._account.recheck_files()

    async def renew(self, seen: int) -> bool:
        """Whether the certificate was replaced since ``seen``."""
        return self.generation != seen

    def _rebuild(self) -> None:
        base = self._account
        self._apply(
            ResolvedContext(
                host=base.server,
                verify_ssl=base.is_verified or base.ssl is None,
                ca=base.authorities,
                cert=self._pair[0],
                key=self._pair[1],
                tls_server_name=base.server_hostname,
                proxy=base.proxy,
                renews_itself=True,
                context=base.context,
                namespace=base.namespace,
            )
        )
        self.cluster_uid, self.unconfirmed = base.cluster_uid, base.unconfirmed
        self.generation += 1
        if self.generation > 1:
            self.renewed()
