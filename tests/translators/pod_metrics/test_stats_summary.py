"""``/stats/summary``: whose statistics pass, and that nothing about them is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from tests.translators.pod_metrics.test_exposition import OURS
from tests.translators.strategies import json_maps
from translators.objects import Object
from translators.pod_metrics.stats_summary import relabel_stats


def entry(namespace: str, name: str, **stats: Any) -> Object:
    ref = {"namespace": namespace, "name": name, "uid": "remote-1", "future": "kept"}
    return {"podRef": ref, **stats}


def test_pods_are_named_as_home_does_and_foreign_ones_left_out() -> None:
    pods = [entry("shop-h", "web", cpu={"usageNanoCores": 5}), entry("kube-system", "dns")]
    node = {"nodeName": "secret"}
    assert relabel_stats({"node": node, "pods": pods}, OURS) == [
        {
            "podRef": {"namespace": "shop", "name": "web", "uid": "home-1", "future": "kept"},
            "cpu": {"usageNanoCores": 5},
        }
    ]


def test_claims_of_volumes_are_in_homes_namespace() -> None:
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
def test_what_is_not_known_here_is_passed_on(stats: Object) -> None:
    (pod,) = relabel_stats({"pods": [entry("shop-h", "web", **stats)]}, OURS)
    assert {key: pod[key] for key in stats} == stats


def test_a_summary_without_pods_has_none() -> None:
    assert relabel_stats({}, OURS) == []
    assert relabel_stats({"pods": None}, OURS) == []
    assert relabel_stats({"pods": [{}]}, OURS) == []
