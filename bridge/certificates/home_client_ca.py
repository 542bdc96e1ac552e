"""Watches home's client CA, which authenticates home's API server to the kubelet API.

The CA bundle is ``client-ca-file`` of the ConfigMap `NAMESPACE`/`NAME`. An invalid bundle, and a
ConfigMap that is deleted or has no bundle, leave the previous bundle in use, as in
k8s.io/apiserver's dynamiccertificates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridge.certificates.tls_key_pair import CertificateError
from sync.cache.informer import Informer
from sync.kube.api_resources import CONFIG_MAPS, Object
from sync.kube.client import KubeClient

NAMESPACE = "kube-system"
NAME = "extension-apiserver-authentication"

log = logging.getLogger(__name__)


def client_ca_bundle(config_map: Object | None) -> str:
    """The CA certificates (PEM) in the ConfigMap, or ""."""
    return str(((config_map or {}).get("data") or {}).get("client-ca-file") or "")


async def follow_client_ca(home: KubeClient, known: str, use: Callable[[str], None]) -> None:
    """Passes every bundle that differs from the last, at first ``known``, to ``use``, which may
    raise CertificateError. Runs until cancelled."""
    informer = Informer(home, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={NAME}")

    def changed(_: Object | None, config_map: Object | None) -> None:
        nonlocal known
        bundle = client_ca_bundle(config_map)
        if not bundle.strip() or bundle == known:
            return
        known = bundle
        try:
            use(bundle)
        except CertificateError as error:
            log.warning("home: the previous client CA stays in use: %s", error)
        else:
            log.info("home: the client CA has changed; new connections are verified with it")

    informer.on_change(changed)
    await informer.run()
