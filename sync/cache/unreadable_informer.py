"""Stands for the informer of a resource that the credential may not read."""

from __future__ import annotations

from sync.cache.informer import Informer
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient


class UnreadableInformer(Informer):
    """An empty cache that is always synced, never fails, and sends no request. `run` is not to be
    called. A caller that must distinguish "there is none" from "unknown" reads
    `translators.translation_options.Policy.cluster_reads`."""

    def __init__(self, client: KubeClient, resource: Resource) -> None:
        super().__init__(client, resource)
        self.synced.set()
