"""Translates ``/stats/summary`` of the remote's kubelets to home's pod names. Pure.

The format is ``pkg/apis/stats/v1alpha1`` of k8s.io/kubelet. Statistics of unmanaged pods and of the
node stay in the remote.
"""

from __future__ import annotations

from collections.abc import Mapping

from translators.objects import Object
from translators.ownership_labels import Origin
from translators.pod_metrics.exposition import RemotePodName


def relabel_stats(summary: Object, pods: Mapping[RemotePodName, Origin]) -> list[Object]:
    """The entries of these pods. The pod reference and the namespaces of PersistentVolumeClaims are
    home's; other fields, also unknown ones, are unchanged."""
    found = []
    for stats in summary.get("pods") or ():
        ref = stats.get("podRef") or {}
        home = pods.get(RemotePodName(str(ref.get("namespace")), str(ref.get("name"))))
        if home is not None:
            found.append(_relabel_pod(stats, home))
    return found


def _relabel_pod(stats: Object, home: Origin) -> Object:
    ref = {"name": home.name, "namespace": home.namespace, "uid": home.uid}
    relabelled = {**stats, "podRef": {**stats["podRef"], **ref}}
    if "volume" in stats:
        relabelled["volume"] = [_relabel_volume(volume, home) for volume in stats["volume"] or ()]
    return relabelled


def _relabel_volume(volume: Object, home: Origin) -> Object:
    claim = volume.get("pvcRef")
    if not claim:
        return volume
    return {**volume, "pvcRef": {**claim, "namespace": home.namespace}}
