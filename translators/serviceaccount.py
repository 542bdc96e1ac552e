"""The identity that a pod has towards an API server: its service account and tokens of it."""

from __future__ import annotations

from translators import references
from translators.spec import Dropped, each_container, put
from translators.types import Object

#: Where the API server mounts the token volume that it adds to each container
#: (plugin/pkg/admission/serviceaccount).
_TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path


def without_home_token(spec: Object, dropped: list[Dropped]) -> None:
    """Takes out tokens of home's service account: they would be asked for in the remote.

    The volume that home's admission added goes without a word, with its mounts; a token that
    the pod's author asked for by name is reported.
    """
    mounted = {
        mount.get("name")
        for container in references.containers(spec)
        for mount in container.get("volumeMounts") or ()
        if mount.get("mountPath") == _TOKEN_MOUNT
    }
    added = {
        volume["name"]
        for volume in spec.get("volumes") or ()
        if volume["name"] in mounted and _token_sources(volume)
    }
    volumes = []
    for volume in spec.get("volumes") or ():
        if volume["name"] in added:
            continue
        sources = (volume.get("projected") or {}).get("sources") or ()
        kept = [source for source in sources if "serviceAccountToken" not in source]
        if len(kept) != len(sources):
            path = f"spec.volumes[{volume['name']}].projected.serviceAccountToken"
            dropped.append(Dropped(path, "tokens of home's service accounts stay at home"))
            volume = {**volume, "projected": {**volume["projected"], "sources": kept}}  # noqa: PLW2901
        volumes.append(volume)
    put(spec, "volumes", volumes)
    each_container(spec, lambda container: _without_mounts(container, added))


def _token_sources(volume: Object) -> bool:
    sources = (volume.get("projected") or {}).get("sources") or ()
    return any("serviceAccountToken" in source for source in sources)


def _without_mounts(container: Object, volumes: set[str]) -> Object:
    mounts = container.get("volumeMounts")
    if not mounts or not volumes:
        return container
    kept = [mount for mount in mounts if mount.get("name") not in volumes]
    changed = dict(container)
    put(changed, "volumeMounts", kept)
    return changed
