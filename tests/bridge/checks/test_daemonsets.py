"""BRG507: which DaemonSets of home have a pod on the virtual node."""

from __future__ import annotations

from typing import Any

from bridge.checks import check_runner
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.findings import Severity
from bridge.node import join_record
from tests.bridge.checks.report_queries import finding_of, findings_of
from tests.bridge.two_clusters import Clusters
from tests.objects import node
from tests.sync.engine_harness import NODE, EngineHarness
from translators.object_accessors import Object

_TAINT = {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"}
_LABELS = {"cluster-bridge.io/virtual-node": "true", "cluster-bridge.io/remote": "r"}


def _daemon_set(name: str, **spec: Any) -> Object:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [], **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }


def _put_daemon_sets(two: Clusters) -> None:
    everything = [{"operator": "Exists"}]
    affinity = {"key": "cluster-bridge.io/virtual-node", "operator": "DoesNotExist"}
    terms = [{"matchExpressions": [affinity]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    two.home.put(_daemon_set("proxy", tolerations=everything, hostNetwork=True))
    two.home.put(_daemon_set("logs", tolerations=everything))
    two.home.put(_daemon_set("intolerant"))
    kept_off = {"nodeAffinity": required}
    two.home.put(_daemon_set("kept-off", tolerations=everything, affinity=kept_off))


def _put_node(two: Clusters, **policy: Any) -> None:
    virtual = node(NODE)
    virtual["metadata"]["labels"] = dict(_LABELS)
    made = EngineHarness(two.home, two.remote).policy
    options = join_record.encode_policy(type(made)(made.identity, made.node_address, **policy))
    virtual["metadata"]["annotations"] = {join_record.ANNOTATION_OPTIONS: options}
    virtual["spec"] = {"taints": [_TAINT]}
    two.home.put(virtual)


async def test_skipped_daemonsets_are_named_before_join(two: Clusters) -> None:
    _put_daemon_sets(two)
    its = finding_of(await check_runner.check_before_join(two.but(taints=(_TAINT,))), "BRG507")
    assert its.severity is Severity.INFO
    assert its.found.startswith("skipped")
    assert "kube-system/proxy" in its.found
    assert "kube-system/logs" in its.found
    assert "intolerant" not in its.found
    assert "kept-off" not in its.found
    assert "node affinity" in its.advice


async def test_running_and_skipped_daemonsets_of_node_are_named(two: Clusters) -> None:
    _put_daemon_sets(two)
    _put_node(two, daemonsets="run")
    found = findings_of(
        await check_runner.check_nodes(NodeCheckSettings(two.settings.home)), "BRG507"
    )
    assert {(it.severity, it.found) for it in found} == {
        (Severity.INFO, "run in the remote (--daemonsets run): kube-system/logs"),
        (
            Severity.WARNING,
            "cannot run in the remote; skipped, counted as available: kube-system/proxy",
        ),
    }


async def test_home_without_daemonsets_passes(two: Clusters) -> None:
    two.home.put(_daemon_set("intolerant"))
    its = finding_of(await check_runner.check_before_join(two.but(taints=(_TAINT,))), "BRG507")
    assert its.severity is Severity.OK


async def test_missing_permission_to_list_daemonsets_is_not_checked(two: Clusters) -> None:
    _put_daemon_sets(two)
    two.home.api.authorize = lambda spec: spec["resourceAttributes"].get("resource") != "daemonsets"
    its = finding_of(await check_runner.check_before_join(two.settings), "BRG507")
    assert (its.severity, "may not list daemonsets" in its.found) == (Severity.INFO, True)
    assert not two.home.requests("GET", "*/daemonsets")
