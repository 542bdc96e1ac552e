"""Reads the details of one pod that a page requests: `bridge explain` and its Events.

`PodDetails` reads with the user's kubeconfigs, from both clusters. `ViewerDetails` reads with the
token of a viewer, from home alone: what home denies the viewer is not shown, whatever the dashboard
itself may read. `bridge explain` makes many requests, so that at most `MAX_CONCURRENT` run, each
for `TIMEOUT_SECONDS`.
"""

from __future__ import annotations

import asyncio

from bridge.status.event_list import event_record
from sync.kube.api_resources import EVENTS
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.token_config import TokenConfig
from translators.object_accessors import Object

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
        # Imported late: a page without a selected pod does not need it.
        from bridge.explain import json_report
        from bridge.explain.cluster_lookup import ExplainSettings, look_up_pod

        settings = ExplainSettings(
            home=self._ref, remote=None, namespace=namespace, name=name, ranks_others=False
        )
        async with asyncio.timeout(TIMEOUT_SECONDS), self._free:
            return json_report.build_report(await look_up_pod(settings))

    async def events(self, namespace: str, name: str) -> list[Object]:
        """The Events of the pod at home, the newest first. Raises KubeError and TimeoutError."""
        return await _read_events(self._home, namespace, name)


class ViewerDetails:
    """Reads details of pods at home with a viewer's token. ``home`` is the dashboard's client, and
    ``free`` the explanations that may run."""

    def __init__(self, home: KubeClient, token: str, free: asyncio.Semaphore) -> None:
        self._home, self._token, self._free = home, token, free

    async def explain(self, namespace: str, name: str) -> Object:
        """As `PodDetails.explain`, without the remote."""
        from bridge.explain import json_report
        from bridge.explain.cluster_lookup import ExplainSettings, look_up_at_home

        settings = ExplainSettings(
            home=self._home.config.ref,
            remote=None,
            namespace=namespace,
            name=name,
            ranks_others=False,
        )
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            self._free,
            self._connected() as home,
        ):
            facts = await look_up_at_home(home, settings)
        facts.not_checked.append(
            "the remote: the dashboard has no access to it; `bridge explain` has, with its "
            "kubeconfig"
        )
        return json_report.build_report(facts)

    async def events(self, namespace: str, name: str) -> list[Object]:
        """As `PodDetails.events`."""
        async with self._connected() as home:
            return await _read_events(home, namespace, name)

    def _connected(self) -> KubeClient:
        return KubeClient(TokenConfig(self._home.config, self._token))


async def _read_events(home: KubeClient, namespace: str, name: str) -> list[Object]:
    fields = f"involvedObject.kind=Pod,involvedObject.name={name}"
    async with asyncio.timeout(TIMEOUT_SECONDS):
        found = await home.list(EVENTS, namespace=namespace, fields=fields)
    records = [event_record(it, "") for it in found.items]
    return sorted(records, key=lambda it: str(it["last"]), reverse=True)[:MAX_EVENTS]
