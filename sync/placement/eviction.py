"""Evicts pods at home, by the API that respects PodDisruptionBudgets."""

from __future__ import annotations

import logging

from sync.kube.api_errors import KubeError, NotFound, Throttled
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.runtime.log_fields import name_fields
from translators.object_accessors import Object, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)


async def evict(home: KubeClient, pod: Object, reason: str) -> bool | None:
    """True if the pod is evicted, None if it no longer exists, False if it has to stay for now: a
    budget protects it, or the request failed, which is logged."""
    name, namespace = name_of(pod), namespace_of(pod)
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        # The pod of this name that was looked at.
        "deleteOptions": {"preconditions": {"uid": uid_of(pod)}},
    }
    path = PODS.path(name, namespace=namespace, subresource="eviction")
    fields = name_fields("Pod", name, namespace=namespace, cluster="home")
    try:
        await home.request("POST", path, body=body, retry_on_throttle=False)
    except NotFound:
        return None
    except KubeError as error:
        level = logging.DEBUG if isinstance(error, Throttled) else logging.WARNING
        log.log(level, "pod %s/%s: is not evicted: %s", namespace, name, error, extra=fields)
        return False
    log.info("pod %s/%s: evicted, because %s", namespace, name, reason, extra=fields)
    return True
