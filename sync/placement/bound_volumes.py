"""Finds the candidates that cannot mount a pod's bound volumes, by requests to home."""

from __future__ import annotations

import logging

from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from sync.kube.client import KubeClient
from sync.placement.home_state import HomeState
from translators.explain import persistent_volume_claims
from translators.explain.persistent_volume_claims import PodStorage
from translators.object_accessors import Object, name_of, namespace_of
from translators.placement.decision import HOME

log = logging.getLogger(__name__)


async def blocked_by_volumes(home: KubeClient, state: HomeState, pod: Object) -> dict[str, str]:
    """These candidates with the reason. Raises KubeError."""
    names = set(persistent_volume_claims.claim_names(pod).values())
    if not names:
        return {}
    storage = await _read_storage(home, namespace_of(pod), names)

    def failure(node: Object) -> str:
        failures = persistent_volume_claims.volume_binding_failures(pod, node, storage)
        return next((it.message for it in failures), "")

    found = {name_of(it): failure(it) for it in state.virtual_nodes()}
    at_home = [failure(it) for it in state.home_nodes()]
    if at_home and all(at_home):
        found[HOME] = at_home[0]
    return {candidate: text for candidate, text in found.items() if text}


async def _read_storage(home: KubeClient, namespace: str, names: set[str]) -> PodStorage:
    claims: dict[str, Object | None] = {}
    volumes: dict[str, Object | None] = {}
    try:
        for name in names:
            found = await home.find(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
            claims[name] = found
            if volume := _volume_name(found):
                volumes[volume] = await home.find(PERSISTENT_VOLUMES, volume)
    except Forbidden as error:
        log.debug("home: volumes do not count: %s", error)
        return PodStorage()
    # Unbound ones do not limit the choice: they are provisioned where the pod goes.
    bound = {name: it for name, it in claims.items() if _volume_name(it)}
    return PodStorage(claims=bound, volumes=volumes)


def _volume_name(claim: Object | None) -> str:
    return str(((claim or {}).get("spec") or {}).get("volumeName") or "")
