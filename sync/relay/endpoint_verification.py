"""Verifies that the addresses in EndpointSlices belong to the pods that these name.

Anyone who may write EndpointSlices in a namespace can claim any address. Only a kubelet writes a
pod's status, so an endpoint counts if the Pod that it names has that UID and, in its status, that
address.

A claimed address is verified once, for as long as slices claim it: by one request per pod if few
are new, otherwise by a list of the namespace's pods. There is no watch: a pod's address does not
change.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from translators.object_accessors import HomeNamespace, Object, name_of, uid_of
from translators.relay.reverse_plan import PodAddress

#: New claims that are verified one by one. A list has some KiB per pod of the namespace.
MAX_SINGLE_REQUESTS = 8


class EndpointVerifier:
    """Verifies the claimed addresses of home's namespaces and caches the results."""

    def __init__(self, home: KubeClient) -> None:
        self._home = home
        self._results: dict[HomeNamespace, dict[PodAddress, bool]] = {}

    async def verified(self, namespace: HomeNamespace, claims: Set[PodAddress]) -> Set[PodAddress]:
        """The claims that are true; drops the results of all other claims. Raises KubeError."""
        results = self._results.get(namespace, {})
        new = claims - results.keys()
        if new:
            pods = await self._pods(namespace, {it.pod for it in new})
            results |= {it: _is_true(it, pods.get(it.pod)) for it in new}
        kept = {it: results[it] for it in claims}
        if kept:
            self._results[namespace] = kept
        else:
            self._results.pop(namespace, None)
        return {it for it, is_true in kept.items() if is_true}

    async def _pods(self, namespace: HomeNamespace, names: Collection[str]) -> dict[str, Object]:
        if len(names) > MAX_SINGLE_REQUESTS:
            page = await self._home.list(PODS, namespace=namespace, slim=_slim)
            return {name_of(it): it for it in page.items}
        pods = {}
        for name in names:
            if (pod := await self._home.find(PODS, name, namespace=namespace)) is not None:
                pods[name] = _slim(pod)
        return pods


def _slim(pod: Object) -> Object:
    status = pod.get("status") or {}
    return {
        "metadata": {"name": name_of(pod), "uid": uid_of(pod)},
        "status": {key: status[key] for key in ("podIP", "podIPs") if key in status},
    }


def _is_true(claim: PodAddress, pod: Object | None) -> bool:
    if pod is None or uid_of(pod) != claim.uid:
        return False
    status = pod.get("status") or {}
    addresses = {it.get("ip") for it in status.get("podIPs") or ()} | {status.get("podIP")}
    return claim.address in addresses
