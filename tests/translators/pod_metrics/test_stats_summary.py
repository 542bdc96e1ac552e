"""Translation of ``/stats/summary``."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from tests.translators.pod_metrics.test_exposition import OURS
from tests.translators.strategies import json_maps
from tests.translators.test_remote_shapes import WRONG, places, replaced
from translators.object_accessors import Object
from translators.pod_metrics.stats_summary import relabel_stats, rename_claims


def entry(namespace: str, name: str, **stats: Any) -> Object:
    ref = {"namespace": namespace, "name": name, "uid": "remote-1", "future": "kept"}
    return {"podRef": ref, **stats}


def test_pods_have_home_names_and_unmanaged_pods_are_dropped() -> None:
    pods = [entry("shop-h", "web", cpu={"usageNanoCores": 5}), entry("kube-system", "dns")]
    node = {"nodeName": "secret"}
    assert relabel_stats({"node": node, "pods": pods}, OURS) == [
        {
            "podRef": {"namespace": "shop", "name": "web", "uid": "home-1", "future": "kept"},
            "cpu": {"usageNanoCores": 5},
        }
    ]


def test_pvc_references_have_homes_namespace() -> None:
    volumes = [
        {"name": "data", "usedBytes": 3, "pvcRef": {"name": "data", "namespace": "shop-h"}},
        {"name": "scratch", "usedBytes": 4},
    ]
    (pod,) = relabel_stats({"pods": [entry("shop-h", "web", volume=volumes)]}, OURS)
    assert pod["volume"] == [
        {"name": "data", "usedBytes": 3, "pvcRef": {"name": "data", "namespace": "shop"}},
        {"name": "scratch", "usedBytes": 4},
    ]
    assert volumes[0]["pvcRef"] == {"name": "data", "namespace": "shop-h"}, "as it came"


@given(json_maps)
def test_unknown_fields_are_kept(stats: Object) -> None:
    (pod,) = relabel_stats({"pods": [entry("shop-h", "web", **stats)]}, OURS)
    assert {key: pod[key] for key in stats} == stats


def test_summary_without_pods_is_empty() -> None:
    assert relabel_stats({}, OURS) == []
    assert relabel_stats({"pods": None}, OURS) == []
    assert relabel_stats({"pods": [{}]}, OURS) == []


def test_wrong_types_in_any_part_are_left_out() -> None:
    stats = {
        "podRef": {"name": "web", "namespace": "shop-h", "uid": "r"},
        "volume": [{"name": "v", "pvcRef": {"name": "p", "namespace": "shop-h"}}],
    }
    whole = {"pods": [stats, stats]}
    for path in places(whole):
        for value in WRONG:
            relabel_stats(replaced(whole, path, value), OURS)
    assert len(relabel_stats({"pods": [*WRONG, stats]}, OURS)) == 1


def test_claims_have_the_names_of_home() -> None:
    claim = {"name": "data-0123", "namespace": "shop"}
    stats: list[Object] = [
        {
            "podRef": {"name": "db-0", "namespace": "shop", "uid": "u"},
            "volume": [{"name": "data", "pvcRef": claim}, {"name": "tmp"}],
        },
        {"podRef": {"uid": "other"}, "volume": [{"name": "data", "pvcRef": claim}]},
    ]
    rename_claims(stats, {"u": {"data": "data-db-0", "tmp": "no"}})
    assert stats[0]["volume"] == [
        {"name": "data", "pvcRef": {"name": "data-db-0", "namespace": "shop"}},
        {"name": "tmp"},
    ]
    assert stats[1]["volume"] == [{"name": "data", "pvcRef": claim}]
