"""Reads the details of one pod that a page requests: `bridge explain` and its Events.

The user's kubeconfigs decide what is readable, in both clusters. `bridge explain` makes many
requests, so that at most `MAX_CONCURRENT` run, each for `TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import asyncio

from bridge.explain import json_report
from bridge.explain.cluster_lookup import ExplainSettings, look_up_pod
from sync.kube.api_resources import EVENTS
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from translators.object_accessors import Object, metadata
from translators.ownership_labels import LABEL_NODE

#: Explanations at the same time, and the time for one in seconds.
MAX_CONCURRENT, TIMEOUT_SECONDS = 2, 30.0
#: Events of one pod, the newest.
MAX_EVENTS = 100


class PodDetails:
    """Reads details of pods. ``ref`` is home's kubeconfig."""

    def __init__(self, home: KubeClient, ref: KubeconfigRef) -> None:
        self._home, self._ref = home, ref
        self._free = asyncio.Semaphore(MAX_CONCURRENT)

    async def explain(self, namespace: str, name: str) -> Object:
        """The report of `bridge explain`. Raises KubeError, PreflightError and TimeoutError."""
        settings = ExplainSettings(
            home=self._ref, remote=None, namespace=namespace, name=name, ranks_others=False
        )
        async with asyncio.timeout(TIMEOUT_SECONDS), self._free:
            return json_report.build_report(await look_up_pod(settings))

    async def events(self, namespace: str, name: str) -> list[Object]:
        """The Events of the pod at home, the newest first. Raises KubeError and TimeoutError."""
        fields = f"involvedObject.kind=Pod,involvedObject.name={name}"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            found = await self._home.list(EVENTS, namespace=namespace, fields=fields)
        records = map(_event_record, found.items)
        return sorted(records, key=lambda record: str(record["last"]), reverse=True)[:MAX_EVENTS]


def _event_record(event: Object) -> Object:
    """The parts of an Event that the page shows."""
    series, meta = event.get("series") or {}, metadata(event)
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent") or ""
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return {
        "type": str(event.get("type") or "Normal"),
        "reason": str(event.get("reason") or ""),
        "message": str(event.get("message") or ""),
        "count": int(series.get("count") or event.get("count") or 1),
        "last": next(filter(None, times), None) or meta.get("creationTimestamp") or "",
        "component": str(source),
        "cluster": "remote" if LABEL_NODE in (meta.get("labels") or {}) else "home",
    }
