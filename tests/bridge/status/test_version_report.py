"""`bridge version`: versions of the command, clusters and bridges."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.base.version import version
from bridge.install import installation_manifests
from bridge.install.installation import Installation
from bridge.node import node_object
from bridge.rbac.rbac_manifests import HomePermissions
from bridge.status import version_report
from sync.kube.api_resources import NODES, SECRETS
from tests.bridge.running_join import running_join
from tests.bridge.two_clusters import CANARY, Clusters, tls_api
from tests.fakeapi import FakeApi
from tests.sync.engine_harness import NODE


@pytest.fixture
async def remote_api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    """A remote whose kubeconfig can be stored in home's cluster."""
    async with tls_api(tmp_path) as api:
        yield api


@pytest.mark.usefixtures("soon")
async def test_versions_of_a_served_node(two: Clusters) -> None:
    two.remote.api.version = "v1.33.1"
    async with running_join(two):
        found = await version_report.collect_versions(two.settings.home)
    assert found["client"]["version"] == version()
    assert found["home"] == {"version": "v1.34.4", "problem": ""}
    [its] = found["nodes"]
    assert (its["name"], its["bridge"]) == (NODE, version())
    assert its["remote"] == {"version": "v1.33.1", "problem": ""}
    assert "(pid " in its["servedBy"]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("may_look", [True, False], ids=["who may look", "who may not"])
async def test_versions_of_an_installed_bridge(two: Clusters, may_look: bool) -> None:
    """The remote's kubeconfig is only in the installation's Secret."""
    async with running_join(two):
        pass
    gone = {node_object.ANNOTATION_KUBECONFIG: "/gone.yaml"}
    two.home.update(NODES, NODE, {"metadata": {"annotations": gone}})
    assert two.settings.remote.path is not None
    wanted = Installation(NODE, "image:1", HomePermissions(nodes=[NODE]))
    for it in installation_manifests.render(wanted, two.settings.remote.path.read_text()):
        two.home.put(it)
    if not may_look:
        two.home.api.authorize = lambda spec: (
            spec["resourceAttributes"]["resource"] != SECRETS.plural
        )
    found = await version_report.collect_versions(two.settings.home)
    [its] = found["nodes"]
    assert its["remote"]["version"] == ("v1.34.4" if may_look else "")
    assert bool(its["remote"]["problem"]) is not may_look
    assert CANARY not in str(found)


async def test_unreachable_home_is_a_problem(two: Clusters) -> None:
    await two.home.stop()
    found = await version_report.collect_versions(two.settings.home)
    assert found["nodes"] == []
    assert found["home"]["version"] == ""
    assert found["home"]["problem"]
    assert CANARY not in str(found)
