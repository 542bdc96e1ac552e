"""A tenant's Secret with an installation's labels: no command uses its kubeconfig."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.base.command_error import PreflightError
from bridge.bug_report.collector import BugReportSettings, collect
from bridge.checks import check_runner
from bridge.checks.check_runner import NodeCheckSettings
from bridge.checks.findings import Severity
from bridge.explain.cluster_lookup import ExplainSettings, look_up_pod
from bridge.install import installation, installation_manifests
from bridge.install.installation import Installation
from bridge.leave.leave_procedure import leave
from bridge.leave.leave_summary import LeaveSettings
from bridge.node import node_object
from bridge.rbac.rbac_manifests import HomePermissions
from bridge.status import version_report
from sync.kube.api_resources import CLUSTER_ROLE_BINDINGS, NODES, SECRETS, Object
from sync.kube.bearer_token import RenewedToken, origin_of
from tests.bridge.two_clusters import CANARY, Clusters, tls_api
from tests.fakeapi import FakeApi
from tests.fakeapi.kubeconfig import kubeconfig, plugin
from tests.objects import node, pod
from tests.sync.engine_harness import NODE
from translators.ownership_labels import LABEL_VIRTUAL

pytestmark = pytest.mark.usefixtures("soon")

WANTED = Installation(NODE, "image:1", HomePermissions(nodes=[NODE]))
TENANT = "a-tenant"


@pytest.fixture
async def remote_api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    """A remote whose kubeconfig can be stored in home's cluster."""
    async with tls_api(tmp_path) as api:
        yield api


@pytest.fixture
def two(two: Clusters) -> Clusters:
    """A Node whose kubeconfig is not on this machine."""
    its = node(NODE)
    its["metadata"]["labels"] = {node_object.LABEL_REMOTE: "id", LABEL_VIRTUAL: "true"}
    its["metadata"]["annotations"] = {
        node_object.ANNOTATION_KUBECONFIG: "/gone.yaml",
        node_object.ANNOTATION_INSTALLATION: WANTED.namespace,
    }
    two.home.put(its)
    return two


def install(two: Clusters, **cluster: str) -> None:
    """Installs a bridge whose stored kubeconfig has these fields of the cluster besides."""
    assert two.settings.remote.path is not None
    content = yaml.safe_load(two.settings.remote.path.read_text())
    content["clusters"][0]["cluster"] |= cluster
    for manifest in installation_manifests.render(WANTED, yaml.safe_dump(content)):
        two.home.put(manifest)


def plant(two: Clusters, content: Object, namespace: str = TENANT, name: str = "planted") -> None:
    """A Secret with the labels of the node's installation."""
    meta = {"name": name, "namespace": namespace, "labels": installation.labels(NODE)}
    data = {
        installation.KUBECONFIG_KEY: base64.b64encode(yaml.safe_dump(content).encode()).decode()
    }
    two.home.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data})


def hostile(two: Clusters, folder: Path) -> tuple[Object, Path]:
    """A kubeconfig that runs a program, and the file that the program creates."""
    marker = folder / "executed"
    user = plugin(folder / "plugin", f"touch {marker}\n")
    return kubeconfig(two.remote.url, user=user), marker


async def everything(two: Clusters) -> str:
    """The output of all commands that search the remote; `leave` is not confirmed."""
    home = two.settings.home
    lines: list[str] = []
    checked = await check_runner.check_nodes(NodeCheckSettings(home, ""))
    lines += [it.found for it in checked.findings if it.severity is Severity.WARNING]
    lines.append(str((await version_report.collect_versions(home))["nodes"]))
    report = await collect(BugReportSettings(home), notify=lines.append)
    lines += [problem.text for problem in report.problems]
    two.home.put(pod("web"))
    lines += (await look_up_pod(ExplainSettings(home, None, "default", "web"))).not_checked
    try:
        assert not await leave(
            LeaveSettings(NODE, home, None, force=False),
            notify=lines.append,
            confirm=lambda _: False,
        )
    except PreflightError as error:
        lines.append(str(error))
    return "\n".join(lines)


def warned(notified: str, secret: str) -> int:
    return sum(f"Secret {secret} is ignored" in line for line in notified.splitlines())


