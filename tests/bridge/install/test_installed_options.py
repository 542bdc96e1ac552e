"""The parameters of an installation, read back from its objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bridge.base.command_error import PreflightError
from bridge.install import installation_manifests, server_side_apply
from bridge.install.installation import Installation
from bridge.install.installed_options import find_installed_options
from bridge.rbac import rbac_manifests
from bridge.rbac.rbac_manifests import HomePermissions
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from tests.bridge.install.kubeconfigs import CANARY, config
from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import NODE

KUBECONFIG = yaml.safe_dump(config())
DEFAULT = Installation(NODE, "cluster-bridge:0.0.9", HomePermissions(nodes=[NODE]))


@pytest.fixture
async def client(two: Clusters) -> AsyncIterator[KubeClient]:
    async with KubeClient(await load(two.settings.home, side="home")) as found:
        yield found


async def apply(client: KubeClient, wanted: Installation, kubeconfig: str = KUBECONFIG) -> None:
    made = installation_manifests.render(wanted, kubeconfig)
    await server_side_apply.apply(
        client, made, node=wanted.node, dry_run=False, notify=lambda _: None
    )


async def test_options_of_an_installation_are_read_back(client: KubeClient) -> None:
    await apply(
        client,
        replace(
            DEFAULT,
            image="registry.example/bridge:2",
            permissions=HomePermissions([NODE], "none", "csr", "relay"),
            arguments=["--share=0.5", "--labels=a=$(b)"],
            namespace="infra",
            replicas=3,
            bound_namespaces=["default", "kube-system"],
            port=10251,
            relay_from=["shop", "10.0.0.0/16"],
            offload_webhook=True,
        ),
    )
    found = await find_installed_options(client, NODE)
    assert found.image == "registry.example/bridge:2"
    assert list(found.arguments) == [
        "--port=10251",
        "--network=relay",
        "--service-accounts=none",
        "--serving-certificate=csr",
        "--share=0.5",
        "--labels=a=$(b)",
    ]
    assert (found.namespace, found.replicas) == ("infra", 3)
    assert (sorted(found.bound_namespaces), found.all_namespaces) == (
        ["default", "kube-system"],
        False,
    )
    assert (found.offload_webhook, list(found.relay_from)) == (True, ["shop", "10.0.0.0/16"])
    assert found.kubeconfig == KUBECONFIG
    assert CANARY not in str(found)


async def test_options_that_were_not_named_are_not_read(client: KubeClient) -> None:
    await apply(client, replace(DEFAULT, all_namespaces=True))
    found = await find_installed_options(client, NODE)
    assert found.image is None
    assert list(found.arguments) == ["--port=10250"]
    assert (list(found.bound_namespaces), found.all_namespaces) == ([], True)
    assert (found.offload_webhook, list(found.relay_from)) == (False, [])


async def test_namespaces_that_were_bound_by_hand_are_not_options(
    two: Clusters, client: KubeClient
) -> None:
    await apply(client, DEFAULT)
    for it in rbac_manifests.namespace_bindings(DEFAULT.account, ["default"]):
        two.home.put(it)
    assert list((await find_installed_options(client, NODE)).bound_namespaces) == []


async def test_rejected_kubeconfig_is_not_read(client: KubeClient, tmp_path: Path) -> None:
    plugin = yaml.safe_dump(config(user={"exec": {"command": str(tmp_path / "x")}}))
    await apply(client, DEFAULT, plugin)
    assert (await find_installed_options(client, NODE)).kubeconfig is None


async def test_missing_installation_is_an_error(client: KubeClient) -> None:
    with pytest.raises(PreflightError, match=f"no installation of node {NODE} was found"):
        await find_installed_options(client, NODE)
