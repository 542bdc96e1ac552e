"""BRG508: which Pod Security levels the remote namespaces enforce."""

from __future__ import annotations

from bridge.checks import check_runner
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.findings import Severity
from bridge.node import join_record
from sync.kube.api_resources import NAMESPACES
from tests.bridge.checks.report_queries import finding_of, findings_of
from tests.bridge.two_clusters import Clusters
from tests.objects import node
from tests.sync.engine_harness import NODE, EngineHarness
from translators.object_accessors import uid_of
from translators.ownership_labels import LABEL_HOME, LABEL_VIRTUAL
from translators.pod_security import LABEL_ENFORCE
from translators.translation_options import Policy
from translators.virtual_node_identity import home_id_from_uid

_RULE = "new namespaces have the level of the home namespace, or baseline"


async def test_limit_is_reported_before_join(two: Clusters) -> None:
    its = finding_of(
        await check_runner.check_before_join(two.but(pod_security="baseline")), "BRG508"
    )
    assert its.severity is Severity.OK
    assert its.found == f"{_RULE}; --pod-security baseline is the loosest"


async def test_namespaces_of_a_node_are_reported_by_level(two: Clusters) -> None:
    home = home_id_from_uid(uid_of(two.home.get(NAMESPACES, "kube-system")))
    for name, level in (("a", None), ("b", "baseline"), ("c", "privileged")):
        labels = {LABEL_HOME: home, **({LABEL_ENFORCE: level} if level else {})}
        meta = {"name": name, "labels": labels}
        two.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    made = EngineHarness(two.home, two.remote).policy
    virtual = node(NODE)
    policy = Policy(made.identity, made.node_address, pod_security="restricted")
    virtual["metadata"] |= {
        "labels": {LABEL_VIRTUAL: "true", "cluster-bridge.io/remote": "r"},
        "annotations": {join_record.ANNOTATION_OPTIONS: join_record.encode_policy(policy)},
    }
    two.home.put(virtual)
    settings = NodeCheckSettings(two.settings.home, remote=two.settings.remote)
    found = findings_of(await check_runner.check_nodes(settings), "BRG508")
    assert [(it.severity, it.found) for it in found] == [
        (Severity.OK, f"{_RULE}; --pod-security restricted is the loosest"),
        (Severity.WARNING, "no level is enforced: a"),
        (Severity.INFO, "privileged is enforced: c"),
        (Severity.INFO, "baseline is enforced: b"),
    ]
    assert "--pod-security baseline" in found[2].advice
