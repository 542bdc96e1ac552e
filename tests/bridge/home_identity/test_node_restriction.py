"""The detection of the NodeRestriction admission plugin."""

from __future__ import annotations

import pytest

from bridge.home_identity.node_restriction import is_restricted
from sync.kube.api_errors import KubeError
from sync.kube.api_resources import NODES
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.objects import node

NODE = "burst"


@pytest.mark.parametrize("is_registered", [False, True])
async def test_home_that_accepts_the_reserved_label_does_not_restrict(
    home_api: FakeApi, client_for: ClientFor, is_registered: bool
) -> None:
    if is_registered:
        home_api.put(node(NODE))
    client = await client_for(home_api, "home")
    assert await is_restricted(client, NODE) is False
    assert [it["metadata"]["name"] for it in home_api.objects(NODES)] == [NODE] * is_registered
    (request,) = home_api.writes()
    assert request.query == {"dryRun": "All"}
    assert request.body is not None
    (label,) = request.body["metadata"]["labels"]
    assert label.startswith("node-restriction.kubernetes.io/")


@pytest.mark.parametrize(("code", "expected"), [(403, True), (400, None), (500, None)])
async def test_rejection_decides(
    home_api: FakeApi, client_for: ClientFor, code: int, expected: bool | None
) -> None:
    client = await client_for(home_api, "home")
    home_api.fail(Fault("POST", NODES.path(), code=code, times=None))
    assert await is_restricted(client, NODE) is expected


async def test_home_that_does_not_answer_is_an_error(
    home_api: FakeApi, client_for: ClientFor
) -> None:
    client = await client_for(home_api, "home")
    home_api.fail(Fault("POST", NODES.path(), drop="before", times=None))
    with pytest.raises(KubeError):
        await is_restricted(client, NODE)
