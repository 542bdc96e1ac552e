"""The kubeconfig that a Node records, on other machines and for other users."""

from __future__ import annotations

import errno
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge.clusters.connection import connect
from bridge.install.remote_kubeconfig_lookup import resolve_remote_kubeconfig
from bridge.node import node_object
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests import objects
from tests.bridge.two_clusters import Clusters
from tests.sync.engine_harness import NODE

pytestmark = pytest.mark.usefixtures("soon")


async def resolved(two: Clusters, recorded: str) -> KubeconfigRef | None:
    """The kubeconfig for a Node that records this one."""
    node = objects.node(NODE)
    node["metadata"]["annotations"] = {node_object.ANNOTATION_KUBECONFIG: recorded}
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(
            connect(two.settings.home, side="home", notify=lambda _: None)
        )
        return await resolve_remote_kubeconfig(stack, home, node, None, warn=lambda _: None)


async def test_recorded_file_on_this_machine_is_used(two: Clusters) -> None:
    path = two.settings.remote.path
    assert await resolved(two, f"/gone.yaml{os.pathsep}{path}") == KubeconfigRef(
        Path(f"/gone.yaml{os.pathsep}{path}")
    )


@pytest.mark.parametrize("recorded", ["", "/gone.yaml", f"/{'a' * 300}/remote.yaml", "/a\0b"])
async def test_recorded_file_of_another_machine_is_ignored(two: Clusters, recorded: str) -> None:
    assert await resolved(two, recorded) is None


async def test_recorded_file_in_an_unreadable_folder_is_ignored(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat = str(two.settings.remote.path), os.stat

    def denied(file: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(file) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return stat(file, *args, **options)

    monkeypatch.setattr(os, "stat", denied)
    assert await resolved(two, path) is None
