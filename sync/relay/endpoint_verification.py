"""Confirms that addresses in EndpointSlices are those of pods.

Whoever may write EndpointSlices in a namespace can give one the label of home's own controller, and
any address. Only a kubelet writes a pod's status, so an endpoint counts where the Pod that it names
has that UID and, in its status, that address.

An endpoint is looked up once, for as long as slices claim it: by a request for each where few are
new, else by a list of the namespace's pods. Neither is a watch: an address of a pod that has one
stays as it is, and another address is another claim.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from sync.kube.client import KubeClient
from sync.kube.errors import NotFound
from sync.kube.resources import PODS
from translators.objects import HomeNamespace, Object, name_of, uid_of
from translators.relay.reverse import PodAddress

#: New claims that are looked up one by one. A list has some KiB for each pod of the namespace.
FEW = 8


class EndpointVerifier:
    """What is known of the claims of home's namespaces."""

    def __init__(self, home: KubeClient) -> None:
        self._home = home
        self._known: dict[HomeNamespace, dict[PodAddress, bool]] = {}

    async def confirmed(self, namespace: HomeNamespace, claims: Set[PodAddress]) -> Set[PodAddress]:
        """Those of the claims that are true. What is claimed no more is forgotten. Raises
        KubeError."""
        known = self._known.get(namespace, {})
        missing = claims - known.keys()
        if missing:
            found = await self._pods(namespace, {it.pod for it in missing})
            known |= {it: _is_true(it, found.get(it.pod)) for it in missing}
        kept = {it: known[it] for it in claims}
        if kept:
            self._known[namespace] = kept
        else:
            self._known.pop(namespace, None)
        return {it for it, is_true in kept.items() if is_true}

    async def _pods(self, namespace: HomeNamespace, names: Collection[str]) -> dict[str, Object]:
        if len(names) > FEW:
            page = await self._home.list(PODS, namespace=namespace, slim=_slim)
            return {name_of(it): it for it in page.items}
        found = {}
        for name in names:
            try:
                found[name] = _slim(await self._home.get(PODS, name, namespace=namespace))
            except NotFound:
                continue
        return found


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
