"""The manifests of the dashboard: least permissions, a closed NetworkPolicy, a restricted pod."""

from __future__ import annotations

from typing import Any

from bridge.dashboard.dashboard_manifests import NAME, DashboardInstallation, dashboard_objects

WRITES = {"create", "update", "patch", "delete", "deletecollection", "*"}


def made(**options: Any) -> dict[str, dict[str, Any]]:
    """The objects by kind."""
    objects = dashboard_objects(DashboardInstallation("image:1", "seen", **options))
    return {it["kind"]: it for it in objects}


def container(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    [found] = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_dashboard_writes_nothing_but_reviews_and_reads_no_secret() -> None:
    rules = made(nodes=["far"])["ClusterRole"]["rules"]
    written = {it for rule in rules if WRITES & {*rule["verbs"]} for it in rule["resources"]}
    assert written == {"tokenreviews", "subjectaccessreviews"}
    read = {it for rule in rules if not WRITES & {*rule["verbs"]} for it in rule["resources"]}
    assert read == {"nodes", "pods", "nodes/proxy"}
    [proxy] = [it for it in rules if "nodes/proxy" in it["resources"]]
    assert (proxy["verbs"], proxy["resourceNames"]) == (["get"], ["far"])


def test_bridges_are_queried_for_named_nodes_alone() -> None:
    assert "proxy" not in str(made()["ClusterRole"])


def test_no_one_is_a_viewer_until_bound() -> None:
    objects = made()
    assert "RoleBinding" not in objects
    [subject] = objects["ClusterRoleBinding"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": NAME, "namespace": "seen"}
    viewer = {
        "apiGroups": [""],
        "resources": ["services/proxy"],
        "verbs": ["get"],
        "resourceNames": [NAME],
    }
    assert (objects["Role"]["metadata"]["namespace"], objects["Role"]["rules"]) == (
        "seen",
        [viewer],
    )
    # The name by which the server decides, and that of the Service.
    assert f"--service=seen/{NAME}" in container(objects)["args"]
    assert objects["Service"]["metadata"]["name"] == NAME


def test_network_policy_admits_named_namespaces_alone() -> None:
    closed = made()["NetworkPolicy"]["spec"]
    assert (closed["policyTypes"], closed["ingress"]) == (["Ingress"], [])
    [rule] = made(allow_from=["ingress"])["NetworkPolicy"]["spec"]["ingress"]
    label = {"kubernetes.io/metadata.name": "ingress"}
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": label}}]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8443}]
    selected = closed["podSelector"]["matchLabels"]
    assert selected == made()["Deployment"]["spec"]["template"]["metadata"]["labels"]


def test_pod_meets_the_restricted_standard_and_is_probed_by_https() -> None:
    found = container(made())
    assert found["securityContext"]["allowPrivilegeEscalation"] is False
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[probe]["httpGet"]["scheme"] == "HTTPS"


def test_certificate_of_a_secret_is_mounted_read_only() -> None:
    found = container(made(tls_secret="page"))
    [mount] = [it for it in found["volumeMounts"] if it["name"] == "tls"]
    assert mount["readOnly"] is True
    assert f"--tls-cert-file={mount['mountPath']}/tls.crt" in found["args"]
    assert f"--tls-private-key-file={mount['mountPath']}/tls.key" in found["args"]
