"""Translates ``/stats/summary`` of the remote's kubelets to home's pod names. Pure.

The format is ``pkg/apis/stats/v1alpha1`` of k8s.io/kubelet. Statistics of unmanaged pods and of the
node stay in the remote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from translators.object_accessors import Object
from translators.ownership_labels import Origin
from translators.pod_metrics.exposition import RemotePodName
from translators.remote_shapes import POD_STATS


def rename_claims(stats: Iterable[Object], claims: Mapping[str, Mapping[str, str]]) -> None:
    """Replaces the names of the remote's PersistentVolumeClaims by those of home, in place.
    ``claims`` are home's names by the home pod's UID and the name of the volume."""
    for pod in stats:
        names = claims.get(str((pod.get("podRef") or {}).get("uid"))) or {}
        for volume in pod.get("volume") or ():
            name = names.get(str(volume.get("name")))
            if name is not None and volume.get("pvcRef"):
                volume["pvcRef"] = {**volume["pvcRef"], "name": name}


def relabel_stats(summary: Object, pods: Mapping[RemotePodName, Origin]) -> list[Object]:
    """The entries of these pods. The pod reference and the namespaces of PersistentVolumeClaims are
    home's; other fields, also unknown ones, are unchanged. Entries of another shape are dropped."""
    relabelled_pods: list[Object] = []
    entries = summary.get("pods")
    for stats in entries if isinstance(entries, list) else ():
        if POD_STATS.wrong(stats, None) is not None:
            continue
        ref = stats.get("podRef") or {}
        home = pods.get(RemotePodName(str(ref.get("namespace")), str(ref.get("name"))))
        if home is None:
            continue
        home_ref = {"name": home.name, "namespace": home.namespace, "uid": home.uid}
        relabelled = {**stats, "podRef": {**ref, **home_ref}}
        if "volume" in stats:
            relabelled["volume"] = [
                {**it, "pvcRef": {**it["pvcRef"], "namespace": home.namespace}}
                if it.get("pvcRef")
                else it
                for it in stats["volume"] or ()
            ]
        relabelled_pods.append(relabelled)
    return relabelled_pods
