"""A copy that pods use survives every rejection of its update."""

from __future__ import annotations

import pytest

from sync.kube.api_resources import CONFIG_MAPS, SECRETS, SERVICES, Object
from tests.fakeapi import Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness

POLICY = "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no"


def service(port: int, **spec: object) -> Object:
    """A Service of the home cluster."""
    meta = {"name": "web", "namespace": "default"}
    ports = {"ports": [{"port": port, "protocol": "TCP", "targetPort": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {**ports, **spec}}


def original(kind: str, value: str) -> Object:
    if kind == "services":
        return service(int(value))
    return (config_map if kind == "configmaps" else secret)("web", data={"k": value})


@pytest.mark.parametrize("kind", ["configmaps", "secrets", "services"])
@pytest.mark.parametrize("code", [422, 403, 400])
async def test_rejected_update_keeps_the_copy(harness: EngineHarness, kind: str, code: int) -> None:
    harness.home.put(original(kind, "8000"))
    use = {"configmaps": ["cm/web"], "secrets": ["secret/web"]}.get(kind, [])
    await harness.start_running(uses=use)
    resource = {"configmaps": CONFIG_MAPS, "secrets": SECRETS, "services": SERVICES}[kind]
    before = harness.remote.get(resource, "web", REMOTE_NAMESPACE)
    harness.clear_logs()
    harness.remote.fail(Fault("PATCH", f"*/{kind}/web", code=code, message=POLICY, times=None))
    harness.home.put(original(kind, "9000"))
    (event,) = await harness.events_with_reason("UpdateRefused")
    await harness.settle(waiting=True)

    assert harness.remote.get(resource, "web", REMOTE_NAMESPACE) == before
    assert {entry.method for entry in harness.remote.writes()} == {"PATCH"}
    assert event["involvedObject"]["kind"] == before["kind"]
    assert POLICY in event["message"]
    assert len(await harness.events_with_reason("UpdateRefused")) == 1, "retries report no more"

    harness.remote.heal()
    harness.home.put(original(kind, "9001"))
    await harness.settle()
    assert (
        harness.remote.get(resource, "web", REMOTE_NAMESPACE)["metadata"]["uid"]
        == (before["metadata"]["uid"])
    )


async def test_new_pod_waits_for_an_update_that_is_rejected(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "1"}))
    await harness.start_running(uses=["cm/conf"])
    harness.remote.fail(Fault("PATCH", "*/configmaps/conf", code=422, message=POLICY, times=None))
    harness.home.put(config_map("conf", data={"k": "2"}))
    harness.pod("next", uses=["cm/conf"])
    await harness.settle(waiting=True)
    assert harness.remote_pod("next") is None
    assert harness.status("next")["reason"] == "RemoteInvalid"
    assert (harness.config_map() or {})["data"] == {"k": "1"}


async def test_labels_of_an_immutable_copy_are_patched(harness: EngineHarness) -> None:
    harness.home.put({**config_map("conf", data={"k": "1"}), "immutable": True})
    await harness.start_running(uses=["cm/conf"])
    before = harness.config_map() or {}
    harness.home.update(CONFIG_MAPS, "conf", {"metadata": {"labels": {"a": "b"}}}, "default")
    await harness.settle()
    after = harness.config_map() or {}
    assert after["metadata"]["labels"]["a"] == "b"
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret", "Service"])
async def test_replaced_original_that_the_remote_rejects_keeps_the_copy(
    harness: EngineHarness, kind: str
) -> None:
    """An immutable ConfigMap, a Secret's type and a headless Service cannot be updated."""
    first, second, resource = {
        "ConfigMap": (
            {**config_map("web", data={"k": "1"}), "immutable": True},
            {**config_map("web", data={"k": "2"}), "immutable": True},
            CONFIG_MAPS,
        ),
        "Secret": ({**secret("web"), "type": "a/b"}, {**secret("web"), "type": "c/d"}, SECRETS),
        "Service": (service(80), service(80, clusterIP="None"), SERVICES),
    }[kind]
    harness.home.put(first)
    use = {"ConfigMap": ["cm/web"], "Secret": ["secret/web"]}.get(kind, [])
    await harness.start_running(uses=use)
    before = harness.remote.get(resource, "web", REMOTE_NAMESPACE)
    path = f"*/{resource.plural}"
    harness.remote.fail(Fault("POST", path, code=422, message=POLICY, times=None))
    harness.home.put(second)
    (event,) = await harness.events_with_reason("UpdateRefused")
    await harness.settle(waiting=True)
    assert harness.remote.get(resource, "web", REMOTE_NAMESPACE) == before
    assert POLICY in event["message"]

    harness.remote.heal()
    harness.engine.retry_now()
    await harness.settle()
    after = harness.remote.get(resource, "web", REMOTE_NAMESPACE)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert [obj["metadata"]["name"] for obj in harness.remote.objects(resource)] == ["web"]


async def test_remote_without_dry_runs_still_gets_the_replacement(harness: EngineHarness) -> None:
    harness.home.put({**secret("key"), "type": "a/b"})
    await harness.start_running(uses=["secret/key"])
    harness.remote.fail(
        Fault(
            "POST",
            "*/secrets",
            when=lambda entry: entry.query.get("dryRun") == "All",
            code=400,
            message="admission webhook does not support dry run",
            times=None,
        )
    )
    harness.home.put({**secret("key"), "type": "c/d"})
    await harness.settle()
    assert (harness.secret() or {})["type"] == "c/d"
