"""Home's client CA, followed: the authorities by which home's API server proves who it is.

They stand in ``client-ca-file`` of the ConfigMap `NAME` in `NAMESPACE`, which is watched for as
long as `ClientCa.run` runs. A bundle that cannot be read, and a ConfigMap that is gone or has none,
leave the one before in use, as in k8s.io/apiserver's dynamiccertificates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridge.certificates.tls_key_pair import CertificateError
from sync.cache.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.resources import CONFIG_MAPS, Object

NAMESPACE = "kube-system"
NAME = "extension-apiserver-authentication"

log = logging.getLogger(__name__)


def client_ca_bundle(config_map: Object | None) -> str:
    """The PEM of the authorities, or nothing."""
    return str(((config_map or {}).get("data") or {}).get("client-ca-file") or "")


class ClientCaWatcher:
    """``known`` is the bundle that is in use already."""

    def __init__(self, home: KubeClient, known: str) -> None:
        self._known = known
        self._informer = Informer(
            home, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={NAME}"
        )

    async def run(self, use: Callable[[str], None]) -> None:
        """Hands every later bundle to ``use``, which may raise CertificateError. Until
        cancelled."""
        self._informer.on_change(lambda _, config_map: self._changed(config_map, use))
        await self._informer.run()

    def _changed(self, config_map: Object | None, use: Callable[[str], None]) -> None:
        bundle = client_ca_bundle(config_map)
        if not bundle.strip() or bundle == self._known:
            return
        self._known = bundle
        try:
            use(bundle)
        except CertificateError as error:
            log.warning("home's client CA has changed, and the one before stays in use: %s", error)
        else:
            log.info("home's client CA has changed; connections from now on are checked by it")
