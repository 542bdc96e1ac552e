"""``/stats/summary``: what a kubelet of the remote says of our pods, in home's names. Pure.

The format is k8s.io/kubelet's ``pkg/apis/stats/v1alpha1``. Statistics of other pods, and of the
machine, stay in the remote.
"""

from __future__ import annotations

from collections.abc import Mapping

from translators.identity import Origin
from translators.objects import Object
from translators.pod_metrics.exposition import RemotePodName


def relabel_stats(summary: Object, pods: Mapping[RemotePodName, Origin]) -> list[Object]:
    """The entries of these pods: reference, and the namespace of the claims of its volumes, are
    home's; everything else is as it came, known here or not."""
    found = []
    for stats in summary.get("pods") or ():
        ref = stats.get("podRef") or {}
        home = pods.get(RemotePodName(str(ref.get("namespace")), str(ref.get("name"))))
        if home is not None:
            found.append(_of(stats, home))
    return found


def _of(stats: Object, home: Origin) -> Object:
    ref = {"name": home.name, "namespace": home.namespace, "uid": home.uid}
    ours = {**stats, "podRef": {**stats["podRef"], **ref}}
    if "volume" in stats:
        ours["volume"] = [_volume(volume, home) for volume in stats["volume"] or ()]
    return ours


def _volume(volume: Object, home: Origin) -> Object:
    claim = volume.get("pvcRef")
    if not claim:
        return volume
    return {**volume, "pvcRef": {**claim, "namespace": home.namespace}}
