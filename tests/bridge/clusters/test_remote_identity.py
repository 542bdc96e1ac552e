"""The UIDs that identify the remote."""

from __future__ import annotations

import json

import pytest

from bridge.clusters.remote_identity import SYSTEM, read_remote_identity
from sync.kube.api_errors import MalformedResponse
from sync.kube.client import KubeClient
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.fakeapi.credentials import credentials_for
from translators.object_accessors import Object


@pytest.mark.parametrize(
    "meta",
    [{"name": SYSTEM}, {"name": SYSTEM, "uid": ""}, {"name": SYSTEM, "uid": ["a"]}, {"uid": "a"}],
    ids=["missing", "empty", "list", "no name"],
)
async def test_namespace_without_a_uid_identifies_no_remote(two: Clusters, meta: Object) -> None:
    """The hash of the empty text would be the identity of all such remotes."""
    raw = json.dumps({"metadata": meta}).encode()
    two.remote.fail(Fault("GET", f"*/namespaces/{SYSTEM}", raw=raw))
    async with KubeClient(credentials_for(two.remote, "remote")) as remote:
        with pytest.raises(MalformedResponse, match=f"namespace {SYSTEM} has no valid UID"):
            await read_remote_identity(remote, ())
        assert (await read_remote_identity(remote, ())).namespace == SYSTEM
