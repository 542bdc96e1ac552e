"""Reads the labels of home's namespaces that decide the Pod Security level in the remote.

Home grants the bridge ``get`` of one namespace by a RoleBinding in it, which allows no watch. So a
namespace is read when the bridge uses its remote namespace, and `SECONDS` later at the earliest
again. After `expire`, because a pod was rejected, `FRESH_SECONDS` later: a label that was changed
since then counts at the next retry of the pod. The bridge reads nothing while nothing is created.

Where home forbids it, one log line reports that, and the labels are None.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import cachetools

from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import NAMESPACES
from sync.kube.client import KubeClient
from sync.runtime.log_fields import name_fields
from translators.object_accessors import HomeNamespace, metadata
from translators.pod_security import LABEL_ENFORCE, LABEL_ENFORCE_VERSION

log = logging.getLogger(__name__)

#: Seconds for which labels count, and for which they count after a rejection.
SECONDS, FRESH_SECONDS = 60.0, 1.0
#: Namespaces that are remembered; a forgotten one is read again.
REMEMBERED_MAX = 4096

#: The labels that are read; the others may be many.
_LABELS = (LABEL_ENFORCE, LABEL_ENFORCE_VERSION)


@dataclass(slots=True)
class _Read:
    """The result of a read: when it was read and until when it counts, by the loop's clock."""

    labels: Mapping[str, str] | None
    at: float
    until: float


class HomeNamespaceLabels:
    """``client`` is home's."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._read: cachetools.LRUCache[HomeNamespace, _Read] = cachetools.LRUCache(REMEMBERED_MAX)

    async def get(self, namespace: HomeNamespace) -> Mapping[str, str] | None:
        """The labels, {} if the namespace does not exist; None if home forbids to read them. Raises
        KubeError."""
        known, now = self._read.get(namespace), asyncio.get_running_loop().time()
        if known is not None and now < known.until:
            return known.labels
        labels: Mapping[str, str] | None
        try:
            found = await self._client.find(NAMESPACES, namespace)
        except Forbidden as error:
            labels = None
            if known is None or known.labels is not None:
                fields = name_fields("Namespace", namespace, cluster="home")
                log.warning(
                    "home: the bridge may not get namespace %s, so pods of it run under the Pod "
                    "Security level of a namespace without a label; apply `bridge rbac home` of "
                    "this version again: %s",
                    namespace,
                    error.message,
                    extra=fields,
                )
        else:
            present = metadata(found or {}).get("labels") or {}
            labels = {key: str(present[key]) for key in _LABELS if key in present}
        self._read[namespace] = _Read(labels, now, now + SECONDS)
        return labels

    def last_read(self, namespace: HomeNamespace) -> Mapping[str, str] | None:
        """The labels as of the last `get`; {} if there was none."""
        known = self._read.get(namespace)
        return known.labels if known is not None else {}

    def expire(self, namespace: HomeNamespace) -> None:
        """Has the next `get` read again, unless the last read is very recent."""
        known = self._read.get(namespace)
        if known is not None:
            known.until = min(known.until, known.at + FRESH_SECONDS)