async def test_renewed_token_in_the_state_secret_is_used_and_written_to_no_file(
    two: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file would stay when the process is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    install(two)
    now = datetime.now(UTC)
    renewed = RenewedToken(origin_of(CANARY), "next", now, now + timedelta(hours=1))
    content = base64.b64encode(renewed.encode()).decode()
    patch = {"data": {"renewed-token": content}}
    namespace, name = WANTED.state_secret
    two.home.update(SECRETS, name, patch, namespace)
    two.remote.token = "next"
    checked = await check_runner.check_nodes(NodeCheckSettings(two.settings.home, ""))
    [its] = [it for it in checked.findings if it.id == "BRG103" and it.side == "remote"]
    assert its.severity is Severity.OK
    report = await everything(two)
    assert "does not accept" not in report


async def test_stored_kubeconfig_that_cannot_be_used_is_named_by_its_secret(two: Clusters) -> None:
    """Not by a path of the process, which is of no use to the user."""
    install(two, **{"certificate-authority-data": "bm8gUEVN"})
    secret = f"Secret {WANTED.namespace}/"
    checked = await check_runner.check_nodes(NodeCheckSettings(two.settings.home, ""))
    [finding] = [
        found for found in checked.findings if (found.id, found.side) == ("BRG102", "remote")
    ]
    assert finding.severity is Severity.ERROR
    assert secret in finding.found
    report = await everything(two)
    assert secret in report
    assert "/proc/self" not in finding.found + report


@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "not installed"])
async def test_a_tenants_kubeconfig_is_not_executed_and_the_warning_names_its_secret(
    two: Clusters, tmp_path: Path, is_installed: bool
) -> None:
    if is_installed:
        install(two)
    content, marker = hostile(two, tmp_path)
    plant(two, content)
    notified = await everything(two)
    assert not marker.exists()
    assert warned(notified, f"{TENANT}/planted") >= 5
    assert bool(two.remote.log) is is_installed, "the installation's own Secret is used"


async def test_a_tenants_kubeconfig_that_looks_valid_is_not_used_either(two: Clusters) -> None:
    async with FakeApi() as theirs:
        plant(two, kubeconfig(theirs.url.replace("http:", "https:"), user={"token": "theirs"}))
        notified = await everything(two)
        assert theirs.log == []
    assert warned(notified, f"{TENANT}/planted") >= 5


async def test_a_token_file_in_the_installations_namespace_is_not_sent(
    two: Clusters, tmp_path: Path
) -> None:
    secret_file = tmp_path / "id_rsa"
    secret_file.write_text(CANARY)
    install(two)
    two.home.remove(SECRETS, WANTED.name, WANTED.namespace)
    assert two.settings.remote.path is not None
    content = yaml.safe_load(two.settings.remote.path.read_text())
    content["users"][0]["user"] = {"tokenFile": str(secret_file)}
    plant(two, content, WANTED.namespace, WANTED.name)
    notified = await everything(two)
    assert two.remote.log == []
    assert "users[0].user.tokenFile is a field that the installer does not write" in notified
    assert warned(notified, f"{WANTED.namespace}/{WANTED.name}") >= 5


async def test_a_node_annotation_alone_does_not_make_a_namespace_trusted(two: Clusters) -> None:
    """A kubelet of home can annotate its Node, but cannot write a ClusterRoleBinding."""
    assert two.settings.remote.path is not None
    content = yaml.safe_load(two.settings.remote.path.read_text())
    plant(two, content, WANTED.namespace)
    notified = await everything(two)
    assert two.remote.log == []
    assert warned(notified, f"{WANTED.namespace}/planted") >= 5


async def test_the_namespace_that_the_node_records_counts_where_bindings_cannot_be_listed(
    two: Clusters,
) -> None:
    install(two)

    def authorize(spec: dict[str, Any]) -> bool:
        attributes = spec["resourceAttributes"]
        if attributes["resource"] == SECRETS.plural:
            return bool(attributes.get("namespace") == WANTED.namespace)
        return bool(attributes["resource"] != CLUSTER_ROLE_BINDINGS.plural)

    two.home.api.authorize = authorize
    [its] = (await version_report.collect_versions(two.settings.home))["nodes"]
    assert its["remote"] == {"version": "v1.34.4", "problem": ""}


async def test_the_webhooks_secret_is_no_kubeconfig(two: Clusters) -> None:
    """The webhook's ServiceAccount can write that Secret and its labels."""
    install(two)
    two.home.remove(SECRETS, WANTED.name, WANTED.namespace)
    assert two.settings.remote.path is not None
    content = yaml.safe_load(two.settings.remote.path.read_text())
    plant(two, content, WANTED.namespace, installation.webhook_name(NODE))
    await everything(two)
    assert two.remote.log == []


async def test_leave_keeps_tenant_objects_with_installation_labels(two: Clusters) -> None:
    install(two)
    plant(two, {})
    for kind in ("Role", "RoleBinding"):
        meta = {"name": "theirs", "namespace": TENANT, "labels": installation.labels(NODE)}
        api = "rbac.authorization.k8s.io/v1"
        two.home.put({"apiVersion": api, "kind": kind, "metadata": meta, "roleRef": {}})
    lines: list[str] = []

    def refuse(confirmed: list[str]) -> bool:
        lines.extend(confirmed)
        return False

    two.home.remove(NODES, NODE)
    settings = LeaveSettings(NODE, two.settings.home, two.settings.remote, force=True)
    assert not await leave(settings, notify=lines.append, confirm=refuse)
    removed = [it for it in lines if it.startswith("home:   ")]
    assert any(WANTED.name in it for it in removed)
    assert not any(TENANT in it for it in removed)
