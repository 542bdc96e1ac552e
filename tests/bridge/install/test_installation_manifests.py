"""Rendered objects, and the manifests shipped with them. e2e/ compares the chart, with helm."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.base.join_settings import NetworkChoice
from bridge.install import installation, installation_manifests
from bridge.install.installation import Installation
from bridge.rbac.rbac_manifests import HomePermissions
from tests.bridge.install import chart_policy, chart_schema, kustomize_base

KUBECONFIG = "canary-4711"
CHART = Path(__file__).parents[3] / "manifests" / "chart" / "templates"


def wanted(node: str = "far", **more: Any) -> Installation:
    return Installation(node, "image:1", HomePermissions(nodes=[node]), **more)


def rendered(what: Installation, kind: str) -> list[dict[str, Any]]:
    return [it for it in installation_manifests.render(what, KUBECONFIG) if it["kind"] == kind]


def test_kustomize_base_equals_the_rendered_objects() -> None:
    """To update the file: python -m tests.bridge.install.kustomize_base."""
    assert list(yaml.safe_load_all(kustomize_base.FILE.read_text())) == kustomize_base.base()
    listed = yaml.safe_load((kustomize_base.FOLDER / "kustomization.yaml").read_text())
    assert listed["resources"] == [kustomize_base.FILE.name]


def test_schema_of_the_chart_has_the_options_of_join() -> None:
    """To update the file: python -m tests.bridge.install.chart_schema."""
    assert chart_schema.FILE.read_text() == chart_schema.content()


def test_policy_of_the_chart_equals_the_rendered_one() -> None:
    """To update the file: python -m tests.bridge.install.chart_policy."""
    assert chart_policy.FILE.read_text() == chart_policy.template()


def test_kustomize_component_equals_the_rendered_webhook() -> None:
    """To update the file: python -m tests.bridge.install.kustomize_base."""
    assert (
        list(yaml.safe_load_all(kustomize_base.WEBHOOK_FILE.read_text()))
        == kustomize_base.component()
    )
    listed = yaml.safe_load((kustomize_base.COMPONENT / "kustomization.yaml").read_text())
    assert listed["resources"] == [kustomize_base.WEBHOOK_FILE.name]


def test_credential_is_only_in_the_secret() -> None:
    made = installation_manifests.render(wanted(), KUBECONFIG)
    secret = next(it for it in made if it["kind"] == "Secret")
    assert base64.b64decode(secret["data"]["kubeconfig"]).decode() == KUBECONFIG
    assert KUBECONFIG not in str([it for it in made if it["kind"] != "Secret"])


@pytest.mark.parametrize("webhook", [False, True])
def test_two_nodes_share_only_the_namespace(webhook: bool) -> None:
    def names(node: str) -> set[tuple[str, str, str]]:
        return {
            (it["kind"], it["metadata"].get("namespace", ""), it["metadata"]["name"])
            for it in installation_manifests.render(
                wanted(node, offload_webhook=webhook), KUBECONFIG
            )
        }

    assert names("near") & names("far") == {("Namespace", "", "cluster-bridge")}


def test_webhook_is_rendered_beside_the_bridge() -> None:
    """The selectors of the bridges and of the webhook match only their own pods."""
    plain, made = (
        installation_manifests.render(wanted(offload_webhook=it), KUBECONFIG)
        for it in (False, True)
    )
    assert made[: len(plain)] == plain
    added = made[len(plain) :]
    assert {it["metadata"]["name"] for it in added if it["kind"] != "Role"} >= {
        "cluster-bridge-far-offload"
    }
    assert added[-1]["kind"] == "MutatingWebhookConfiguration", "it comes last, and goes first"
    assert not next(it for it in added if it["kind"] == "Secret").get("data")
    bridge, webhook = (it for it in made if it["kind"] == "Deployment")
    for one, other in ((bridge, webhook), (webhook, bridge)):
        selects = one["spec"]["selector"]["matchLabels"].items()
        assert selects <= one["spec"]["template"]["metadata"]["labels"].items()
        assert not selects <= other["spec"]["template"]["metadata"]["labels"].items()
    assert bridge["spec"]["replicas"] == webhook["spec"]["replicas"]
    own = installation.labels("far").items()
    assert all(own <= it["metadata"]["labels"].items() for it in added)


def test_webhook_uses_the_log_format_of_the_bridge() -> None:
    made = installation_manifests.render(
        wanted(offload_webhook=True, arguments=["--share=0.5", "--log-format=json"]), KUBECONFIG
    )
    bridge, webhook = (
        it["spec"]["template"]["spec"]["containers"][0]["args"]
        for it in made
        if it["kind"] == "Deployment"
    )
    assert "--log-format=json" in bridge
    assert webhook[-1] == "--log-format=json"
    assert "--share=0.5" not in webhook


def test_webhook_may_only_change_its_own_objects() -> None:
    what = wanted(offload_webhook=True, namespace="ns")
    roles = [*rendered(what, "ClusterRole"), *rendered(what, "Role")]
    own = [it for it in roles if it["metadata"]["name"].endswith(":webhook")]
    rules = [rule for it in own for rule in it["rules"]]
    assert {it["metadata"].get("namespace") for it in own} == {None, "ns"}
    for rule in rules:
        reads = set(rule["verbs"]) <= {"get", "list", "watch"}
        assert rule.get("resourceNames") == ["cluster-bridge-far-offload"] or (
            reads and rule["resources"] == ["namespaces"]
        )


def test_webhook_name_is_a_valid_service_name() -> None:
    nodes = ("far", "far.example", "far-example", "a" * 253, "b." * 100 + "b", "c" * 60 + ".d")
    names = [installation.webhook_name(it) for it in nodes]
    assert len({*names}) == len(names)
    for name in names:
        assert len(name) <= 63
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_disruption_budgets_always_allow_unhealthy_pods() -> None:
    budgets = rendered(wanted(offload_webhook=True), "PodDisruptionBudget")
    assert len(budgets) == 2
    for budget in budgets:
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert budget["spec"]["maxUnavailable"] == 1


def test_disruption_budgets_of_the_chart_always_allow_unhealthy_pods() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in CHART.iterdir())
    assert text.count("kind: PodDisruptionBudget") == 2
    assert text.count("unhealthyPodEvictionPolicy: AlwaysAllow") == 2


def test_container_meets_the_restricted_standard() -> None:
    for made in rendered(wanted(offload_webhook=True), "Deployment"):
        spec = made["spec"]["template"]["spec"]
        container = spec["containers"][0]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_long_node_name_fits() -> None:
    node = "a" * 253
    made = installation_manifests.render(wanted(node), KUBECONFIG)
    assert all(len(it["metadata"]["name"]) <= 300 for it in made)
    deployment = next(it for it in made if it["kind"] == "Deployment")
    assert len(deployment["metadata"]["name"]) <= 253
    assert all(len(value) <= 63 for value in deployment["metadata"]["labels"].values())
    assert deployment["metadata"]["annotations"][installation.ANNOTATION_NODE] == node


def test_network_policy_limits_relay_sources() -> None:
    def policies(network: NetworkChoice, *who: str) -> list[dict[str, Any]]:
        rights = HomePermissions(nodes=["far"], network=network)
        what = Installation("far", "image:1", rights, port=10251, relay_from=who)
        return rendered(what, "NetworkPolicy")

    assert policies("flat") == policies("none") == []
    (policy,) = policies("auto")
    deployment = rendered(wanted(), "Deployment")[0]
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    machines, clients = policy["spec"]["ingress"]
    assert "from" not in machines
    assert [it["port"] for it in machines["ports"]] == [10251, installation_manifests.HEALTH_PORT]
    assert clients == {"from": [{"namespaceSelector": {}}]}
    (policy,) = policies("relay", "shop", "10.0.0.0/16")
    shop = {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
    assert policy["spec"]["ingress"][1] == {
        "from": [{"namespaceSelector": shop}, {"ipBlock": {"cidr": "10.0.0.0/16"}}]
    }


def test_arguments_are_escaped() -> None:
    made = installation_manifests.container_arguments(wanted(arguments=["--labels=a=$(POD_IP)"]))
    assert made[-1] == "--labels=a=$$(POD_IP)"


@pytest.mark.parametrize(("everywhere", "count"), [(False, 1), (True, 2)])
def test_requested_namespaces_are_bound(everywhere: bool, count: int) -> None:
    bound = () if everywhere else ("shop",)
    what = wanted(all_namespaces=everywhere, bound_namespaces=bound)
    assert len(rendered(what, "ClusterRoleBinding")) == count
    places = [it["metadata"]["namespace"] for it in rendered(what, "RoleBinding")]
    assert ("shop" in places) is not everywhere
