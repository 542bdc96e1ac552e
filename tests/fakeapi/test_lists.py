"""Lists of the fake: selectors, pages, versions."""

from __future__ import annotations

import pytest

from sync.kube import api_errors
from sync.kube.api_resources import CONFIG_MAPS, PODS, Object
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from tests.objects import config_map, pod


def names(objects: list[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", "abc"),
        ("app=x", "a"),
        ("app==x,tier=1", "a"),
        ("app!=x", "bc"),
        ("app in (x, y)", "ab"),
        ("app notin (x,y)", "c"),
        ("app", "ab"),
        ("!app", "c"),
        ("app,tier notin (1)", "b"),
    ],
)
async def test_label_selectors(
    api: FakeApi, client: KubeClient, selector: str, expected: str
) -> None:
    api.put(config_map("a", labels={"app": "x", "tier": "1"}))
    api.put(config_map("b", labels={"app": "y"}))
    api.put(config_map("c"))
    assert "".join(names((await client.list(CONFIG_MAPS, labels=selector)).items)) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=n", "a"),
        ("spec.nodeName!=n", "b"),
        ("spec.nodeName=", "b"),
        ("status.phase!=Failed,metadata.name=b", "b"),
        ("metadata.namespace=default", "ab"),
    ],
)
async def test_field_selectors(
    api: FakeApi, client: KubeClient, selector: str, expected: str
) -> None:
    api.put(pod("a", node="n"))
    api.put(pod("b"))
    assert "".join(names((await client.list(PODS, fields=selector)).items)) == expected


async def test_malformed_selectors_are_rejected(client: KubeClient) -> None:
    for labels, fields in (("", "spec.priority=0"), ("a b c", ""), ("", "x")):
        with pytest.raises(api_errors.BadRequest):
            await client.list(PODS, labels=labels, fields=fields)


async def test_pages_have_one_state(api: FakeApi, client: KubeClient) -> None:
    for name in "abc":
        api.put(config_map(name))
    raw = await client.request("GET", CONFIG_MAPS.path(), query={"limit": "2"})
    assert raw["metadata"]["remainingItemCount"] == 1
    assert "kind" not in raw["items"][0]
    api.remove(CONFIG_MAPS, "c", "default")
    token = raw["metadata"]["continue"]
    page, end = await client.list_page(CONFIG_MAPS, query={"limit": "2", "continue": token})
    assert (names(page.items), end) == (["c"], "")
    assert page.resource_version == raw["metadata"]["resourceVersion"]


async def test_future_version_is_rejected(client: KubeClient) -> None:
    with pytest.raises(api_errors.Gone, match="Too large resource version"):
        await client.list_page(CONFIG_MAPS, query={"resourceVersion": "99999"})
